"""Compiling and verifying are linear in the program: lines of Python and bytes are counted, no clock is read.

What a numpy call does inside shows only in its bytes; `make bench` measures that.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from chimera_ir.program import Program
from compiler import compile_schedule, simulate, verify
from compiler.draw.timeline import draw_timeline
from compiler.library import names

SIZES = ((4, 16), (8, 32), (16, 64))  # each four times the program before
SLACK = 1.25  # where something is quadratic, an instruction costs four times as much


def lines(work: Callable[[], Any]) -> int:
    """Return how many lines of Python are executed, every turn of a loop counted."""
    count = 0

    def see(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line"
        return see

    before = sys.gettrace()
    sys.settrace(see)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def peak(work: Callable[[], Any]) -> int:
    """Return the most bytes held at once, those of arrays included."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def growth(spent: list[int], lengths: list[int]) -> float:
    """Return what one more instruction costs at the larger sizes against the smaller; what is constant hides nothing."""
    (a, b, c), (x, y, z) = spent, lengths
    return (c - b) / (z - y) / ((b - a) / (y - x))


@pytest.mark.parametrize("name", names())
def test_compiling_and_verifying_are_linear(name: str) -> None:
    def compiled(size: tuple[int, int]) -> Program:
        return compile_schedule(name, dict(zip("DN", size, strict=True))).program

    programs = [compiled(size) for size in SIZES]  # what is made once is made here
    lengths = [len(p) for p in programs]
    for measure in (lines, peak):
        for what, spent in {
            "compiling": [measure(lambda size=size: compiled(size)) for size in SIZES],  # type: ignore[misc]
            "verifying": [measure(lambda p=p: verify(p)) for p in programs],  # type: ignore[misc]
        }.items():
            message = f"{what} {name} takes {spent} {measure.__name__} for {lengths} instructions"
            assert growth(spent, lengths) <= SLACK, message


def test_drawing_a_timeline_in_bands_is_linear_in_its_characters() -> None:
    drawn: list[str] = []

    def draw(micro_batches: int) -> None:
        p = compile_schedule("1f1b", {"D": 2, "N": micro_batches}).program
        s = simulate(p)
        drawn.append(draw_timeline(p, s.timing, s.scale, columns=40))

    spent = [lines(lambda n=n: draw(n)) for n in (32, 128, 512)]  # type: ignore[misc]
    assert growth(spent, [len(text) for text in drawn]) <= SLACK


def test_what_is_quadratic_is_seen() -> None:
    def pairs(n: int) -> int:
        return sum(1 for a in range(n) for b in range(n) if a == b)

    sizes = [10, 40, 160]
    assert growth([lines(lambda n=n: pairs(n)) for n in sizes], sizes) > 3  # type: ignore[misc]
    assert growth([lines(lambda n=n: sum(1 for _ in range(n))) for n in sizes], sizes) < SLACK  # type: ignore[misc]
    assert growth([peak(lambda n=n: bytearray(n * n)) for n in (1000, 4000, 16000)], [1, 4, 16]) > 3  # type: ignore[misc]
