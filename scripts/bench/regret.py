#!/usr/bin/env python3
"""Compares the answer of a search with the exhaustive search of the same space, as Markdown.

    scripts/bench/regret.py target/release/autofit ASSETS [CASE...] > results/bench/regret.md

ASSETS is the folder that `scripts/fetch-assets` fills. For every case a search runs under its cap; then every
configuration of its space is probed, by the very jobs that the search sends, with other knobs. The answer and the
fastest of the exhaustive search are measured again in turns: regret is the median of those ratios.
"""

import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

from worker import OutOfMemory, Worker

TURNS, FINALISTS = 7, 3
# Name, model, data, longest row, effective batch, cap, layers.
CASES = (
    ("movie-32", "minilm", "movie.csv", 64, 32, "350M", 6),
    ("movie-16", "minilm", "movie.csv", 64, 16, "345M", 6),
    ("mail-16", "minilm", "mail.csv", 256, 16, "380M", 6),
    ("mail-32", "minilm", "mail.csv", 256, 32, "420M", 6),
    ("distilbert-16", "distilbert", None, 64, 16, "1010M", 6),
    ("tinybert-32", "tinybert", None, 128, 32, "260M", 4),
)
PRECISIONS = ("fp32", "bf16")


def search(binary, assets, folder, case):
    """The study of a case: its trials, its answer, and a job as it was sent."""
    _, model, data, length, effective, cap, _ = case
    jobs = folder / "jobs"
    recorder = pathlib.Path(__file__).with_name("record_jobs.py")
    command = [binary, "probe", "--model", assets / model if data else model, "--vram", cap, "--max-length", str(length),
               "--effective-batch", str(effective), "--out", folder / "study", "--quiet",
               "--launcher", f"{sys.executable} {recorder} {jobs} {{worker}}"]
    subprocess.run(command + (["--data", assets / data] if data else []), check=True, stdout=subprocess.DEVNULL)
    trials = list(csv.DictReader((folder / "study" / "trials.csv").open(newline="")))
    best = tomllib.loads((folder / "study" / "best.toml").read_text())
    return trials, best, json.loads(jobs.read_text().splitlines()[0])


class Device:
    """Answers any configuration of a case."""

    def __init__(self, binary, job):
        self.worker = Worker(binary)
        self.cap, self.spec = job["cap_bytes"], job["task"]["probe"]

    def probe(self, precision, micro, layers, **effort):
        knobs = {**self.spec["knobs"], "precision": precision, "micro_batch": micro, "checkpoint_layers": layers}
        shapes = self.spec["shapes"]
        return self.worker.probe(self.spec["model"], knobs, self.spec["effective_batch"], shapes["longest"],
                                 shapes["typical"], cap=self.cap, distinct=shapes["distinct"],
                                 **{"max_timed": max(8, -(-64 // micro)), **effort})

    def speed(self, key, **effort):
        """Samples per second of an effective batch, from the largest of its micro-batches and one update."""
        measured = self.probe(*key, **effort)
        effective, micro = self.spec["effective_batch"], key[1]
        parts = [effective * (i + 1) // -(-effective // micro) - effective * i // -(-effective // micro)
                 for i in range(-(-effective // micro))]
        passes = statistics.fmean(measured["micro_seconds"]) * sum(part / micro for part in parts)
        return effective / (passes + statistics.median(measured["optimizer_seconds"]))


def exhaustive(device, effective, layers):
    """Speed of every configuration, None where it ran out of memory, and the seconds that it took."""
    micros = sorted({-(-effective // k) for k in range(1, effective + 1)})
    speeds, started = {}, time.monotonic()
    for precision in PRECISIONS:
        for micro in micros:
            for count in range(layers + 1):
                key = (precision, micro, count)
                try:
                    speeds[key] = device.speed(key)
                except OutOfMemory:
                    speeds[key] = None
    return speeds, time.monotonic() - started


def boundary(best, speeds):
    """Whether answer and neighbour are what the exhaustive search saw."""
    config, neighbour = best["config"], best["neighbour"]
    own = (config["precision"], config["micro_batch"], config["checkpoint_layers"])
    larger = sorted(key[1] for key in speeds if key[0] == own[0] and key[2] == own[2] and key[1] > own[1])
    if not larger:
        return speeds[own] is not None and "outcome" not in neighbour
    fits = speeds[(own[0], larger[0], own[2])] is not None
    return speeds[own] is not None and neighbour.get("outcome") == ("fit" if fits else "oom")


def regret(device, own, speeds):
    """The answer's speed against the fastest of the others, in turns: the least median ratio, and with whom."""
    finalists = sorted((key for key in speeds if speeds[key]), key=lambda key: -speeds[key])[:FINALISTS]
    worst = (1.0, own)
    for rival in finalists:
        if rival == own:
            continue
        pairs = [(device.speed(own, seconds=4.0), device.speed(rival, seconds=4.0)) for _ in range(TURNS)]
        worst = min(worst, (statistics.median(mine / theirs for mine, theirs in pairs), rival))
    return worst


def words(key):
    return f"{key[0]} {key[1]} r{key[2]}"


def row(binary, assets, case):
    with tempfile.TemporaryDirectory() as folder:
        trials, best, job = search(binary, assets, pathlib.Path(folder), case)
    config = best["config"]
    own = (config["precision"], config["micro_batch"], config["checkpoint_layers"])
    device = Device(binary, job)
    speeds, seconds = exhaustive(device, case[4], case[6])
    ratio, rival = regret(device, own, speeds)
    device.worker.end()
    probes = [trial for trial in trials if trial["outcome"] != "pruned"]
    spent = sum(float(trial["wall_seconds"]) for trial in probes)
    return [case[0], case[5], len(speeds), sum(speed is None for speed in speeds.values()), len(probes),
            f"{spent / seconds:.2f}", words(own), words(rival), f"{ratio:.3f}",
            "exact" if boundary(best, speeds) else "WRONG"]


def main():
    binary, assets, chosen = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
    print("# The search against the exhaustive one, CPU\n")
    print("Two precisions, every micro-batch, every density. Regret: samples/s of the answer over those of the fastest of")
    print(f"all, the worst of up to {FINALISTS} rivals, each a median of {TURNS} pairs in turns. `r2`: 2 layers recomputed.")
    print("Written by `scripts/bench/regret.py`.\n")
    print("| case | cap | configurations | out of memory | probes | probe seconds, share | answer | rival | regret "
          "| boundary |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for case in CASES:
        if not chosen or case[0] in chosen:
            print("| " + " | ".join(map(str, row(binary, assets, case))) + " |", flush=True)


if __name__ == "__main__":
    main()
