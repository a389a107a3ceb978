"""`chimerac watch`: compile a file again whenever it changes, and show its timeline, another product, or its findings."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse, render, visible
from chimerac.chimera_ir.files import write_stderr, write_stdout
from chimerac.compiler.command.compile import product
from chimerac.compiler.command.files import coloured, print_findings
from chimerac.compiler.command.verbs import watch_parser
from chimerac.compiler.library import find

POLL_S = 0.15  # between two looks at the file
QUIET_S = 0.05  # a file that has changed within this time may still be being written
MAX_CHECKS = 20  # of a file, QUIET_S apart; after them it is shown even if it still changes
OTHER_LINES = 2  # of a terminal: the one with the name of the file, and the one of the cursor
CLEAR = "\x1b[H\x1b[2J"  # moves the cursor to the top and clears the screen

# Of a file: the time of its last change in nanoseconds, its size in bytes, and its inode; None if there is no file.
State = tuple[int, int, int] | None


def run(argv: Sequence[str]) -> int:
    """Watch until Ctrl-C, and return the exit status: 130, or that of findings about the command line or stdout."""
    parser = watch_parser()
    options = parser.parse_args(argv)
    try:
        if options.schedule == "-":
            raise refuse("E002", "watch -: stdin cannot change", help="give a file")
        path = find(options.schedule).name
        _watch(options, parser, path)
    except ChimeraError as error:
        return print_findings(error, options.color)
    except KeyboardInterrupt:
        write_stderr("\nno longer watching\n")
        return 130


def _watch(options: argparse.Namespace, parser: argparse.ArgumentParser, path: str) -> NoReturn:
    """Show the product of the file, and again after every change of the file or of the terminal's size, until Ctrl-C."""
    shown: tuple[State, os.terminal_size] | None = None
    while True:
        state, size = _settled(path), shutil.get_terminal_size()
        if (state, size) != shown:
            _show(path, _text(options, parser, path, state), options)
            shown = (state, size)
        time.sleep(POLL_S)


def _state(path: str) -> State:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _settled(path: str) -> State:
    """Return the state of a file, after waiting until it seems to be written completely.

    A file that does not exist may be about to be replaced, so it is looked for again after QUIET_S.
    """
    before = _state(path)
    for _ in range(MAX_CHECKS):
        if before is not None and time.time_ns() - before[0] > QUIET_S * 1e9:
            break
        time.sleep(QUIET_S)
        after = _state(path)
        if after == before:
            break
        before = after
    return before


def _text(options: argparse.Namespace, parser: argparse.ArgumentParser, path: str, state: State) -> str:
    """Return what is shown: the product, the findings, or that there is no file."""
    if state is None:
        return f"there is no file {visible(path)} now; waiting for it\n"
    try:
        text = product(options, parser, ())
    except ChimeraError as error:
        return render(error.diagnostics, coloured(options.color, sys.stdout))
    assert isinstance(text, str), "pictures are no choices of --emit"
    return text


def _show(path: str, text: str, options: argparse.Namespace) -> None:
    """Write a text below a line with the file and the time.

    On a terminal the text is cut to the terminal's height, and replaces what was shown before.
    """
    head = f"{visible(path)}  {time.strftime('%H:%M:%S')}"
    if sys.stdout is None or not sys.stdout.isatty():
        write_stdout(f"--- {head}\n{text}")
        return
    lines, height = text.splitlines(), shutil.get_terminal_size().lines
    available = max(height - OTHER_LINES, 3)
    if len(lines) > available:
        more = len(lines) - available + 1
        lines = [
            *lines[: available - 1],
            f"... {more} more lines: make the terminal higher, or use chimerac {options.schedule}",
        ]
    write_stdout(f"{CLEAR}{head}  (Ctrl-C ends)\n" + "".join(f"{line}\n" for line in lines))
