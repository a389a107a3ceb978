"""Compiling and verifying are linear in the program: lines of Python and bytes are counted, no clock is read.

What a numpy call does inside shows only in its bytes; `make bench` measures that.
"""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.model import Layer, ModelDescription, Tensor, TiedLayers
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule, simulate, verify
from chimerac.compiler.draw.timeline import draw_timeline
from chimerac.compiler.library import names
from tests.helpers_cost import lines, peak
from tests.proof.growth import Explorer
from tests.proof.growth_inputs import Part, Recipe
from tests.proof.growth_targets import READERS, Reader

SIZES = ((4, 16), (8, 32), (16, 64))  # each four times the program before
SLACK = 1.25  # where something is quadratic, an instruction costs four times as much


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
        drawn.append(draw_timeline(p, s.timeline, columns=40))

    spent = [lines(lambda n=n: draw(n)) for n in (32, 128, 512)]  # type: ignore[misc]
    assert growth(spent, [len(text) for text in drawn]) <= SLACK


def test_what_is_quadratic_is_seen() -> None:
    def pairs(n: int) -> int:
        return sum(1 for a in range(n) for b in range(n) if a == b)

    sizes = [10, 40, 160]
    assert growth([lines(lambda n=n: pairs(n)) for n in sizes], sizes) > 3  # type: ignore[misc]
    assert growth([lines(lambda n=n: sum(1 for _ in range(n))) for n in sizes], sizes) < SLACK  # type: ignore[misc]
    assert growth([peak(lambda n=n: bytearray(n * n)) for n in (1000, 4000, 16000)], [1, 4, 16]) > 3  # type: ignore[misc]


@pytest.mark.parametrize("name", READERS)
def test_readers_are_linear_in_their_input(name: str) -> None:
    """On what once was not: the lines executed for each input of growth_targets.py, at several lengths."""
    explorer = Explorer(name, READERS[name])
    for text in explorer.reader.seeds():
        explorer.run(text)
    words = "order greedy", "tied", "F & B"  # of schedules these: a parser has many lines
    for recipe in explorer.reader.directed():
        if name != "schedule" or recipe.words[1:].startswith(words):
            assert not explorer.counted(recipe, 0), recipe.words


def test_memory_of_a_reader_is_linear_in_its_input() -> None:
    """The largest of what is held for a character: by values of JSON, by findings that each name all holders of a group."""
    explorer = Explorer("program json", READERS["program json"])
    for recipe in [*explorer.reader.directed()][-12:]:
        assert not explorer.held(recipe, 0), recipe.words


def test_growth_is_seen() -> None:
    """A reader that is worse than linear fails each way in which it is; one that is linear does not."""

    recipe = Recipe("schedule x", (Part(10, lambda k, n: "x " * 4, words="x"),))
    quick = [
        ("lines", lambda t: [sum(1 for _ in range(len(t) // 9)) for _ in range(len(t) // 90)]),
        ("bytes", lambda t: bytearray(len(t) ** 2 // 400)),
    ]
    for how, run in quick:
        for name, reader in ((how, run), ("", lambda t: [t.count("y"), bytearray(9 * len(t)), [1 for _ in range(len(t))]])):
            explorer = Explorer("x", Reader(reader, lambda: ["x"], (), lambda: iter(()), 2**17))  # type: ignore[arg-type]
            measure = {"lines": explorer.counted, "bytes": explorer.held}[how]
            assert bool(measure(recipe, 16_000)) == bool(name), (how, name)


def test_stages_of_a_model_with_many_tied_layers() -> None:
    layer = Layer("x", 1, 4, 1, 1, (Tensor((1,), "bool", False),), 1)

    def summed(sets: int, stages: int) -> int:
        model = ModelDescription("m", 1, (layer,) * 256, (TiedLayers("t", tuple(range(256)), 1, 4),) * sets)
        return lines(lambda: model.stage_sums(balanced(model, stages).layers))

    assert summed(64, 256) < 64 * 256 * 20
