"""Asks an autofit worker for measurements directly, without a search."""

import json
import subprocess


class Worker:
    """One worker process: it serves any number of probes."""

    def __init__(self, binary):
        self.process = subprocess.Popen([str(binary), "__worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def probe(self, model, knobs, effective, longest, typical=(), timed=1, warmup=0, evaluate=False):
        """The measurement of `timed` micro-batches after two optimizer steps at the longest rows."""
        spec = {"model": model, "num_labels": 2, "knobs": knobs, "effective_batch": effective, "seed": 1,
                "shapes": {"longest": longest, "typical": list(typical)},
                "effort": {"warmup": warmup, "min_timed": timed, "max_timed": timed, "seconds": 0.0,
                           "evaluate": evaluate}}
        job = {"protocol": 1, "device": "cpu", "cap_bytes": None, "task": {"probe": spec}}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            message = json.loads(line)
            if "report" in message:
                return message["report"]["measured"]
        raise RuntimeError(f"the worker ended without a report on {knobs}")


def knobs(micro, layers=0, precision="fp32"):
    return {"precision": precision, "micro_batch": micro, "checkpoint_layers": layers}
