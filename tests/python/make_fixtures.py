"""Reference numbers for autofit's tests, from PyTorch and transformers.

    python tests/python/make_fixtures.py [--out DIR] [--minilm DIR] [--check]

Everything is seeded, runs in 32 bits on one thread, and with dropout off. `--check` writes into a temporary folder and
compares with what is committed, since the last digits may differ between processors.
What each file holds is described in tests/fixtures/README.md.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    get_linear_schedule_with_warmup,
)

from tiny_tokenizers import bert_tokenizer, roberta_tokenizer, token_cases

LABELS = ["negative", "neutral", "positive"]
LENGTHS = [12, 7, 3, 12, 1]  # ragged on purpose: a full row, and a row of one token
CLASSES = [0, 2, 1, 2, 0]
STEPS, WARMUP, LR, DECAY, CLIP = 3, 1, 1e-3, 0.01, 1.0

MINILM_TEXTS = [
    "Good.",
    "The parcel came a day late and the box was torn.",
    "Does anybody know whether the 7:45 train still stops at the old bridge?",
    "We tried three recipes for rye bread; only the second, with honey and a long rest overnight, rose as it should.",
    "Café menus in Zürich list naïve prices: CHF 9.50 for soup, 12 for a sandwich, and nothing at all for a smile :-)",
    "The committee met on a rainy Tuesday to decide what should become of the empty mill. Some wanted flats, some a "
    "museum, and one patient old man, who had worked there for forty years, wanted only that the wheel should turn "
    "again. They talked until the lamps were lit. In the end they agreed to repair the roof first, to ask the town "
    "for its opinion in spring, and to let the old man oil the axle whenever he liked, which he has done every "
    "Saturday since, whistling, in all kinds of weather. Last year the first flour in half a century came out of it, "
    "grey and a little gritty; the baker made forty loaves, and by nine in the morning every one of them was sold.",
]


def configs(vocab):
    """The three tiny models, by folder name. Wide initial weights, so that logits and gradients aren't tiny."""
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    common = dict(initializer_range=0.3, **names)
    bert = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, **common)
    distil = dict(dim=32, n_layers=3, n_heads=4, hidden_dim=64, **common)
    return {
        "tiny-bert": (
            BertForSequenceClassification,
            BertConfig(vocab_size=vocab["bert"], max_position_embeddings=40, **bert),
        ),
        "tiny-distilbert": (
            DistilBertForSequenceClassification,
            DistilBertConfig(vocab_size=vocab["bert"], max_position_embeddings=40, **distil),
        ),
        "tiny-roberta": (
            RobertaForSequenceClassification,
            # Positions start at padding_idx + 1 = 2, so 42 rows serve 40 tokens.
            RobertaConfig(
                vocab_size=vocab["roberta"], max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5, **bert
            ),
        ),
    }


def is_norm(name):
    return "LayerNorm" in name or "layer_norm" in name


def randomise(model, seed):
    """Fills every parameter, biases and LayerNorm too: a swapped or forgotten one must show in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if is_norm(name) and name.endswith("weight"):
                p.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                p.copy_(0.2 * noise)
            else:
                p.copy_(0.3 * noise)


def build(cls, config, seed):
    config._attn_implementation = "eager"
    model = cls(config)
    randomise(model, seed)
    return model.eval()


def make_batch(name, config, first, last, seed):
    """Random ids between a first and a last special token, padded to 12."""
    generator = torch.Generator().manual_seed(seed)
    width = max(LENGTHS)
    ids = torch.full((len(LENGTHS), width), config.pad_token_id)
    mask = torch.zeros(len(LENGTHS), width, dtype=torch.long)
    types = torch.zeros(len(LENGTHS), width, dtype=torch.long)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(5, config.vocab_size, (length,), generator=generator)
        ids[row, 0] = first
        if length > 1:
            ids[row, length - 1] = last
        mask[row, :length] = 1
        if name == "tiny-bert" and length >= 7:
            types[row, length // 2 : length] = 1
    return dict(input_ids=ids, attention_mask=mask, token_type_ids=types, labels=torch.tensor(CLASSES))


def call(model, batch):
    """Logits and mean cross entropy; token types only where the family has them."""
    takes = {"input_ids", "attention_mask"} | ({"token_type_ids"} if model.config.model_type == "bert" else set())
    logits = model(**{k: v for k, v in batch.items() if k in takes}).logits
    return logits, torch.nn.functional.cross_entropy(logits, batch["labels"])


def adamw(model):
    decay = [p for n, p in model.named_parameters() if not (n.endswith("bias") or is_norm(n))]
    plain = [p for n, p in model.named_parameters() if n.endswith("bias") or is_norm(n)]
    groups = [{"params": decay, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.999), eps=1e-8)


def reference(model, batch):
    """Logits, loss, gradients, and the parameters after three optimizer steps on the same batch."""
    logits, loss = call(model, batch)
    loss.backward()
    out = dict(batch, logits=logits.detach().clone(), loss=loss.detach().clone())
    out |= {f"grad.{n}": p.grad.clone() for n, p in model.named_parameters()}
    optimizer = adamw(model)
    schedule = get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    lrs, norms, losses = [], [], []
    for _ in range(STEPS):
        optimizer.zero_grad()
        _, loss = call(model, batch)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        lrs.append(schedule.get_last_lr()[0])
        losses.append(loss.item())
        optimizer.step()
        schedule.step()
    out |= {f"after3.{n}": p.detach().clone() for n, p in model.named_parameters()}
    dtype = logits.dtype
    out |= dict(
        grad_norm=torch.tensor(norms[0], dtype=dtype),
        grad_norms=torch.tensor(norms, dtype=dtype),
        losses=torch.tensor(losses, dtype=dtype),
        lrs=torch.tensor(lrs, dtype=torch.float64),
    )
    return out


def save(tensors, path):
    # One key only: safetensors writes several in random order, and the file would change with every run.
    made_with = f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}"
    tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
    save_file(tensors, path, metadata={"made_with": made_with})


def save_model(model, folder, **options):
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, **options)


def is_key_bias(name):
    """Softmax ignores what is added to all scores of a row, so the key's bias has no gradient, only rounding noise,
    which AdamW scales up to whole steps. Nothing can be compared there after a step."""
    return name.endswith(("key.bias", "k_lin.bias"))


def rounding(exact, got):
    """Largest difference between the 32-bit and the 64-bit numbers, by kind: the floor below any tolerance."""
    worst = {}

    def note(kind, a, b):
        if a.numel():
            worst[kind] = max(worst.get(kind, 0.0), (a.double() - b.double()).abs().max().item())

    for name, value in got.items():
        if not value.is_floating_point() or name == "lrs":
            continue
        kind, _, parameter = name.partition(".")
        note(kind + (" of key biases" if is_key_bias(name) else ""), value, exact[name])
        if kind == "after3" and not is_key_bias(name):
            clear = got[f"grad.{parameter}"].abs() > 1e-3
            still = got[f"grad.{parameter}"] == 0
            note("after3 where |grad| > 1e-3", value[clear], exact[name][clear])
            note("after3 where grad = 0", value[still], exact[name][still])
    return worst


def make_tiny(out, tokenizers):
    vocab = {name: len(tokenizer) for name, tokenizer in tokenizers.items()}
    for seed, (name, (cls, config)) in enumerate(configs(vocab).items(), start=1):
        tokenizer = tokenizers["roberta" if name == "tiny-roberta" else "bert"]
        config.pad_token_id = tokenizer.pad_token_id
        model = build(cls, config, seed)
        save_model(model, out / name)
        tokenizer.save_pretrained(out / name)
        batch = make_batch(name, config, tokenizer.cls_token_id, tokenizer.sep_token_id, 10 + seed)
        got = reference(model, batch)
        save(got, out / name / "expected.safetensors")
        print(f"{name}: loss {got['loss']:.4f}, gradient norm {got['grad_norm']:.3f}; 32 against 64 bits:")
        for kind, error in rounding(reference(build(cls, config, seed).double(), batch), got).items():
            print(f"  {error:.1e} {kind}")


def make_variants(out):
    """tiny-bert as other people save it: each folder is config.json and weights."""
    source, home = out / "tiny-bert", out / "variants"

    def load(**options):
        return BertForSequenceClassification.from_pretrained(source, attn_implementation="eager", **options).eval()

    tensors = load_file(source / "model.safetensors")
    bare = {n.removeprefix("bert."): t for n, t in tensors.items() if n.startswith("bert.")}
    positions = torch.arange(40).unsqueeze(0)

    save_model(load().bert, home / "bare")
    save_model(load(), home / "sharded", max_shard_size="60KB")
    batch = load_file(source / "expected.safetensors")
    for name, dtype in [("fp16", torch.float16), ("bf16", torch.bfloat16)]:
        save_model(load(dtype=dtype), home / name)
        # The numbers of a loader that widens to 32 bits.
        logits, loss = call(load(dtype=dtype).float(), batch)
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask", "token_type_ids", "labels")}
        save(dict(inputs, logits=logits, loss=loss), home / name / "expected.safetensors")

    by_hand = {
        "missing": {n: t for n, t in tensors.items() if n != "bert.encoder.layer.1.attention.self.query.weight"},
        "surplus": tensors
        | {
            "bert.embeddings.position_ids": positions,
            "cls.predictions.bias": torch.zeros(tensors["bert.embeddings.word_embeddings.weight"].shape[0]),
            "cls.predictions.transform.dense.weight": torch.eye(32),
            "cls.seq_relationship.weight": torch.ones(2, 32),
        },
        # Names of the first BERT checkpoints, without prefix and head.
        "legacy": {
            n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
            for n, t in bare.items()
        }
        | {"embeddings.position_ids": positions},
    }
    for name, kept in by_hand.items():
        (home / name).mkdir(parents=True)
        shutil.copy(home / "bare/config.json" if name == "legacy" else source / "config.json", home / name)
        save_file(kept, home / name / "model.safetensors", metadata={"format": "pt"})

    # A tokenizer.json that fixes padding and truncation, as sentence-transformers ships it. Both must be switched off.
    fixed = home / "fixed-padding"
    fixed.mkdir(parents=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    tokenizer["padding"] = {
        "strategy": {"Fixed": 16},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    (fixed / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, indent=2) + "\n")
    shutil.copy(source / "tokenizer_config.json", fixed)


def make_tokens(out, tokenizers):
    (out / "tokens").mkdir()
    for name, tokenizer in tokenizers.items():
        text = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in token_cases(tokenizer))
        (out / "tokens" / f"{name}.json").write_text(f"[\n  {text}\n]\n")


def make_minilm(out, folder):
    """The real MiniLM under a head that anybody can compute: weight[i][j] = sin(i * 384 + j) / 10, bias 0."""
    with safe_open(folder / "model.safetensors", "pt") as f:
        assert "pooler.dense.weight" in f.keys(), "this checkpoint has no pooler"
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=2, attn_implementation="eager").eval()
    with safe_open(folder / "model.safetensors", "pt") as f:
        assert torch.equal(f.get_tensor("pooler.dense.weight"), model.bert.pooler.dense.weight.detach())
    with torch.no_grad():
        width = model.config.hidden_size
        head = [[math.sin(i * width + j) / 10 for j in range(width)] for i in range(2)]
        model.classifier.weight.copy_(torch.tensor(head, dtype=torch.float64))
        model.classifier.bias.zero_()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(MINILM_TEXTS, padding="longest", truncation=True, max_length=256, return_tensors="pt")
    batch = dict(encoded, labels=torch.tensor([i % 2 for i in range(len(MINILM_TEXTS))]))
    logits, loss = call(model, batch)
    loss.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    pooled = model.bert(**encoded).pooler_output
    names = ("classifier.weight", "classifier.bias", "bert.pooler.dense.bias", "bert.embeddings.LayerNorm.weight")
    gradients = {f"grad.{n}": model.get_parameter(n).grad for n in names}
    save(
        dict(batch, logits=logits, loss=loss, pooled=pooled, grad_norm=norm, **gradients),
        out / "minilm_expected.safetensors",
    )
    ids = [row[row_mask.bool()].tolist() for row, row_mask in zip(encoded["input_ids"], encoded["attention_mask"])]
    rows = [dict(text=t, label=i % 2, ids=row) for i, (t, row) in enumerate(zip(MINILM_TEXTS, ids))]
    text = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (out / "minilm_texts.json").write_text(f"[\n  {text}\n]\n")
    print(f"minilm: lengths {[len(row) for row in ids]}, loss {loss:.4f}, gradient norm {norm:.4f}")


def check(fresh, committed):
    """Compares two fixture folders: text and weights exactly, results within 1e-4. Returns whether they agree."""
    agree = True
    for path in sorted(p for p in fresh.rglob("*") if p.is_file()):
        other = committed / path.relative_to(fresh)
        if not other.exists():
            line = "not committed"
        elif path.suffix == ".safetensors":
            a, b = load_file(path), load_file(other)
            names = [n for n in a if not (n.startswith("after3") and is_key_bias(n))]
            if a.keys() != b.keys():
                line = "other tensors"
            else:
                worst = max((a[n].double() - b[n].double()).abs().max().item() for n in names)
                line = f"differs by {worst:.1e}" if worst > (1e-4 if path.name.endswith("expected.safetensors") else 0) else ""
        else:
            line = "" if path.read_bytes() == other.read_bytes() else "differs"
        if line:
            agree = False
            print(f"{path.relative_to(fresh)}: {line}")
    return agree


def make(out, minilm):
    for name in ["tiny-bert", "tiny-distilbert", "tiny-roberta", "variants", "tokens"]:
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    tokenizers = {"bert": bert_tokenizer(), "roberta": roberta_tokenizer()}
    make_tiny(out, tokenizers)
    make_variants(out)
    make_tokens(out, tokenizers)
    if minilm:
        make_minilm(out, minilm)


def main():
    home = Path(__file__).resolve().parent.parent / "fixtures"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=home, help="where to write (default: tests/fixtures)")
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2; without it its two files are left alone")
    parser.add_argument("--check", action="store_true", help="write elsewhere and compare with what is committed")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if not args.check:
        return make(args.out, args.minilm)
    with tempfile.TemporaryDirectory() as fresh:
        make(Path(fresh), args.minilm)
        if not check(Path(fresh), args.out):
            sys.exit(1)
        print("same as committed")


if __name__ == "__main__":
    main()
