"""Two tiny tokenizers with the pipelines of BERT and RoBERTa, and the texts that test them."""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizerFast, RobertaTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["the", "a", "film", "was", "good", "not", "bad", "and", "very", "is", "this", "it", "play", "dull", "we"]
PIECES = ["##ing", "##ed", "##s", "##er", "##ly", "##st"]
SIGNS = [".", ",", "!", "?", "'", "-", "日", "本", "ש", "##ל", "##ו", "##ם", "é"]

BPE_TEXT = [
    "the film was good and the play was not bad",
    "this is a very dull film, is it not?",
    "we played the film and it was the best film of the best",
    "good, better, best: it is the very best thing we had seen this year",
    "playing, played, player; not dull at all!",
]

LONG = "the film was not very good and we played it again. " * 8

TEXTS = [
    "",
    " ",
    "the film was good",
    "The FILM was Good!",
    "  leading, double  spaces and a trailing one ",
    "tabs\tand\nnew lines\r\nand\u00a0hard spaces",
    "playing played players dullest",
    "don't re-play it... 3.14, 100%",
    "good 👍🏽 film 🎬, 👨‍👩‍👧",
    "cafe\u0301 café naïve Ångström ﬁlm",  # combining mark, composed letters, a ligature
    "z\u0335\u0322a\u0300\u0301\u0302l\u0327go",
    "שלום good שָׁלוֹם",
    "فيلم جيد جدا",
    "日本 film 映画 한국어",
    "zero\u200bwidth \ufeffmark \u0007bell \u202eoverride",
    "[CLS] the film [SEP] [MASK] <s> </s> <mask>",
    "supercalifragilisticexpialidocious" * 4,  # longer than WordPiece's 100 characters
    LONG,
]

PAIRS = [
    ("the film was good", "it was not bad"),
    ("", "the film"),
    ("the film", ""),
    ("", ""),
    (LONG, "it was not bad"),
    ("it was not bad", LONG),
    (LONG, "dull " * 60),
    ("good 👍", "שלום 日本"),
]


def bert_tokenizer():
    """WordPiece, lower case, 120 words, special tokens at the start."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]
    vocab += [*"0123456789", *(f"##{c}" for c in "0123456789"), *WORDS, *PIECES, *SIGNS]
    vocab = list(dict.fromkeys(vocab))
    vocab += [f"[unused{i}]" for i in range(120 - len(vocab))]
    ids = {word: i for i, word in enumerate(vocab)}
    return through_file(BertTokenizerFast(vocab=ids, do_lower_case=True, model_max_length=40))


def roberta_tokenizer():
    """Byte-level BPE with every byte, 320 words, learned from a few lines."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(BPE_TEXT, trainer)
    learned = json.loads(core.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    return through_file(RobertaTokenizerFast(vocab=learned["vocab"], merges=merges, model_max_length=40))


def through_file(tokenizer):
    """Checks that a tokenizer survives being saved and read by the class that its files name, and returns it."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        saved = json.loads((Path(folder) / "tokenizer.json").read_text())
        loaded = AutoTokenizer.from_pretrained(folder)
    assert type(loaded) is type(tokenizer)
    assert json.loads(loaded.backend_tokenizer.to_str()) == saved, "reading changed the tokenizer"
    return tokenizer


def token_cases(tokenizer):
    """What the fast tokenizer makes of every text and pair, at several lengths."""
    cases = []

    def add(max_length, text, pair=None):
        encoded = tokenizer(text, pair, truncation="longest_first", max_length=max_length).encodings[0]
        row = dict(text=text, max_length=max_length, ids=encoded.ids, type_ids=encoded.type_ids)
        cases.append(row if pair is None else dict(text=text, pair=pair) | row)

    for text in TEXTS:
        add(40, text)
    for length in (2, 3, 12):
        add(length, LONG)
        add(length, "good")
    for text, pair in PAIRS:
        add(40, text, pair)
        add(9, text, pair)
    return cases
