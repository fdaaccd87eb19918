"""Loads a folder that autofit saved with transformers, and compares its logits with stored ones.

    python tests/python/check_saved.py DIR EXPECTED.safetensors

EXPECTED holds `input_ids` and `attention_mask` [batch, length], `logits` [batch, classes], and for BERT may hold
`token_type_ids`. Exit status: 0 the logits agree within 1e-4, 1 they don't or a tensor is missing or left over.
"""

import argparse
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

TOLERANCE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", help="folder with config.json, model.safetensors and a tokenizer")
    parser.add_argument("expected", help="safetensors file with inputs and logits")
    args = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if not os.path.isdir(args.dir):
        # transformers would take the name for one on the hub.
        sys.exit(f"{args.dir} is no folder")

    model, info = AutoModelForSequenceClassification.from_pretrained(
        args.dir, output_loading_info=True, dtype=torch.float32, local_files_only=True
    )
    problems = {kind: sorted(map(str, found)) for kind, found in info.items() if found}
    for kind, found in problems.items():
        print(f"{kind}: {', '.join(found)}")
    print(f"{type(model).__name__}, id2label {model.config.id2label}")

    if not os.path.isfile(os.path.join(args.dir, "tokenizer.json")):
        # transformers would make up an empty one from the model's type.
        sys.exit(f"{args.dir} holds no tokenizer.json")
    tokenizer = AutoTokenizer.from_pretrained(args.dir, local_files_only=True)
    print(f"{type(tokenizer).__name__} of {len(tokenizer)} words: 'the film' is {tokenizer('the film')['input_ids']}")
    if len(tokenizer) > model.config.vocab_size:
        sys.exit(f"the tokenizer has {len(tokenizer)} words, the model only {model.config.vocab_size}")

    stored = load_file(args.expected)
    inputs = {name: stored[name].long() for name in ("input_ids", "attention_mask")}
    if inputs["input_ids"].max() >= model.config.vocab_size:
        sys.exit(f"the stored input_ids go beyond the model's {model.config.vocab_size} words")
    if model.config.model_type == "bert" and "token_type_ids" in stored:
        inputs["token_type_ids"] = stored["token_type_ids"].long()
    with torch.no_grad():
        logits = model.eval()(**inputs).logits
    if logits.shape != stored["logits"].shape:
        sys.exit(f"logits are {tuple(logits.shape)}, expected {tuple(stored['logits'].shape)}")
    difference = (logits - stored["logits"].float()).abs().max().item()
    print(f"largest difference of logits {difference:.2e}")
    # Written so that NaN fails too.
    if problems or not difference <= TOLERANCE:
        sys.exit(1)


if __name__ == "__main__":
    main()
