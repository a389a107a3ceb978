"""A run over several targets for a given time: its options, and its report in docs/proof.md (fuzz.py, growth.py)."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from random import SystemRandom
from typing import Any

from chimerac.chimera_ir.diagnostics import visible
from tests.proof.record import record

# (targets, seconds for each, seed, targets at a time) -> results
Run = Callable[[Sequence[str], float, int, int], Sequence[Any]]
Report = Callable[[Sequence[Any], float, int], str]  # (results, seconds of the whole run, seed) -> text


def campaign(
    part: str,
    kind: str,
    targets: Sequence[str],
    minutes: float,
    run: Run,
    report: Report,
    argv: Sequence[str] | None = None,
) -> int:
    """Run over the targets, print the report, and record it unless --no-record is given; return the exit status.

    The status is 1 if a result has failures, 130 if the run was interrupted, and 0 otherwise.

    Args:
        part: the block of docs/proof.md.
        kind: the word for a target in the options.
        minutes: the default of --minutes.
        argv: the options, by default those of the command line.
    """
    parser = ArgumentParser()
    parser.add_argument("--minutes", type=float, default=minutes, help="of the whole run; each target gets the same time")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(2**31))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help=f"{kind}s at a time, default all processors")
    parser.add_argument(f"--{kind}", dest="targets", action="append", choices=targets, help="only this one; repeatable")
    parser.add_argument("--no-record", action="store_true", help="leave docs/proof.md as it is")
    options = parser.parse_args(argv)
    chosen = options.targets or targets
    began = time.monotonic()
    seconds_per_target = options.minutes * 60 * min(options.jobs, len(chosen)) / len(chosen)
    try:
        results = run(chosen, seconds_per_target, options.seed, options.jobs)
    except KeyboardInterrupt:
        print("\ninterrupted: nothing is recorded", file=sys.stderr)
        return 130
    text = report(results, time.monotonic() - began, options.seed)
    print(text)
    if not options.no_record:
        record(part, text)
    return int(any(r.failures for r in results))


def failure_list(failures: Iterable[tuple[str, str]], text_if_none: str) -> str:
    """Return a Markdown list of failures (target, description), or a text if there are none."""
    items = [textwrap.fill(f"- {target}: {visible(text)}", 120, subsequent_indent="  ") for target, text in failures]
    return ("\n".join(items) or text_if_none) + "\n"


def quoted(text: str) -> str:
    """Return the first words of an input as code in a cell of a Markdown table; an empty text if it has no words.

    The code has at most 40 characters. What is not printable is escaped, and a backquote or a bar is replaced.
    """
    words = visible(" ".join(text.split()))[:40].replace("`", "'").replace("|", "/")
    return f"`{words}`" if words else ""
