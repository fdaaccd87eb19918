#!/usr/bin/env python3
"""Trains the same run with different knobs and prints what became of its accuracy, as Markdown.

    scripts/bench/accuracy.py target/release/autofit ASSETS > results/bench/accuracy.md

ASSETS is the folder that `scripts/fetch-assets` fills. One epoch on movie.csv, a tenth held out, the same seed; only
micro-batch, checkpoint density and precision differ.
"""

import pathlib
import subprocess
import sys
import tempfile
import tomllib

RUNS = (("fp32", 32, 0), ("fp32", 4, 0), ("fp32", 32, 6), ("bf16", 32, 0), ("fp16", 32, 0))


def probe(binary, assets, folder):
    subprocess.run([binary, "probe", "--model", assets / "minilm", "--vram", "1G", "--data", assets / "movie.csv",
                    "--max-length", "64", "--space", "quick", "--out", folder, "--quiet"], check=True,
                   stdout=subprocess.DEVNULL)
    return (folder / "best.toml").read_text()


def with_knobs(text, precision, micro, layers):
    config = tomllib.loads(text)["config"]
    changed = {"precision": f'"{precision}"', "micro_batch": micro, "accumulation": config["effective_batch"] // micro,
               "checkpoint_layers": layers}
    lines = []
    section = ""
    for line in text.splitlines():
        section = line if line.startswith("[") else section
        key = line.split("=")[0].strip()
        lines.append(f"{key} = {changed[key]}" if section == "[config]" and key in changed else line)
    return "\n".join(lines) + "\n"


def last(out, name):
    words = out.split()
    return words[len(words) - 1 - words[::-1].index(name) + 1].rstrip(",.")


def main():
    binary, assets = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        best = probe(binary, assets, scratch / "study")
        print("# One epoch on movie.csv with MiniLM, the same seed: accuracy on the held-out tenth\n")
        print("Written by `scripts/bench/accuracy.py`; effective batch 32, rows of at most 64 tokens.\n")
        print("| precision | micro-batch | layers recomputed | accuracy | loss |")
        print("|---|---|---|---|---|", flush=True)
        for precision, micro, layers in RUNS:
            config = scratch / "config.toml"
            config.write_text(with_knobs(best, precision, micro, layers))
            out = subprocess.run([binary, "run", "--config", config, "--data", assets / "movie.csv", "--epochs", "1",
                                  "--output", scratch / "model", "--overwrite"], capture_output=True, text=True)
            print(out.stdout, out.stderr, file=sys.stderr)
            out.check_returncode()
            accuracy, loss = last(out.stdout, "accuracy"), last(out.stdout, "loss")
            print(f"| {precision} | {micro} | {layers} of 6 | {accuracy} | {loss} |", flush=True)


if __name__ == "__main__":
    main()
