"""The effort of compiling and verifying is linear in the program, and that of a reader is linear in its input.

The effort is executed lines of Python, and bytes held. No time is measured. The work inside of numpy shows only in its bytes;
`make bench` measures its time. The tool that measures readers for `make proof` (tests/proof/growth.py) is tested too.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import tests.proof.growth
from chimerac.chimera_ir.model import Layer, ModelDescription, Tensor, TiedLayers
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule, simulate, verify
from chimerac.compiler.draw.timeline import draw_timeline
from chimerac.compiler.library import names
from tests.helpers_cost import lines, peak
from tests.proof.growth import Measurement
from tests.proof.growth_inputs import Part, Recipe
from tests.proof.growth_targets import READERS, Reader

# (D, N) of three programs for each measure. Each program is about four times as long as the one before. For bytes the programs
# are larger: at (4, 16) bytes that depend on no size outweigh the others. A peak is a maximum, so they do not cancel.
SIZES = {lines: ((4, 16), (8, 32), (16, 64)), peak: ((8, 32), (16, 64), (32, 128))}
SLACK = 1.25  # the most that `growth` may return: linear costs give 1, quadratic ones 4


def growth(spent: list[int], lengths: list[int]) -> float:
    """Return the cost of one more unit of length at the larger lengths, divided by that at the smaller ones.

    Args:
        spent: the costs at these three lengths. Constant costs cancel.
    """
    (a, b, c), (x, y, z) = spent, lengths
    return (c - b) / (z - y) / ((b - a) / (y - x))


@pytest.mark.parametrize("name", names())
def test_compiling_and_verifying_are_linear(name: str) -> None:
    def compile_size(size: tuple[int, int]) -> Program:
        return compile_schedule(name, dict(zip("DN", size, strict=True))).program

    for measure, sizes in SIZES.items():
        programs = [compile_size(size) for size in sizes]  # so that caches are filled before the measurements
        lengths = [len(p) for p in programs]
        for what, spent in {
            "compiling": [measure(lambda size=size: compile_size(size)) for size in sizes],  # type: ignore[misc]
            "verifying": [measure(lambda p=p: verify(p)) for p in programs],  # type: ignore[misc]
        }.items():
            message = f"{what} {name} takes {spent} {'lines' if measure is lines else 'bytes'} for {lengths} instructions"
            assert growth(spent, lengths) <= SLACK, message


def test_drawing_a_timeline_in_bands_is_linear_in_its_characters() -> None:
    drawn: list[str] = []

    def draw(micro_batches: int) -> None:
        p = compile_schedule("1f1b", {"D": 2, "N": micro_batches}).program
        s = simulate(p)
        drawn.append(draw_timeline(p, s.timeline, columns=40))

    spent = [lines(lambda n=n: draw(n)) for n in (32, 128, 512)]  # type: ignore[misc]
    assert growth(spent, [len(text) for text in drawn]) <= SLACK


def test_quadratic_growth_of_lines_or_bytes_is_detected() -> None:
    def pairs(n: int) -> int:
        return sum(1 for a in range(n) for b in range(n) if a == b)

    sizes = [10, 40, 160]
    assert growth([lines(lambda n=n: pairs(n)) for n in sizes], sizes) > 3  # type: ignore[misc]
    assert growth([lines(lambda n=n: sum(1 for _ in range(n))) for n in sizes], sizes) < SLACK  # type: ignore[misc]
    assert growth([peak(lambda n=n: bytearray(n * n)) for n in (1000, 4000, 16000)], [1, 4, 16]) > 3  # type: ignore[misc]


@pytest.mark.parametrize("name", READERS)
def test_readers_are_linear_in_their_input(name: str) -> None:
    """The lines executed at several lengths are counted, for inputs that were once too slow."""
    measurement = Measurement(name, READERS[name])
    for text in measurement.reader.seeds():
        measurement.run(text)  # so that caches are filled before the measurements
    # Of the schedules only these, because parsing a schedule executes many lines.
    schedules = "order greedy", "tied", "F & B", "a comment"
    for recipe in measurement.reader.regressions():
        # Most descriptions are the repr of a piece, and begin with a quote.
        if name != "schedule" or recipe.description.removeprefix("'").startswith(schedules):
            assert not measurement.count_lines(recipe, 0), recipe.description  # the second argument is not used


def test_memory_of_a_reader_is_linear_in_its_input() -> None:
    """The bytes are counted for the last twelve regressions.

    They repeat instructions, empty lists or objects, tied sets or pipes.
    """
    measurement = Measurement("program json", READERS["program json"])
    for recipe in [*measurement.reader.regressions()][-12:]:
        assert not measurement.count_bytes(recipe, 0), recipe.description


WORDS = Recipe("schedule x", (Part(len("schedule x"), lambda k, n: "x " * 4, description="x"),))  # "schedule xx x x x x ..."


def test_quadratic_growth_of_a_reader_is_detected() -> None:
    """A reader that is worse than linear in lines or bytes is detected; a linear one is not."""
    quadratic = [
        ("lines", lambda t: [sum(1 for _ in range(len(t) // 9)) for _ in range(len(t) // 90)]),
        ("bytes", lambda t: bytearray(len(t) ** 2 // 400)),
    ]

    def linear(t: str) -> object:
        return [t.count("y"), bytearray(9 * len(t)), [1 for _ in range(len(t))]]

    for cost, run in quadratic:
        for reader, is_steep in ((run, True), (linear, False)):
            measurement = Measurement("x", Reader(reader, lambda: ["x"], (), lambda: iter(()), longest=2**17))  # type: ignore[arg-type]
            measure = {"lines": measurement.count_lines, "bytes": measurement.count_bytes}[cost]
            assert bool(measure(WORDS, 0)) == is_steep, (cost, is_steep)


def test_regressions_are_measured_at_large_lengths_and_an_input_that_fails_is_saved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = Reader(lambda t: None, lambda: ["x"], (), lambda: iter((WORDS, WORDS)))
    monkeypatch.setitem(READERS, "twice", twice)
    monkeypatch.setattr(tests.proof.growth, "FAILED_INPUTS", tmp_path)
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    # The quadratic part shows from some 500,000 characters on.
    monkeypatch.setattr(Measurement, "seconds", lambda self, text, runs=1: len(text) * 1e-6 + len(text) ** 2 * 2e-12)
    handler = signal.getsignal(signal.SIGPROF)  # `measure` sets another one
    results = [tests.proof.growth.measure("twice", seconds=1e9, seed=0, inputs=2) for _ in range(2)]
    signal.signal(signal.SIGPROF, handler)
    assert [len(result.failures) for result in results] == [1, 1]
    (saved,) = tmp_path.iterdir()
    assert saved.read_text() == WORDS.of_length(50_000)  # the length at which `Measurement.fail` saves an input


def test_summing_stages_takes_few_lines_for_each_tied_layer() -> None:
    boundary = (Tensor((1,), "bool", False),)
    layer = Layer("x", parameters=1, weight_bytes=4, kept_bytes=1, weight_kept_bytes=1, boundary=boundary, cost=1)
    layers, tied_sets = 256, 64
    tied = TiedLayers("t", tuple(range(layers)), parameters=1, weight_bytes=4)
    model = ModelDescription("m", samples=1, layers=(layer,) * layers, tied=(tied,) * tied_sets)
    spent = lines(lambda: model.stage_sums(balanced(model, layers).layers))  # every stage has one layer
    assert spent < 20 * tied_sets * layers
