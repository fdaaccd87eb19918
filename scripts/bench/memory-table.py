#!/usr/bin/env python3
"""Prints the measured peak of a preset's training step against micro-batch and checkpoint density, as Markdown.

    scripts/bench/memory-table.py target/release/autofit distilbert 128 > results/bench/memory-distilbert.md

Every cell is a probe without a cap in a process of its own: two real optimizer steps at rows of the given length, at an
effective batch of 64.
"""

import json
import subprocess
import sys

EFFECTIVE = 64
MICRO = (1, 2, 4, 8, 16, 32)


def probe(binary, preset, length, micro, layers, precision):
    knobs = {"precision": precision, "micro_batch": micro, "checkpoint_layers": layers}
    spec = {"model": {"preset": preset}, "num_labels": 2, "knobs": knobs, "effective_batch": EFFECTIVE, "seed": 1,
            "shapes": {"longest": length, "typical": []},
            "effort": {"warmup": 0, "min_timed": 1, "max_timed": 1, "seconds": 0.0, "evaluate": False}}
    line = json.dumps({"protocol": 1, "device": "cpu", "cap_bytes": None, "task": {"probe": spec}})
    out = subprocess.run([binary, "__worker"], input=line + "\n", capture_output=True, text=True, check=True)
    return json.loads(out.stdout.splitlines()[-1])["report"]["measured"]


def main():
    binary, preset, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
    layers = probe(binary, preset, length, 1, 0, "fp32")["layers"]
    print(f"# Peak of a training step: {preset}, rows of {length} tokens\n")
    print("MiB counted by the allocator above what the process held before the model was built, on the CPU; AdamW,")
    print(f"effective batch {EFFECTIVE}. Written by `scripts/bench/memory-table.py`.")
    for precision in ("fp32", "bf16"):
        print(f"\n## {precision}\n")
        print("| layers recomputed | " + " | ".join(f"micro-batch {m}" for m in MICRO) + " |")
        print("|---|" + "---|" * len(MICRO))
        for recomputed in range(layers + 1):
            peaks = [probe(binary, preset, length, m, recomputed, precision)["peak_bytes"] / 2**20 for m in MICRO]
            print(f"| {recomputed} of {layers} | " + " | ".join(f"{peak:,.0f}" for peak in peaks) + " |", flush=True)


if __name__ == "__main__":
    main()
