#!/usr/bin/env python3
"""Measures the coefficients of `autofit estimate` anew and prints them as src/study/estimate.rs holds them.

    cargo build --release && pip install numpy scipy
    scripts/calibrate-estimate.py target/release/autofit probes.jsonl      # about 250 probes, 20 minutes on 2 cores

Probes run without a cap, each in a process of its own, and are appended to the file as they end: a second call goes on
where the first stopped. Presets give the true scale; four small models with random proportions (written as zero
weights into a temporary folder) keep the hidden and the feed-forward width apart, which all presets couple.
`--fit` only fits what the file holds. `--quick` leaves out the larger presets.
"""

import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np
from scipy.optimize import least_squares

# Name: hidden, intermediate, heads, layers, vocabulary.
PRESETS = {
    "tinybert": (312, 1200, 12, 4, 30522),
    "minilm": (384, 1536, 12, 6, 30522),
    "distilbert": (768, 3072, 12, 6, 30522),
}
SMALL = {"a": (256, 512, 4, 4, 1000), "b": (128, 2048, 8, 4, 1000), "c": (192, 384, 12, 6, 5000)}
SHAPES = PRESETS | SMALL
STATE = {"adamw": 8.0, "lion": 4.0, "sgd": 4.0, "adafactor": 0.05}
COPIES = {"adamw": 0, "lion": 3, "sgd": 2, "adafactor": 2}
EFFECTIVE = 16
BLOCK = 1024


def parameters(name):
    h, i, _, layers, vocab = SHAPES[name]
    types = 0 if name == "distilbert" else 2
    layer = 4 * (h * h + h) + h * i + i + i * h + h + 4 * h
    return (vocab + 512 + types) * h + 2 * h + layers * layer + h * h + h + 2 * (h + 1)


def write_model(folder, name):
    """A BERT of this shape, all weights zero."""
    h, i, heads, layers, vocab = SMALL[name]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"model_type": "bert", "vocab_size": vocab, "hidden_size": h, "num_hidden_layers": layers,
                   "num_attention_heads": heads, "intermediate_size": i, "max_position_embeddings": 512}, file)
    shapes = {"classifier.weight": (2, h), "classifier.bias": (2,)}
    dense = lambda key, out, inputs: {f"bert.{key}.weight": (out, inputs), f"bert.{key}.bias": (out,)}
    norm = lambda key: {f"bert.{key}.weight": (h,), f"bert.{key}.bias": (h,)}
    for key, rows in (("word", vocab), ("position", 512), ("token_type", 2)):
        shapes[f"bert.embeddings.{key}_embeddings.weight"] = (rows, h)
    shapes |= norm("embeddings.LayerNorm") | dense("pooler.dense", h, h)
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        for key in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= dense(f"{at}.attention.{key}", h, h)
        shapes |= dense(f"{at}.intermediate.dense", i, h) | dense(f"{at}.output.dense", h, i)
        shapes |= norm(f"{at}.attention.output.LayerNorm") | norm(f"{at}.output.LayerNorm")
    head, offset = {}, 0
    for key, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        head[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(offset))


def plan(quick):
    """(model, precision, micro-batch, recomputed layers, length, optimizer) of every probe."""
    for name, (_, _, _, layers, _) in SHAPES.items():
        large = name in ("minilm", "distilbert")
        if quick and large:
            continue
        sizes = [(1, 128), (2, 128), (8, 64), (8, 128), (2, 256)] if large else \
                [(1, 64), (8, 64), (2, 128), (8, 128), (4, 256)]
        for precision in ("fp32", "bf16"):
            for micro, length in sizes:
                for recomputed in (0, layers // 2, layers):
                    yield name, precision, micro, recomputed, length, "adamw"
            if not large:
                yield name, precision, EFFECTIVE, 0, 64, "adamw"
                yield name, precision, EFFECTIVE, layers, 64, "adamw"
    for optimizer in ("adafactor", "sgd", "lion"):
        for name in ("tinybert", "a", "c"):
            for micro in (1, 8):
                yield name, "fp32", micro, 0, 64, optimizer


def probe(binary, folder, job):
    name, precision, micro, recomputed, length, optimizer = job
    source = {"preset": name} if name in PRESETS else {"folder": os.path.join(folder, name)}
    knobs = {"precision": precision, "micro_batch": micro, "checkpoint_layers": recomputed, "optimizer": optimizer}
    spec = {"model": source, "num_labels": 2, "knobs": knobs, "effective_batch": EFFECTIVE, "seed": 1,
            "shapes": {"longest": length, "typical": []},
            "effort": {"warmup": 0, "min_timed": 1, "max_timed": 1, "seconds": 0.0, "evaluate": False}}
    line = json.dumps({"protocol": 1, "device": "cpu", "cap_bytes": None, "task": {"probe": spec}})
    out = subprocess.run([binary, "__worker"], input=line + "\n", capture_output=True, text=True, check=False)
    answer = json.loads(out.stdout.splitlines()[-1])
    return answer["report"]["measured"]["peak_bytes"]


def moments(job):
    """Bytes above weights and optimizer state at each moment that can be the peak, without the workspace; the same
    accounting as in src/study/estimate.rs, which says what each term is."""
    name, precision, micro, recomputed, length, optimizer = job
    h, i, heads, layers, vocab = SHAPES[name]
    stored = 4 if precision == "fp32" else 2
    tokens, types = micro * length, 0 if name == "distilbert" else 2
    accumulates = micro < EFFECTIVE
    layer = 4 * (4 * h * h + 2 * h * i + 9 * h + i)
    rows = min(vocab, EFFECTIVE * length) + length + min(types, 1)
    gradients = 4 * (parameters(name) - (vocab + 512 + types) * h + rows * h)
    tape = tokens * ((6 * h + i) * stored + 4 * (heads + 2))
    boundary = tokens * (h * stored + 4)
    top = tokens * 2 * h * stored + micro * (4 * h + i) * stored
    values, block = 4 * tokens * h, 4 * min(tokens, BLOCK)
    kept = lambda below: sum(boundary if lower < recomputed else tape for lower in range(below))
    for below in range(layers - 1):
        above = gradients if accumulates else layer * (layers - 1 - below)
        own = gradients if accumulates else layer * (layers - below)
        more = values if below < layers - 2 else 4 * micro * h
        again = below < recomputed
        before = gradients if accumulates else 0
        yield before + kept(below) + (boundary if again else tape) + 3 * values + block * i
        if again:
            yield above + kept(below) + tape + 3 * values + block * (h + i) + values + (values if below < layers - 2 else 0)
        yield own + kept(below) + tape - tokens * h * stored + 2 * values + block * (h + i) + more
        yield own + kept(below) + 4 * h * stored * tokens + 3 * values + block * (h + i)
    own = gradients if accumulates else layer
    yield own + kept(layers - 1) + top + 2 * values + block * i


def estimate(x, job):
    """Bytes at the peak; the same formula as `estimate::peak`."""
    name, precision, micro, recomputed, length, optimizer = job
    h, i, heads, layers, vocab = SHAPES[name]
    types = 0 if name == "distilbert" else 2
    rows = min(vocab, EFFECTIVE * length) + length + min(types, 1)
    gradients = 4 * (parameters(name) - (vocab + 512 + types) * h + rows * h)
    per_length, hidden, wide, token_hidden, token_wide, token = x
    block = min(micro * length, BLOCK)
    workspace = 4 * (per_length * length + hidden * h + wide * i + block * (token_hidden * h + token_wide * i + token))
    update = gradients + COPIES[optimizer] * 4 * vocab * h
    return (4 + STATE[optimizer]) * parameters(name) + max(workspace + max(moments(job)), update)


def fit(probes):
    names = ["length", "hidden", "wide", "token_hidden", "token_wide", "token"]
    for precision in ("fp32", "bf16"):
        own = [(job, peak) for job, peak in probes if job[1] == precision]
        error = lambda x: np.array([100 * (estimate(x, job) / peak - 1) for job, peak in own])
        found = least_squares(error, [1000, 1000, 100, 0.5, 0.1, 200], bounds=([0] * 6, [np.inf] * 6),
                              x_scale=[1000, 1000, 100, 1, 1, 200], loss="soft_l1", f_scale=0.5)
        print(f"\n{precision}, {len(own)} probes")
        for name, value in zip(names, found.x):
            print(f"    {name}: {value:.3f}")
        errors = error(found.x)
        for name in SHAPES:
            some = [e for e, (job, _) in zip(errors, own) if job[0] == name]
            if some:
                print(f"    error on {name}: {max(map(abs, some)):.2f} % at most in {len(some)} probes")


def main():
    flags = [a for a in sys.argv[1:] if a.startswith("--")]
    binary, path = [a for a in sys.argv[1:] if not a.startswith("--")]
    probes = []
    if os.path.exists(path):
        with open(path) as file:
            probes = [(tuple(job), peak) for job, peak in map(json.loads, file)]
    if "--fit" not in flags:
        known = {job for job, _ in probes}
        jobs = [job for job in plan("--quick" in flags) if job not in known]
        random.Random(4).shuffle(jobs)  # Whenever it is stopped, what is there covers every corner.
        with tempfile.TemporaryDirectory() as folder, open(path, "a") as file:
            for name in SMALL:
                write_model(os.path.join(folder, name), name)
            for number, job in enumerate(jobs, 1):
                peak = probe(binary, folder, job)
                probes.append((job, peak))
                file.write(json.dumps([job, peak]) + "\n")
                file.flush()
                print(f"{number}/{len(jobs)} {job}: {peak / 2**20:.1f} MiB, {100 * number / len(jobs):.0f} %", file=sys.stderr)
    fit(probes)


if __name__ == "__main__":
    main()
