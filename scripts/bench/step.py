#!/usr/bin/env python3
"""Compares the training step with PyTorch's in eager mode, in turns on one machine, as Markdown.

    scripts/bench/step.py target/release/autofit PYTHON > results/bench/step.md

PYTHON is an interpreter with the packages torch and transformers. Both train the same shapes in fp32 with AdamW and
dropout, on as many threads as the machine has cores, one at a time; the other waits. Ratios are medians of pairs.
"""

import json
import pathlib
import statistics
import subprocess
import sys

from worker import Worker, knobs

PAIRS, BLOCK = 10, 2
CASES = (("distilbert", 8, 128), ("distilbert", 32, 128), ("bert-base", 8, 128), ("bert-base", 32, 128),
         ("minilm", 8, 512))
LAYERS = {"distilbert": 6, "bert-base": 12, "minilm": 6}


class Torch:
    def __init__(self, python, name, size, length):
        script = pathlib.Path(__file__).with_name("torch_step.py")
        self.process = subprocess.Popen([python, script, name, str(size), str(length)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.peak = json.loads(self.process.stdout.readline())["peak_bytes"]

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def own(worker, name, knob, effective, length, passes):
    """Seconds of steps, each of one pass and one update, and the peak."""
    measured = worker.probe({"preset": name}, knob, effective, length, timed=passes)
    update = statistics.median(measured["optimizer_seconds"])
    return [seconds + update for seconds in measured["micro_seconds"][-passes:]], measured["peak_bytes"]


def spread(ratios):
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def case(binary, python, name, size, length):
    """One row: speed in turns, peaks, the price of recomputation and of accumulation."""
    torch, ratios = Torch(python, name, size, length), []
    with Worker(binary) as worker:
        for _ in range(PAIRS // BLOCK):
            ours, peak = own(worker, name, knobs(size), size, length, BLOCK)
            ratios += [theirs / mine for theirs, mine in zip(torch.steps(BLOCK), ours)]
        torch.end()
        dense, accumulated = [], []
        for _ in range(3):
            plain, _ = own(worker, name, knobs(size), size, length, BLOCK)
            full, _ = own(worker, name, knobs(size, LAYERS[name]), size, length, BLOCK)
            dense.append(statistics.median(full) / statistics.median(plain))
            single = worker.probe({"preset": name}, knobs(size), size, length, timed=BLOCK)
            several = worker.probe({"preset": name}, knobs(size), 4 * size, length, timed=BLOCK)
            passes = [statistics.median(m["micro_seconds"][-BLOCK:]) for m in (several, single)]
            accumulated.append(passes[0] / passes[1])
    return [name, size, length, spread(ratios), f"{peak / torch.peak:.2f}", f"{peak / 2**20:.0f}",
            f"{torch.peak / 2**20:.0f}", spread(dense), spread(accumulated)]


def main():
    binary, python = sys.argv[1:3]
    print("# The training step against PyTorch eager, fp32, AdamW, dropout on, CPU\n")
    print(f"Medians of {PAIRS} pairs in turns [least, most]; speed above 1: autofit is faster; peaks are counted bytes")
    print("of ours and bytes of tensors there. Written by `scripts/bench/step.py`.\n")
    print("| model | batch | tokens | samples/s against PyTorch | peak against PyTorch | our MiB | its MiB "
          "| time, all layers recomputed against none | time of a pass, accumulated against alone |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, size, length in CASES:
        print("| " + " | ".join(map(str, case(binary, python, name, size, length))) + " |", flush=True)


if __name__ == "__main__":
    main()
