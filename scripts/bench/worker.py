"""Asks an autofit worker for measurements directly, without a search."""

import json
import os
import subprocess

# What a probe of the search measures while it explores.
EXPLORE = {"warmup": 1, "min_timed": 2, "max_timed": 8, "seconds": 2.0, "evaluate": False}


class OutOfMemory(Exception):
    """The cap was reached."""


class Worker:
    """A worker process that serves any number of probes; a new one takes its place when it runs out of memory."""

    def __init__(self, binary):
        self.binary = str(binary)
        self.start()

    def start(self):
        self.refusals, writer = os.pipe()
        os.set_blocking(self.refusals, False)
        self.process = subprocess.Popen([self.binary, "__worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, pass_fds=(writer,),
                                        env={**os.environ, "AUTOFIT_OOM_FD": str(writer)})
        os.close(writer)

    def end(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        os.close(self.refusals)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def probe(self, model, knobs, effective, longest, typical=(), timed=None, cap=None, distinct=None, **effort):
        """The measurement after two optimizer steps at the longest rows and, if given, `timed` micro-batches.

        Raises OutOfMemory where the cap was reached."""
        effort = {**EXPLORE, **effort}
        if timed is not None:
            effort.update(min_timed=timed, max_timed=timed, seconds=0.0)
        shapes = {"longest": longest, "typical": list(typical), "distinct": distinct}
        spec = {"model": model, "num_labels": 2, "knobs": knobs, "effective_batch": effective, "seed": 42,
                "shapes": shapes, "effort": effort}
        job = {"protocol": 1, "device": "cpu", "cap_bytes": cap, "task": {"probe": spec}}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            message = json.loads(line)
            if "report" not in message:
                continue
            if "measured" in message["report"]:
                return message["report"]["measured"]
            raise RuntimeError(f"{knobs}: {message['report']}")
        refused = read(self.refusals)
        self.end()
        self.start()
        if b" cap=" in refused:
            raise OutOfMemory(refused.decode())
        raise RuntimeError(f"the worker ended without a report on {knobs}")


def read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def knobs(micro, layers=0, precision="fp32"):
    return {"precision": precision, "micro_batch": micro, "checkpoint_layers": layers}
