"""Replaces interpreter/run.py: it reads the config file of a run, writes a log with invented numbers, and trains nothing.

`timeout` of the settings is how many milliseconds it takes, and a run with `skip_nonfinite` fails. Each start and each end is a
line of the file that the environment variable STUB_JOURNAL names. STUB_AFTER_MS is how long it runs after its last iteration.
"""

from chimerac.interpreter.launch.startup import begin_process

begin_process()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

from chimerac.interpreter.launch.options import parse_options  # noqa: E402

settings = parse_options(sys.argv[1:])
assert settings.log_file is not None


def note(what: str) -> None:
    journal = os.environ.get("STUB_JOURNAL")
    if journal:
        with Path(journal).open("a") as file:
            file.write(f"{time.monotonic()} {what} {settings.log_file.parent.name} {os.getpid()}\n")


note("start")
time.sleep(settings.timeout / 1000)
if settings.skip_nonfinite:
    sys.exit("this run fails")
ranks = dict(settings.parameters)["D"]
with settings.log_file.open("a") as log:
    log.write(json.dumps({"format": "chimera-log", "version": 1}) + "\n")
    for number in range(1, 6):
        line = {"iteration": number, "iteration_s": 0.1 * number, "bubble": [0.25] * ranks, "loss": 5 - number / 10}
        line |= {"peak_memory_bytes": [1000 * number] * ranks, "tokens_per_second": 100.0, "oversubscribed": ranks > 2}
        line |= {"recompute_s": [0.0] * ranks}
        line |= {"value_wait_s": [0.01] * ranks, "send_wait_s": [0.0] * ranks, "all_reduce_wait_s": [0.02] * ranks}
        log.write(json.dumps(line) + "\n")
time.sleep(int(os.environ.get("STUB_AFTER_MS", "0")) / 1000)
note("end")
