#!/usr/bin/env python3
"""Prints what cutting a step by length gains over the two usual ways to pad, as Markdown.

    scripts/bench/cutting.py target/release/autofit ASSETS > results/bench/cutting.md

ASSETS is the folder that `scripts/fetch-assets` fills; needs the Python package `tokenizers`. All three ways train the
same rows in the same order with the same kernels and the same proven micro-batch; only padding and cut differ. They
take turns, and medians of the ratios of each turn are printed.
"""

import csv
import pathlib
import random
import statistics
import sys

import tokenizers

from worker import Worker, knobs

EFFECTIVE, TURNS = 32, 7
# Data, longest row in tokens, micro-batch of such rows, optimizer steps in a turn.
CASES = (("movie.csv", 64, 8, 6), ("movie.csv", 128, 8, 4), ("mail.csv", 512, 2, 2), ("mail.csv", 512, 8, 2))


def lengths(assets, name, longest):
    csv.field_size_limit(1 << 30)
    tokenizer = tokenizers.Tokenizer.from_file(str(assets / "minilm" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest)
    with open(assets / name, newline="", encoding="utf-8") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    random.Random(1).shuffle(texts)
    return [len(encoding.ids) for encoding in tokenizer.encode_batch(texts[:EFFECTIVE * 40])]


def seconds(worker, model, micro, longest, rows):
    """Seconds of one optimizer step, over steps of all `rows`."""
    accumulation = -(-EFFECTIVE // micro)
    timed = len(rows) // EFFECTIVE * accumulation
    measured = worker.probe(model, knobs(micro), EFFECTIVE, longest, rows, timed)
    passes = statistics.fmean(measured["micro_seconds"]) * accumulation
    return passes + statistics.median(measured["optimizer_seconds"])


def main():
    binary, assets = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    model = {"folder": str(assets / "minilm")}
    print("# What cutting by length gains: MiniLM, fp32, effective batch 32, CPU\n")
    print("(a) fixed micro-batch, every row padded to the maximal length; (b) padded to the longest row of the effective")
    print(f"batch. Samples per second in proportion, medians of {TURNS} turns [least, most]. Written by")
    print("`scripts/bench/cutting.py`.\n")
    print("| data | maximal length | micro-batch | mean tokens | against (a) | against (b) |")
    print("|---|---|---|---|---|---|", flush=True)
    for name, longest, micro, steps in CASES:
        rows = lengths(assets, name, longest)
        ratios = {"a": [], "b": []}
        with Worker(binary) as worker:
            for turn in range(TURNS):
                chosen = rows[turn * steps * EFFECTIVE:(turn + 1) * steps * EFFECTIVE] or rows[:steps * EFFECTIVE]
                batches = [chosen[i:i + EFFECTIVE] for i in range(0, len(chosen), EFFECTIVE)]
                batches = [batch for batch in batches if len(batch) == EFFECTIVE]
                ours = [length for batch in batches for length in batch]
                ways = {"a": [longest] * len(ours), "b": [max(batch) for batch in batches for _ in batch]}
                own = seconds(worker, model, micro, longest, ours)
                for way, padded in ways.items():
                    ratios[way].append(seconds(worker, model, micro, longest, padded) / own)
        mean = statistics.fmean(rows)
        cells = [f"{statistics.median(r):.2f} [{min(r):.2f}, {max(r):.2f}]" for r in (ratios["a"], ratios["b"])]
        print(f"| {name} | {longest} | {micro} | {mean:.0f} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
