"""Starts a worker and keeps a copy of every job it is given: `record_jobs.py FILE WORKER...`, for --launcher."""

import os
import subprocess
import sys


def main():
    descriptor = os.environ.get("AUTOFIT_OOM_FD")
    worker = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, pass_fds=[int(descriptor)] if descriptor else [])
    with open(sys.argv[1], "ab") as copy:
        for line in sys.stdin.buffer:
            copy.write(line)
            copy.flush()
            worker.stdin.write(line)
            worker.stdin.flush()
    worker.stdin.close()
    status = worker.wait()
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)


main()
