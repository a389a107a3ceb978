"""A small schedule whose lines a test can replace, its program, and its findings."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text

LINES = {
    "param": "param D = 2   param N = 3",
    "ranks": "ranks D",
    "stages": "stages D",
    "pipe": "pipe main { stage s on rank s   micro_batches N }",
    "extra": "",
    "order": "order ticks {",
    "F": "F(s, m) at s + 2*m",
    "B": "B(s, m) at 2*D - 1 - s + 2*m",
    "end": "}",
}


def text(**changes: str) -> str:
    """Return the text of a 1F1B schedule with these lines replaced."""
    assert not set(changes) - set(LINES)
    return "schedule small\n" + "\n".join((LINES | changes).values()) + "\n"


def small(parameters: dict[str, int] | None = None, width: int = 1, **changes: str) -> Program:
    """Return the program of this schedule with these lines replaced."""
    return compile_text(text(**changes), parameters, width).program


def findings_of(parameters: dict[str, int] | None = None, width: int = 1, **changes: str) -> list[Diagnostic]:
    """Return the findings for this schedule with these lines replaced."""
    with pytest.raises(ChimeraError) as caught:
        small(parameters, width, **changes)
    return list(caught.value.diagnostics)


def tasks_of(program: Program, rank: int) -> str:
    """Return 'F0 F1 B0': the tasks of a rank, with stages where it has several."""
    letters = {"FWD": "F", "BWD": "B", "BWD_INPUT": "I", "BWD_WEIGHT": "W", "RECOMPUTE": "R"}
    several = len({i.stage for i in program.stream(rank) if i.op in letters}) > 1
    return " ".join(
        f"{letters[i.op]}{i.micro_batches[0]}" + (f".{i.stage}" if several else "")  # type: ignore[union-attr]
        for i in program.stream(rank)
        if i.op in letters
    )
