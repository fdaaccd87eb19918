#!/usr/bin/env python3
"""What other tools answer under a limit of memory: one tool, one process, one line of JSON.

    peer.py fixed|accelerate|power|binsearch|trainer --start 32 --limit BYTES

`fixed` runs the batch `--start` alone, for the truth. DistilBERT with random weights, fp32, AdamW, rows of 128 tokens, two
threads, three steps a trial. The limit is on the data segment (RLIMIT_DATA), so that PyTorch's CPU allocator fails as a
full card would. Needs torch, transformers, accelerate and lightning.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import warnings

STEPS, LENGTH, ROWS = 3, 128, 2048
LOG = []


def rows(count):
    import torch
    draw = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(5, 30522, (count, LENGTH), generator=draw),
            "attention_mask": torch.ones(count, LENGTH, dtype=torch.long),
            "labels": torch.randint(0, 2, (count,), generator=draw)}


def dataset():
    data = rows(ROWS)
    return [{key: value[index] for key, value in data.items()} for index in range(ROWS)]


def model():
    import torch
    from transformers import AutoModelForSequenceClassification, DistilBertConfig
    torch.manual_seed(0)
    torch.set_num_threads(2)
    return AutoModelForSequenceClassification.from_config(DistilBertConfig(num_labels=2)).train()


def optimizer(of):
    import torch
    return torch.optim.AdamW(of.parameters(), lr=2e-5, weight_decay=0.01)


def fixed(start):
    net = model()
    update, batch = optimizer(net), rows(start)
    for _ in range(STEPS):
        LOG.append(start)
        net(**batch).loss.backward()
        update.step()
        update.zero_grad(set_to_none=True)
    return start


def accelerate(start):
    from accelerate.utils import find_executable_batch_size
    return find_executable_batch_size(starting_batch_size=start)(lambda batch_size: fixed(batch_size))()


def lightning(start, mode):
    import lightning
    import torch
    from lightning.pytorch.tuner import Tuner
    data = dataset()

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.batch_size = model(), start

        def training_step(self, batch, _):
            LOG.append(len(batch["labels"]))
            return self.net(**batch).loss

        def configure_optimizers(self):
            return optimizer(self.net)

        def train_dataloader(self):
            return torch.utils.data.DataLoader(data, batch_size=self.batch_size)

    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_steps=STEPS, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, default_root_dir=tempfile.mkdtemp())
    return Tuner(trainer).scale_batch_size(Module(), mode=mode, init_val=start, steps_per_trial=STEPS)


def trainer(start):
    from transformers import Trainer, TrainingArguments

    class Counted(Trainer):
        def training_step(self, model, inputs, *more, **named):
            LOG.append(len(inputs["labels"]))
            return super().training_step(model, inputs, *more, **named)

    arguments = TrainingArguments(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=start, auto_find_batch_size=True,
                                  max_steps=STEPS, use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True)
    tool = Counted(model=model(), args=arguments, train_dataset=dataset())
    tool.train()
    return tool._train_batch_size


TOOLS = {"fixed": fixed, "accelerate": accelerate, "trainer": trainer,
         "power": lambda start: lightning(start, "power"), "binsearch": lambda start: lightning(start, "binsearch")}


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("tool", choices=TOOLS)
    options.add_argument("--start", type=int, required=True)
    options.add_argument("--limit", type=int, required=True, help="bytes above what the imports take; 0: none")
    options = options.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
    begun = time.monotonic()
    import torch  # noqa: F401
    import transformers
    _ = transformers.AutoModelForSequenceClassification, transformers.DistilBertConfig
    if options.limit:
        with open("/proc/self/status", encoding="ascii") as status:
            data = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (options.limit + data,) * 2)
    try:
        answer, error = TOOLS[options.tool](options.start), None
    except BaseException as failure:
        answer, error = None, f"{type(failure).__name__}: {str(failure)[:200]}"
    print(json.dumps({"tool": options.tool, "answer": answer, "error": error, "samples": sum(LOG), "tried": LOG,
                      "seconds": time.monotonic() - begun}))
    sys.exit(0 if error is None else 3)


if __name__ == "__main__":
    main()
