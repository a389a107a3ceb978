"""What `chimerac explain` prints: the pages of codes, or the list of all codes."""

from __future__ import annotations

import difflib
import io
import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import groupby
from pathlib import Path

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.compiler.explain.entries import Entry, entries, hundreds

Command = Callable[[Sequence[str]], int]  # the command `chimerac`: arguments to exit status

PROSE = 100  # the most characters of a line of prose, which is wrapped
WIDTH = 105  # the most characters of a line of an example; longer lines are cut
MAX_EQUAL = 3  # of equal lines in succession, this many are shown


def explain(words: Sequence[str], chimerac: Command) -> str:
    """Return the pages of these codes; without any, the list of all codes. A code may be written E303, e303 or error[E303].

    Args:
        chimerac: runs the examples.

    Raises ChimeraError: E002 for a word that names no code, E003 as `run`.
    """
    return "\n".join(page(entries()[code_of(word)], chimerac) for word in words) if words else index()


def index() -> str:
    """Return the list of all codes with their titles."""
    blocks = (f"{h.title}\n" + "".join(f"  {e.code}  {e.title}\n" for e in h.entries) for h in hundreds())
    return "\n".join(blocks) + "\nchimerac explain CODE shows more: why it happens, a wrong example and its correction\n"


def code_of(word: str) -> str:
    """Return the code that a word names.

    Raises ChimeraError E002 for a word that is not written like a code, and for a code that does not exist, with the nearest
    ones.
    """
    codes = sorted(entries())
    digits = re.fullmatch(r"\W*(?:error)?\W*[eE]?([0-9]{1,4})\W*", word)
    if not digits:
        raise refuse("E002", f"explain {word}: expected a code like E303", help="chimerac explain lists all codes")
    code = f"E{digits[1]:0>3}"
    if code not in codes:
        near = sorted(codes, key=lambda k: (abs(int(k[1:]) - int(code[1:])), k))[:3]
        nearest = "; ".join(f"{k} {entries()[k].title}" for k in sorted(near))
        raise refuse("E002", f"explain {word}: there is no code {code}", help=f"the nearest are: {nearest}")
    return code


def page(e: Entry, chimerac: Command) -> str:
    """Return the page of a code: why it happens, a wrong example with its `transcript`, and the correction."""
    parts = [f"{e.code}: {e.title}", textwrap.fill(e.why, PROSE, break_on_hyphens=False)]
    if e.file:
        parts.append(f"wrong, {e.file}:\n\n{_indented(shortened(e.wrong))}")
    parts.append(("" if e.file else "wrong:\n\n") + _indented(transcript(e, chimerac)))
    parts.append(textwrap.fill(f"corrected: {e.corrected}", PROSE, break_on_hyphens=False) + f"\n\n{_indented(correction(e))}")
    return "\n\n".join(parts) + "\n"


def _indented(text: str) -> str:
    return textwrap.indent(text.rstrip("\n"), "    ")


def shortened(text: str) -> str:
    """Return a text as it is shown: lines longer than WIDTH are cut, and of equal lines in succession MAX_EQUAL are kept."""
    lines: list[str] = []
    for line, equal in groupby(text.splitlines()):
        number = len(list(equal))
        shown = line if len(line) <= WIDTH else line[: WIDTH - 4] + " ..."
        lines += [shown] * min(number, MAX_EQUAL)
        lines += [f"    ... and {number - MAX_EQUAL:,} more such lines"] if number > MAX_EQUAL else []
    return "".join(f"{line}\n" for line in lines)


def transcript(e: Entry, chimerac: Command) -> str:
    """Return the command of the wrong example. A chimerac command is run here; what it prints on stderr follows."""
    printed = run(e.file, e.wrong, e.run, chimerac)[1] if e.run.startswith("chimerac ") else ""
    return "".join(f"{line}\n" for line in _commands(e.run)) + printed


def correction(e: Entry) -> str:
    """Return the lines and the commands that differ between the wrong and the corrected example, marked - and +.

    They are shown with one line of context on each side.
    """
    wrong, right = [], []
    if e.wrong != e.right:
        wrong, right = shortened(e.wrong).splitlines(), shortened(e.right).splitlines()
    if e.run != e.rerun:
        wrong, right = wrong + _commands(e.run), right + _commands(e.rerun)
    # Without the first three lines: the names of two files, and the line numbers of the first change.
    _, _, _, *lines = difflib.unified_diff(wrong, right, n=1, lineterm="")
    return "".join(f"{'  ...' if line.startswith('@@') else f'{line[0]} {line[1:]}'.rstrip()}\n" for line in lines)


def _commands(text: str) -> list[str]:
    return [f"$ {line}" for line in text.splitlines()]


def run(file: str, text: str, command: str, chimerac: Command) -> tuple[int, str]:
    """Run a command line on an example, in a temporary folder. Return the exit status and what it prints on stderr.

    Args:
        file, text: the name and the text of the example; no file is written if the name is ''.

    In what is printed, paths below the caller's current folder are relative to it.

    Raises ChimeraError E003 if the folder or the example cannot be written.
    """
    printed = io.StringIO()
    try:
        below_here = f"{os.getcwd()}{os.sep}"
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            if file:
                Path(file).write_text(text, encoding="utf-8")
            with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(printed):
                status = chimerac(shlex.split(command)[1:])
    except OSError as error:
        raise refuse("E003", f"the example cannot be written: {error.strerror}") from None
    return status, printed.getvalue().replace(below_here, "")
