"""The schedule of the command line. For a command of other tools, such as `run`, a finding says what does the same here."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.compiler.library import find

# What to write here -> the words that other tools have for it. {} is the schedule.
_WORDS = {
    "python interpreter/run.py {}": ("run", "train", "launch", "exec", "execute", "start"),
    "chimerac {}": ("verify", "check", "compile", "build", "validate", "lint"),
    "chimerac {} --emit timeline": ("draw", "show", "view", "print", "timeline"),
    "chimerac {} --emit svg -o picture.svg": ("plot", "picture", "render"),
    "chimerac {} --emit report": ("report", "simulate", "analyze", "info", "stats"),
    "chimerac fmt {}": ("format",),
    "chimerac --list": ("list", "ls"),
    "chimerac --help": ("help",),
}
OTHER_WORDS = {word: command for command, words in _WORDS.items() for word in words}


def find_schedule(name: str, verbs: Collection[str], rest: Sequence[str] = ()) -> Source:
    """Return the text of a file, or of the library's schedule of that name.

    Args:
        verbs: suggested too, if one of them is similar to the name.
        rest: the words of the command line that are neither the name nor known options: if the name is a command of another
            tool, the first of them is the schedule, unless it begins with -.

    Raises ChimeraError E001 for a text that is not found or cannot be read.
    """
    try:
        return find(name, verbs)
    except ChimeraError as error:
        command = OTHER_WORDS.get(name)
        if command is None:
            raise
        schedule = shlex.quote(rest[0]) if rest and not rest[0].startswith("-") else "SCHEDULE"
        raise ChimeraError(replace(d, help=f"write: {command.format(schedule)}") for d in error.diagnostics) from None
