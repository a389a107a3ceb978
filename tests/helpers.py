"""Programs to test, an example of a profile, changes to programs and texts, and the findings of a call that is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic
from chimerac.chimera_ir.instructions import Bwd, BwdInput, BwdWeight, Fwd, Instruction, Recompute
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler import compile_schedule
from tools import ROOT

EXAMPLE_PROFILE = ROOT / "compiler/explain/examples/profile.json"  # of gpt-nano
Streams = list[list[Instruction]]
LETTERS = {"FWD": "F", "BWD": "B", "BWD_INPUT": "I", "BWD_WEIGHT": "W", "RECOMPUTE": "R"}  # of the tasks, by operation

# Every schedule of the library, with the parameters of a small and of a medium-sized program.
SMALL: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "gpipe": ({"D": 2, "N": 3}, {"D": 4, "N": 4}),
    "1f1b": ({"D": 2, "N": 3}, {"D": 4, "N": 6}),
    "dapple": ({"D": 3, "N": 4, "policy": 1}, {"D": 3, "N": 5, "policy": 2}),
    "chimera": ({"D": 2, "N": 4}, {"D": 4, "N": 4, "f": 2}),
    "chimera_any": ({"D": 4, "N": 3}, {"D": 4, "N": 5}),
    "interleaved": ({"D": 2, "N": 2, "v": 2}, {"D": 3, "N": 3, "v": 2}),
    "looped_bfs": ({"D": 2, "N": 2}, {"D": 3, "N": 4}),
    "gems": ({"D": 2, "N": 2}, {"D": 3, "N": 4}),
    "hanayo": ({"D": 2, "N": 3}, {"D": 3, "N": 3, "w": 2}),
    "bitpipe": ({"D": 2, "N": 2}, {"D": 4, "N": 4}),
    "chimera_doubling": ({"D": 2, "N": 4}, {"D": 4, "N": 7, "again": 1}),
    "chimera_halving": ({"D": 2, "N": 4, "again": 1}, {"D": 4, "N": 8}),
    "chimera_recompute": ({"D": 2, "N": 4}, {"D": 4, "N": 8}),
    "zb_h1": ({"D": 2, "N": 3}, {"D": 4, "N": 5}),
    "zb_h2": ({"D": 2, "N": 4}, {"D": 3, "N": 6}),
    "zb_v": ({"D": 2, "N": 3}, {"D": 3, "N": 6}),
    "dualpipe": ({"D": 2, "N": 4}, {"D": 4, "N": 8}),
    "dualpipev": ({"D": 2, "N": 4}, {"D": 3, "N": 7}),
    "chimera_zb": ({"D": 2, "N": 3}, {"D": 4, "N": 4, "f": 2}),
    "chimera_fill": ({"D": 2, "N": 3}, {"D": 4, "N": 10}),
}
# The same as pairs of a name and parameters, which can be hashed.
CASES = [(name, tuple(parameters.items())) for name, both in SMALL.items() for parameters in both]


@cache
def library_program(name: str, parameters: tuple[tuple[str, int], ...] = (), width: int = 1) -> Program:
    """Return the program of a schedule of the library."""
    return compile_schedule(name, dict(parameters), width).program


def program(name: str, width: int = 1, **parameters: int) -> Program:
    """Return the program of a schedule of the library under these parameters."""
    return library_program(name, tuple(parameters.items()), width)


def chimera_pairs(ranks: int) -> list[int]:
    """Return every f that the schedule chimera allows for D = `ranks`: the divisors of D/2."""
    return [f for f in range(1, ranks // 2 + 1) if (ranks // 2) % f == 0]


def streams(program: Program) -> Streams:
    """Return the instructions of every rank as lists that the caller may change."""
    return [list(program.stream(g)) for g in range(program.world)]


def with_streams(program: Program, changed: Sequence[Iterable[Instruction]]) -> Program:
    """Return a program with the same header and these streams."""
    return program_of(program.header, changed, program.costs)


def with_move(stream: Sequence[Instruction], source: int, target: int) -> list[Instruction]:
    """Return the stream with the instruction at index `source` moved to index `target`."""
    result = list(stream)
    result.insert(target, result.pop(source))
    return result


def tasks(stream: Iterable[Instruction]) -> Iterator[Fwd | Bwd | BwdInput | BwdWeight | Recompute]:
    """Yield the tasks of a stream."""
    return (i for i in stream if isinstance(i, Fwd | Bwd | BwdInput | BwdWeight | Recompute))


def replaced(text: str, *replacements: tuple[str, str]) -> str:
    """Return the text with these replacements (old, new), each made once. Every old text must occur."""
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def without_colour(text: str) -> str:
    """Return the text without the escape sequences that colour it in a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def findings_of_call(call: Callable[..., object], *given: object, **more: object) -> list[Diagnostic]:
    """Return the findings with which a call is refused. The test fails if the call is not refused."""
    with pytest.raises(ChimeraError) as caught:
        call(*given, **more)
    return list(caught.value.diagnostics)


def codes_of_call(call: Callable[..., object], *given: object) -> set[str]:
    """Return the codes of the findings with which a call is refused."""
    return {d.code for d in findings_of_call(call, *given)}
