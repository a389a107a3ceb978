"""What commands print, as a console block of README and docs shows it."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from chimerac.compiler.command.main import main

ROOT = Path(__file__).resolve().parent.parent
SLOW = "make"  # what a command of a console block begins with that only --slow runs


def chimerac(arguments: Sequence[str]) -> str:
    """Return what the command prints, findings too."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out), suppress(SystemExit):  # argparse exits
        main(arguments)
    return in_checkout(out.getvalue())


def in_checkout(text: str) -> str:
    """Return what a command says as it would say it in the checkout's root, where files are named from there."""
    return text.replace(f"{ROOT}{os.sep}", "")


def command_output(line: str) -> str:
    """Return what a line of a console block prints."""
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
    # torchrun's remark about threads and pytest's marks of progress carry no fact.
    return "".join(x for x in result.stdout.splitlines(keepends=True) if not re.match(r"[WI]\d{4} |\*{9}|bringing up nodes", x))


def console(body: str, slow: bool) -> str:
    """Return a console block with the output of its commands."""
    filled = ""
    commands = re.split(r"^(?=\$ )", body, flags=re.MULTILINE)
    for command in filter(None, commands):
        line = command.split("\n", 1)[0]
        filled += command if line.startswith(f"$ {SLOW}") and not slow else f"{line}\n{command_output(line[2:])}"
    return filled
