"""PyTorch's side of `step.py`: trains one model in eager mode as asked, line by line.

    torch_step.py MODEL BATCH LENGTH      MODEL: distilbert, bert-base or minilm, random weights of the true shape

First prints a line of JSON with the peak bytes of all tensors in a training step. Then, for each number that it
reads, runs so many steps and prints a list of their seconds. AdamW, dropout on, fp32, two threads.
"""

import json
import sys
import time

import torch
import transformers
from torch.profiler import profile

MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def build(name):
    torch.manual_seed(0)
    torch.set_num_threads(2)
    config = {"distilbert": lambda: transformers.DistilBertConfig(), "bert-base": lambda: transformers.BertConfig(),
              "minilm": lambda: transformers.BertConfig(**MINILM)}[name]()
    config.num_labels = 2
    return transformers.AutoModelForSequenceClassification.from_config(config).train()


def step(model, optimizer, batch):
    started = time.perf_counter()
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - started


def held(model, optimizer, batch):
    """Bytes of tensors that live between steps."""
    state = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    storages = {}
    for tensor in [*model.parameters(), *model.buffers(), *batch.values(), *state]:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def peak(model, optimizer, batch):
    """Those, and the highest sum of what one step takes and gives back, in the order in which it does."""
    base = held(model, optimizer, batch)
    with profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        step(model, optimizer, batch)
    events = [(e.start_ns(), e.nbytes()) for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    level = highest = 0
    for _, change in sorted(events):
        level += change
        highest = max(highest, level)
    return base + highest


def main():
    name, size, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    batch = {"input_ids": torch.randint(5, 30522, (size, length)),
             "attention_mask": torch.ones(size, length, dtype=torch.long), "labels": torch.randint(0, 2, (size,))}
    step(model, optimizer, batch)
    print(json.dumps({"peak_bytes": peak(model, optimizer, batch)}), flush=True)
    for line in sys.stdin:
        print(json.dumps([step(model, optimizer, batch) for _ in range(int(line))]), flush=True)


main()
