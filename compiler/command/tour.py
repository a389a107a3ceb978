"""`chimerac tour`: five parts that show what a pipeline schedule is, and what this project does with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler.command.files import columns, print_findings
from chimerac.compiler.command.verbs import TOUR_PARTS, tour_parser
from chimerac.compiler.tour import autotune, partition, performance, schedule, train
from chimerac.compiler.tour.guide import MAX_COLUMNS, EndedError, Guide

PARTS: Mapping[str, Callable[[Guide], int]] = {
    "schedule": schedule.run,
    "partition": partition.run,
    "performance": performance.run,
    "autotune": autotune.run,
    "train": train.run,
}
assert tuple(PARTS) == tuple(TOUR_PARTS), "the help of the command line names these parts, in this order"


def run(argv: Sequence[str], chimerac: Callable[[Sequence[str]], int]) -> int:
    """Run the tour or one part of it, and return the exit status.

    Args:
        chimerac: runs the command chimerac, as in `Guide`.
    """
    options = tour_parser().parse_args(argv)
    guide = Guide(chimerac, not options.yes and _is_terminal(), columns(None, None) or MAX_COLUMNS)
    try:
        return _run(guide, options.part)
    except EndedError:
        return 0
    except ChimeraError as error:
        return print_findings(error)


def _run(guide: Guide, part: str | None) -> int:
    """Run the part, or all parts from one that the reader chooses; return the last status that is not 0, else 0."""
    if part is not None:
        return PARTS[part](guide)
    guide.say(
        f"""This tour has five parts: {", ".join(PARTS)}. Everything that it draws is computed while you read. A line
        that begins with $ is a command that you can repeat."""
    )
    first = guide.choose("Where do you want to begin?", list(PARTS))
    status = 0
    for name in list(PARTS)[list(PARTS).index(first) :]:
        if name != first:
            guide.wait()
        status = PARTS[name](guide) or status
        if status == autotune.INTERRUPTED:
            break
    return status


def _is_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
