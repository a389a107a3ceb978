"""Limits of a program's size, each checked before the passes whose work it bounds (E211)."""

from __future__ import annotations

from dataclasses import replace

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.costs import Costs
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.program import Header, Program

_SMALLER_HELP = "take smaller sizes or fewer replicas; docs/language.md lists the limits"


def check_sizes(name: str, header: Header, costs: Costs, width: int) -> None:
    """Raise ChimeraError E211 if `width` is below 1, or if a program of this header, costs and width exceeds a limit.

    Args:
        name: what the message calls the program: the name of its source, or of its schedule.
        width: the number of replicas.
    """
    if width < 1:
        raise refuse("E211", f"a program has at least one replica, and the width is {width}")
    excess = replace(header, width=width).excess() or costs.excess(header.micro_batches)
    if excess:
        raise refuse("E211", f"{name} asks for {excess}", help=_SMALLER_HELP)


def check_tasks(name: str, tasks: Program, width: int) -> None:
    """Raise ChimeraError E211 if all replicas together have too many tasks, or one task has too many micro-batches."""
    if width * len(tasks) > limits.TASKS:
        message = f"{name} asks for {count_text(width, 'replica')} of {len(tasks)} tasks; at most {limits.TASKS} together"
        raise refuse("E211", message, help=_SMALLER_HELP)
    groups = tasks.micro_batch_lists[tasks.header.micro_batches :]  # the lists before them have one micro-batch each
    largest = max(map(len, groups), default=1)
    if largest > limits.RANKS:
        message = f"{name} asks for a group of {largest} micro-batches; at most {limits.RANKS}"
        raise refuse("E211", message, help="take smaller groups; docs/language.md lists the limits")
