"""The output of commands in the console blocks of README and docs."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress

from chimerac.compiler.command.main import main
from tools import ROOT

SLOW = "make"  # commands that begin with this word are run only with --slow


def chimerac(arguments: Sequence[str]) -> str:
    """Return the output of the command chimerac, including findings. Its lines end with a line feed on every system."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):  # argparse exits
        main(arguments)
    return in_checkout(out.getvalue().replace("\r\n", "\n"))


def in_checkout(text: str) -> str:
    """Return the output with paths relative to the root of the checkout."""
    return text.replace(f"{ROOT}{os.sep}", "")


def command_output(line: str) -> str:
    """Return the output of a command line in a console block. Filters are `head -LINES` and `tail -LINES`."""
    line, *filters = line.split(" | ")
    name, *arguments = shlex.split(line)
    output = chimerac(arguments) if name == "chimerac" else _slow(line)
    for part in filters:
        verb, count = part.split(" -")
        lines = output.splitlines(keepends=True)
        output = "".join(lines[: int(count)] if verb == "head" else lines[-int(count) :])
    return re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)


def _slow(line: str) -> str:
    subprocess.run(["make", "setup"], cwd=ROOT, check=True, capture_output=True)
    result = subprocess.run(
        shlex.split(line), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
    )
    # Leave out log lines of torchrun and the progress of pytest.
    return "".join(x for x in result.stdout.splitlines(keepends=True) if not re.match(r"[WI]\d{4} |\*{9}|bringing up nodes", x))


def console(body: str, slow: bool) -> str:
    """Return a console block with the current output of its commands."""
    filled = ""
    commands = re.split(r"^(?=\$ )", body, flags=re.MULTILINE)
    for command in filter(None, commands):
        line = command.split("\n", 1)[0]
        filled += command if line.startswith(f"$ {SLOW}") and not slow else f"{line}\n{command_output(line[2:])}"
    return filled
