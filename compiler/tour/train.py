"""The last part of the tour: a short training on two ranks, in processes of their own."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

from chimerac.chimera_ir.files import write_stdout
from chimerac.compiler.tour.guide import Guide, schedules

OPTIONS = ("-p", "D=2", "-p", "N=4", "--model", "gpt-nano", "--iterations", "20", "--timeout", "60")


def run(guide: Guide) -> int:
    """Run this part, and return the exit status: that of the training, or 1 without torch."""
    guide.title("Train: the same program on real ranks")
    guide.say("""Each rank is a process that executes its instructions one after the other: forwards, backwards, messages,
        all-reduces of gradients. Here two ranks train a small GPT on the texts of Python's standard library, on the
        processors of this host. It takes some seconds.""")
    if importlib.util.find_spec("torch") is None:
        guide.say("""Training needs torch, which is not installed here. This installs it: pip install 'chimerac[train]'. The
            other parts of the tour need no torch.""")
        return 1
    schedule = guide.choose("Which schedule?", schedules()["trained"])
    guide.say("What the two ranks will do in an iteration, as predicted:")
    guide.command(schedule, "-p", "D=2", "-p", "N=4", "--emit", "timeline")
    guide.say("""Now the training. `gradients equal one process` means that the first gradients are, up to rounding, those of
        one process with the whole model. The loss falls during the training. At the end there is a table of the ranks:
        `bubble` is the measured idle share of each rank, and the next three columns say for what the rank waited.""")
    status = _train(schedule)
    if status:
        guide.say(f"The training ended with exit status {status}. The message above says why.")
        return status
    guide.say("""The measured bubble is usually larger than the predicted one: this model is so small that messages and the
        start of each task take as long as the computation, and the ranks share the processors of one host. docs/training.md
        describes the options, and docs/runtime.md how to train your own model in your own loop.""")
    return 0


def _train(schedule: str) -> int:
    """Start the training and return its exit status. The process has the terminal, so Ctrl-C reaches it too."""
    script = Path(str(resources.files("chimerac").joinpath("interpreter", "run.py"))).resolve()
    relative = os.path.relpath(script)
    shown = ["python", str(script) if relative.startswith("..") else relative, schedule, *OPTIONS]
    write_stdout(f"\n$ {shlex.join(shown)}\n")
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with subprocess.Popen([sys.executable, str(script), schedule, *OPTIONS], env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C reached it as well; it ends its ranks
            raise
