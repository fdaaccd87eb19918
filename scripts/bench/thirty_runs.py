#!/usr/bin/env python3
"""Thirty runs after their own probes, the longest rows last: none may run out of memory. Prints Markdown.

    scripts/bench/thirty_runs.py target/release/autofit ASSETS PYTHON > results/bench/thirty-runs.md

ASSETS is the folder that `scripts/fetch-assets` fills; PYTHON has the packages torch and transformers and makes models
with random weights. Each run trains a few hundred rows of its data, sorted by length, from the first to the last.
"""

import csv
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import tomllib

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
MAKE = """
import sys, transformers
folder, kind = sys.argv[1:3]
shape = dict(vocab_size=30522, num_labels=2)
config = transformers.DistilBertConfig(dim=256, n_layers=4, hidden_dim=1024, n_heads=8, **shape) if kind == "distilbert" \\
    else transformers.RobertaConfig(hidden_size=192, num_hidden_layers=3, intermediate_size=768, num_attention_heads=6,
                                    max_position_embeddings=514, type_vocab_size=1, pad_token_id=1, **shape)
transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
"""


def models(assets, python, scratch):
    """Folders of MiniLM and of two models with random weights and MiniLM's tokenizer."""
    folders = {"minilm": assets / "minilm"}
    for kind in ("distilbert", "roberta"):
        folder = scratch / kind
        subprocess.run([python, "-c", MAKE, folder, kind], check=True, capture_output=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((assets / "minilm" / name).read_bytes())
        folders[kind] = folder
    return folders


def sorted_rows(assets, name, count, seed, path):
    """Rows of a data set, its longest among them, the shortest first."""
    csv.field_size_limit(1 << 30)
    with open(assets / name, newline="", encoding="utf-8") as file:
        rows = sorted(((row["text"], row["label"]) for row in csv.DictReader(file)), key=lambda row: len(row[0]))
    chosen = random.Random(seed).sample(rows[:-20], count - 20) + rows[-20:]
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        table.writerows(sorted(chosen, key=lambda row: len(row[0])))


def size(text):
    number, unit = text.split()
    return float(number.replace(",", "")) * UNITS[unit]


def settings():
    """Thirty combinations of model, data, rows, effective batch and how tight the cap is."""
    draw = random.Random(5)
    for number in range(30):
        yield {"model": ("minilm", "distilbert", "roberta")[number % 3], "data": ("movie.csv", "mail.csv")[number // 3 % 2],
               "length": draw.choice((32, 64, 128, 256)), "effective": draw.choice((8, 16, 24, 32)),
               "slack": draw.choice((1.02, 1.05, 1.1, 1.3, 2.0)), "seed": number}


def least(binary, model, length):
    """The peak that `estimate` expects of micro-batch 1."""
    out = subprocess.run([binary, "estimate", "--model", model, "--max-length", str(length), "--vram", "64G", "--json",
                          "--effective-batch", "1"], capture_output=True, text=True, check=True).stdout
    import json
    rows = json.loads(out)
    return rows


def one(binary, folders, assets, scratch, choice, cap):
    data = scratch / "rows.csv"
    sorted_rows(assets, choice["data"], 240, choice["seed"], data)
    study = scratch / "study"
    command = [binary, "probe", "--model", folders[choice["model"]], "--vram", cap, "--data", data, "--max-length",
               str(choice["length"]), "--effective-batch", str(choice["effective"]), "--out", study, "--fresh", "--quiet",
               "--seed", str(choice["seed"])]
    probed = subprocess.run(command, capture_output=True, text=True)
    if probed.returncode == 3:
        return None
    if probed.returncode:
        raise RuntimeError(probed.stderr)
    best = tomllib.loads((study / "best.toml").read_text())
    ran = subprocess.run([binary, "run", "--config", study / "best.toml", "--data", data, "--epochs", "1", "--output",
                          scratch / "model", "--overwrite", "--snapshot-every", "never"], capture_output=True, text=True)
    return best, ran
