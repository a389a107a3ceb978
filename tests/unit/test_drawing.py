"""The timeline in the terminal, of predicted and of measured times."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from chimerac.chimera_ir.program import OVERLAP, Program
from chimerac.chimera_ir.textform import program_from_text
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.draw import timeline as drawing
from chimerac.compiler.draw.timeline import MAX_WIDTH, draw_timeline
from chimerac.interpreter.runtime.times import times_of
from tests.helpers import CASES, library_program, program, without_colour
from tests.helpers_cost import peak


def draw_lines(p: Program, columns: int | None = None, colour: bool = False, **costs: int | Fraction) -> list[str]:
    simulation = simulate(p, costs)
    return draw_timeline(p, simulation.timeline, columns=columns, colour=colour).splitlines()


def test_chimera_as_its_paper_draws_it() -> None:
    assert draw_lines(program("chimera", D=4), F=1, B=2) == [
        "        0              5              10             15",
        "rank 0 |F0 F1 .. F2 B2--- F3 B3--- .. B0--- ..... B1--- |",
        "rank 1 |.. F0 F2 F1 F3 .. B2--- B0--- B3--- B1--- ..... |",
        "rank 2 |.. F2 F0 F3 F1 .. B0--- B2--- B1--- B3--- ..... |",
        "rank 3 |F2 F3 .. F0 B0--- F1 B1--- .. B2--- ..... B3--- |",
        "F forward; B backward; numbers are micro-batches; down[0] 0-1, up[0] 2-3",
    ]


def test_stages_are_named_where_a_rank_has_several() -> None:
    lines = draw_lines(program("interleaved", D=2, N=2, v=2), F=1, B=1)
    assert "F0.0 F1.0 F0.2" in lines[1]
    assert lines[-1].endswith("numbers are micro-batches, then the stage")


APART = """chimera-program 1
schedule apart
sizes width=1 ranks=2 stages=2 micro_batches=4 window=2 machine=window kind=evaluation micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe a  on 0 0  micro_batches 3 1 0
pipe b  on 1 1  micro_batches 2
rank 0:
  FWD a s0 m3,0,1; FWD a s1 m0,1; FWD a s1 m3
rank 1:
  FWD b s0 m2; FWD b s1 m2
"""


def test_micro_batches_that_are_not_consecutive_are_listed() -> None:
    lines = draw_lines(program_from_text(APART))
    assert lines[1].startswith("rank 0 |F3,0-1.0")
    assert lines[-1].endswith("then the stage; a 0-1,3, b 2")


@pytest.mark.parametrize(("schedule", "parameters"), CASES)
def test_every_task_is_drawn_at_its_time(schedule: str, parameters: tuple[tuple[str, int], ...]) -> None:
    """Read the drawing back: the column and the width of each task give its start and its duration."""
    p = library_program(schedule, parameters)
    simulation = simulate(p, {"F": 2, "B": 3, "hop": Fraction(1, 2)})
    lines = draw_timeline(p, simulation.timeline).splitlines()[1:-1]
    end = max(len(line) for line in lines) - len("rank 0 |") - 1  # the column at which the timeline ends
    task = r"[FBIWR]\d+(-\d+)?(\.\d+)?"  # letter, micro-batches, and the stage if a rank has several: F3, B0-1.2
    for g, line in enumerate(lines):
        body = line.removeprefix(f"rank {g} |").removesuffix("|")
        # A task or a pair joined by &, then dashes up to its end.
        drawn = [(m.start(), m.end()) for m in re.finditer(rf"{task}(&{task})?-*", body)]
        stream = range(p.offsets[g], p.offsets[g + 1])
        second = {row + 1 for row in stream if p.table.flags[row] & OVERLAP}  # drawn together with the first of its pair
        rows = [row for row in stream if p.table.is_task[row] and row not in second]
        assert len(drawn) == len(rows)
        for (start, stop), row in zip(drawn, rows, strict=True):
            assert Fraction(start, end) == Fraction(int(simulation.timeline.start[row]), simulation.makespan)
            # The last character of a task's time is left empty.
            assert Fraction(stop + 1, end) == Fraction(int(simulation.timeline.end[row]), simulation.makespan)


def test_a_long_timeline_continues_below() -> None:
    p = program("1f1b", D=2, N=8)
    lines = draw_lines(p, columns=40, F=1, B=2)
    assert all(len(line) <= 40 for line in lines[:-1])
    whole = draw_lines(p, F=1, B=2)
    for g in range(2):
        parts = [line.removeprefix(f"rank {g} |")[:-1] for line in lines if line.startswith(f"rank {g}")]
        assert "".join(parts) == whole[g + 1].removeprefix(f"rank {g} |")[:-1]


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize("columns", [40, 61, 80])
def test_every_line_fits_the_width(columns: int, colour: bool) -> None:
    p = program("chimera_zb", D=4, N=8)
    lines = draw_timeline(p, simulate(p, {"F": 7, "B": 20, "hop": 3}).timeline, columns=columns, colour=colour).splitlines()
    assert max(len(without_colour(line)) for line in lines) <= columns
    legend = without_colour(" ".join(lines[-4:]))
    assert "up[0] 4-7" in " ".join(legend.split())


def test_no_number_is_cut_where_the_drawing_continues_below() -> None:
    """A part of a number would be the number of another micro-batch."""
    p = program("1f1b", D=2, N=120)
    simulation = simulate(p, {"F": 1000, "B": 1999})  # their only common divisor is 1, so a line may end anywhere
    known = {f"{letter}{m}" for letter in "FB" for m in range(120)}
    for columns in range(40, 60):
        lines = draw_timeline(p, simulation.timeline, columns=columns).splitlines()
        bodies = [line.partition("|")[2].rstrip("|") for line in lines if line.startswith("rank 0")]
        found = [word for body in bodies for word in re.findall(r"[FB]\d+", body)]
        assert set(found) <= known and len(found) >= 230  # of 240 tasks
        assert len(set(found)) == len(found), "a part of a number would be the number of another task"
        # A task that continues in the next line may have room for its number in neither of the two lines.
        assert len(found) == 240 or "a letter alone" in lines[-1]


def test_a_label_without_room_becomes_its_letter_and_the_legend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    p = program("1f1b", D=2, N=12)
    assert "a letter alone" not in draw_lines(p)[-1]
    monkeypatch.setattr(drawing, "MAX_WIDTH", 60)
    lines = draw_timeline(p, simulate(p, {"F": 1000, "B": 1999}).timeline).splitlines()
    labels = [re.findall(r"[FB]\d+", line) for line in lines[1:3]]
    assert all(len(set(of_rank)) == len(of_rank) for of_rank in labels), "a part of a number would be another number"
    numbers = [label[1:] for of_rank in labels for label in of_rank]
    assert set(numbers) <= {str(m) for m in range(12)} and len(numbers) < 48  # of 48 tasks
    assert "a letter alone: no room for the number" in lines[-1]


def test_colours_replace_dots_and_dashes_by_blanks_and_change_no_other_text() -> None:
    p = program("chimera", D=2)
    plain, coloured = draw_lines(p), draw_lines(p, colour=True)
    assert [re.sub(r"[-.]", " ", line) for line in plain[:-1]] == [without_colour(line) for line in coloured[:-1]]
    assert coloured[1].count("\x1b[0m") == 4  # after each task of rank 0


def test_tasks_that_take_no_time_can_be_drawn() -> None:
    for backward in (0, 2):
        ruler_ranks_and_legend = draw_lines(program("1f1b", D=2, N=2), F=0, B=backward)
        assert len(ruler_ranks_and_legend) == 1 + 2 + 1


def test_with_costs_without_a_large_common_divisor_the_widths_of_tasks_are_rounded() -> None:
    """1000 and 1999 have no common divisor but 1, so an exact drawing would need one character per unit."""
    p = program("1f1b", D=4, N=8)
    exact, rounded = simulate(p, {"F": 1000, "B": 2000}), simulate(p, {"F": 1000, "B": 1999})
    exact_line, rounded_line = (draw_timeline(p, simulation.timeline).split("\n")[1] for simulation in (exact, rounded))
    assert abs(len(exact_line) - len(rounded_line)) < 10
    assert rounded_line.startswith("rank 0 |F0 F1 F2 F3 ") and "B7--" in rounded_line


def test_the_ruler_divides_a_long_unit_and_counts_many_short_ones() -> None:
    p = program("1f1b", D=2, N=2)
    costs = dict.fromkeys("FBIW", Fraction(1, 20))
    assert draw_timeline(p, simulate(p, costs).timeline).splitlines()[0].split() == ["0", "0.2"]
    assert draw_timeline(p, simulate(p, {"F": 40, "B": 40}).timeline).splitlines()[0].split() == ["0", "200"]


def test_numbers_of_the_ruler_have_no_exponent() -> None:
    p = program("1f1b", D=2, N=4)
    simulation = simulate(p, {"F": 1234567, "B": 2 * 1234567})
    lines = draw_timeline(p, simulation.timeline, columns=51).splitlines()
    ruler = lines[3]  # of the second part, which is too short to have a mark
    assert ruler.split() == ["17283938"], "the time at which the second part begins"
    millionths = replace(simulate(p).timeline, scale=10**6)
    assert draw_timeline(p, millionths).splitlines()[0].split() == ["0", "0.000005", "0.00001"]


def test_long_numbers_of_the_ruler_do_not_touch() -> None:
    p = program("1f1b", D=2, N=8)
    costs = dict.fromkeys("FBIW", 3 * 10**11)
    numbers = draw_timeline(p, simulate(p, costs).timeline).splitlines()[0].split()
    assert [int(x) for x in numbers] == [0, 10**12, 3 * 10**12, 5 * 10**12], "marks without room for their number are left out"


def test_a_timeline_has_a_maximal_width() -> None:
    p = program("1f1b", D=2, N=2)
    for costs in ({"hop": 14_064_140}, {"B": 2**40}, {"F": Fraction(1, 999_983)}):
        ruler, *rows, _ = draw_timeline(p, simulate(p, costs).timeline).splitlines()
        assert max(map(len, rows)) <= MAX_WIDTH + len("rank 0 |") + len("|")
        assert len(ruler) <= MAX_WIDTH + 20, "the last number of the ruler may end after the rows"


def test_a_measured_timeline_is_drawn_like_a_predicted_one() -> None:
    """The bars of a rank are in nanoseconds, begin at any moment, and leave out the time that the rank waited."""
    p = program("1f1b", D=2, N=2)
    simulation, begin, unit_ns = simulate(p), 10**9, 7_000_000
    measured = []
    for rank in range(2):
        rows = slice(*p.offsets[rank : rank + 2].tolist())
        start, end = (begin + unit_ns * x[rows] for x in (simulation.timeline.start, simulation.timeline.end))
        stamps = [begin, *end.tolist(), int(end[-1])]
        waits = np.cumsum([0, *(start - stamps[:-2]), 0]).tolist()  # the rank waits until an instruction begins
        measured.append(times_of(stamps, waits, p.table.is_task[rows], sent=stamps[-1]).timeline(p, rank))
    both = Timeline.concatenate(measured)
    both = replace(both, start=both.start - both.start.min(), end=both.end - both.start.min())
    assert (both.start == unit_ns * simulation.timeline.start).all() and (both.end == unit_ns * simulation.timeline.end).all()
    found, predicted = (draw_timeline(p, t).splitlines() for t in (both, simulation.timeline))
    assert found[1:3] == predicted[1:3]
    assert found[0].split() == ["0", "50"] and found[-1].endswith("; times in ms")


def test_an_overlapped_pair_that_was_measured_is_two_bars() -> None:
    p = program("dualpipe", D=2, N=4)
    predicted = simulate(p).timeline
    first = int(np.flatnonzero(p.table.flags & OVERLAP)[0])
    end = predicted.end.copy()
    start = predicted.start.copy()
    end[first] = start[first + 1] = start[first] + 1  # the second task begins where the first ends
    drawn, drawn_apart = (draw_timeline(p, t) for t in (predicted, replace(predicted, start=start, end=end)))
    assert drawn.count("&") == drawn_apart.count("&") + 1


@pytest.mark.parametrize("colour", [False, True])
def test_a_drawing_takes_a_few_bytes_for_each_of_its_characters(colour: bool) -> None:
    p = program("gpipe", D=16, N=1)
    timeline = simulate(p, {"B": 1000}).timeline
    characters = len(draw_timeline(p, timeline, colour=colour))
    assert characters > 500_000
    assert peak(lambda: draw_timeline(p, timeline, colour=colour)) < 8 * characters


def test_the_timelines_of_all_ranks_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    p = program("gpipe", D=16, N=4)
    monkeypatch.setattr(drawing, "MAX_SIZE", 16 * 50)  # ranks x characters
    lines = draw_timeline(p, simulate(p, {}).timeline).splitlines()
    assert {len(line) for line in lines if "rank" in line} == {len("rank 15 |") + 50 + len("|")}
