"""Runs the commands in the console blocks of README and docs, and returns their output."""

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

SLOW = "make"  # commands that begin with this word run only with `--slow` (tools/figures.py)


def chimerac(arguments: Sequence[str]) -> str:
    """Return what the command chimerac prints on stdout and stderr. Lines end with a line feed on every system."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):  # argparse exits
        main(arguments)
    return in_checkout(out.getvalue().replace("\r\n", "\n"))


def in_checkout(text: str) -> str:
    """Return a text in which the paths of files in the checkout are relative to its root."""
    return text.replace(f"{ROOT}{os.sep}", "")


def command_output(line: str) -> str:
    """Return the output of a command line in a console block, without spaces at the ends of lines.

    Filters may follow the command: `| head -LINES` and `| tail -LINES`.
    """
    line, *filters = line.split(" | ")
    name, *arguments = shlex.split(line)
    output = chimerac(arguments) if name == "chimerac" else _process_output(line)
    for command_filter in filters:
        filter_name, count = command_filter.split(" -")
        lines = output.splitlines(keepends=True)
        output = "".join(lines[: int(count)] if filter_name == "head" else lines[-int(count) :])
    return re.sub(r"[ \t]+$", "", output, flags=re.MULTILINE)


def _process_output(line: str) -> str:
    """Set up the virtual environment, run a command as a process, and return its output."""
    subprocess.run(["make", "setup"], cwd=ROOT, check=True, capture_output=True)
    result = subprocess.run(
        shlex.split(line), cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
    )
    # Leave out log lines of torchrun, and the first line of pytest-xdist.
    lines = result.stdout.splitlines(keepends=True)
    return "".join(line for line in lines if not re.match(r"[WI]\d{4} |\*{9}|bringing up nodes", line))


def console(body: str, slow: bool) -> str:
    """Return the text of a console block with the current output of its commands.

    Args:
        slow: whether commands that begin with SLOW are run too. If not, their output in the block stays as it is.
    """
    filled = ""
    commands = re.split(r"^(?=\$ )", body, flags=re.MULTILINE)  # each with the output that it has in the block
    for command in filter(None, commands):
        line = command.split("\n", 1)[0]
        filled += command if line.startswith(f"$ {SLOW}") and not slow else f"{line}\n{command_output(line[2:])}"
    return filled
