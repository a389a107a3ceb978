"""Replaces interpreter/run.py: it reads the settings of a run, writes a log with invented numbers, and trains nothing.

Two settings have another meaning here. `timeout`: how many milliseconds pass before the log is written; `skip_nonfinite`: the
run then fails instead of writing a log. Whatever the other settings are, the log has ITERATIONS iterations.

Environment variables. STUB_JOURNAL: a file that gets a line for the start of each run, and one for its end unless the run fails
or is killed; STUB_AFTER_MS: how many milliseconds the run goes on after its last iteration.
"""

from chimerac.interpreter.launch.startup import begin_process

begin_process()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

from chimerac.interpreter.launch.options import parse_options  # noqa: E402

ITERATIONS = 5
settings = parse_options(sys.argv[1:])
assert settings.log_file is not None


def note(what: str) -> None:
    """Write a line to the journal, if there is one.

    Args:
        what: start or end.
    """
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
    for number in range(1, ITERATIONS + 1):
        line = {"iteration": number, "iteration_s": 0.1 * number, "bubble": [0.25] * ranks, "loss": 5 - number / 10}
        line |= {"peak_memory_bytes": [1000 * number] * ranks, "tokens_per_second": 100.0, "oversubscribed": ranks > 2}
        line |= {"recompute_s": [0.0] * ranks}
        line |= {"value_wait_s": [0.01] * ranks, "send_wait_s": [0.0] * ranks, "all_reduce_wait_s": [0.02] * ranks}
        log.write(json.dumps(line) + "\n")
time.sleep(int(os.environ.get("STUB_AFTER_MS", "0")) / 1000)
note("end")
