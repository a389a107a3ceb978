"""Benchmarks: rows, ratios and missed goals of reports, and the blocks of docs/benchmarks.md. Nothing is measured."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from chimerac.compiler.library import names
from tests.proof.record import recorded
from tools import bench_instructions, bench_overlap, bench_timed
from tools.bench_overlap import AT_END, RUNS, SYNCS
from tools.bench_ranks import PAGE, ratios
from tools.bench_timed import RANKS, Row

# How many seconds an iteration takes, predicted and measured. With a schedule that is not named here it takes 2 s.
SECONDS = {"chimera_zb": 1.0, "chimera": 1.2, "1f1b": 1.5}
ROWS = [
    Row(
        schedule=name,
        own={},
        depth=ranks,
        micro_batches=ranks,
        width=1,
        predicted_s=SECONDS.get(name, 2.0),
        measured_s=SECONDS.get(name, 2.0),
        predicted_bubble=0.2,
        measured_bubble=0.2,
    )
    for ranks in RANKS
    for name in names()
]


def missed(text: str) -> list[str]:
    """Return the lines of a report that say where a goal is missed. Lines that were wrapped are joined again."""
    return [line for line in text.replace("\n  ", " ").splitlines() if ": missed: " in line]


def changed(schedule: str, **fields: object) -> list[Row]:
    """Return ROWS with these fields replaced in the first row of a schedule."""
    first = next(row for row in ROWS if row.schedule == schedule)
    return [replace(row, **fields) if row is first else row for row in ROWS]


def test_a_part_of_the_schedules_does_not_replace_the_recorded_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_instructions", "gpipe", "--write"])
    monkeypatch.setattr(bench_instructions, "measure", lambda program: pytest.fail("measure was called"))
    with pytest.raises(SystemExit):
        bench_instructions.main()
    assert "leave out the names" in capsys.readouterr().err


def test_all_goals_of_timed_stages_are_met() -> None:
    text, met = bench_timed.report(unit_ms=25, rows=ROWS)
    assert met and not missed(text)


def test_a_row_has_the_parameters_and_the_width_of_its_program() -> None:
    assert f"| gems, x=2, W=2 | {RANKS[0]} |" in bench_timed.report(unit_ms=25, rows=changed("gems", own={"x": 2}, width=2))[0]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (changed("gems", measured_s=2.11), "within 5 % of the simulated makespan.*: gems at D = 4, N = 4: \\+5.5 %"),
        (changed("gems", measured_s=1.89), "within 5 % of the simulated makespan.*: gems at D = 4, N = 4: -5.5 %"),
        (changed("gems", reason="this does not hold: N >= 9"), "measured at every D: missed: gems at D = 4"),
        (changed("chimera", predicted_s=0.99, measured_s=0.99), "at N = D: missed: D = 4, W = 1: 1.000 s, 0.990 s, 1.500 s"),
    ],
    ids=["longer", "shorter", "not measured", "out of order"],
)
def test_a_goal_of_timed_stages_that_is_missed_is_named(rows: list[Row], expected: str) -> None:
    text, met = bench_timed.report(unit_ms=25, rows=rows)
    (line,) = missed(text)
    assert not met
    assert re.search(expected, line)


def test_a_row_of_a_program_that_does_not_exist_has_the_reason() -> None:
    text, _ = bench_timed.report(unit_ms=25, rows=changed("gems", reason="this does not hold: N >= 9"))
    assert "| gems | 4 | 4 | this does not hold: N >= 9 |  |  |  |  |" in text


def overlap(eager_exposed_s: float, eager_s: float) -> dict[str, list[dict[str, object]]]:
    """Return measurements of all runs.

    Args:
        eager_exposed_s, eager_s: the exposed time and the time of an iteration with `sync eager`.

    With each of the other two choices of `sync` an iteration takes 2 s, of which 1 s is exposed.
    """
    times = {AT_END: (2.0, 1.0), "eager where idle": (2.0, 1.0), "eager": (eager_s, eager_exposed_s)}
    rows = [
        {"sync": sync, "gigabits": gigabits, "iteration_s": [times[sync][0]] * 3, "exposed_s": [times[sync][1]] * 3}
        for gigabits in bench_overlap.GIGABITS
        for sync in SYNCS
    ]
    return dict.fromkeys(RUNS, rows)


def test_the_report_of_overlap_has_a_line_for_each_missed_goal() -> None:
    text, met = bench_overlap.report(overlap(eager_exposed_s=0.3, eager_s=1.3))
    assert met and "| 4 Gbit/s | `sync eager` | 1300 ms | 300 ms | 0.650 | 0.650 to 0.650 | 0.300 | 0.300 to 0.300 |" in text
    # Of `sync eager`: the exposed time, the time of an iteration, and how many goals are missed.
    for exposed_s, iteration_s, count in ((0.9, 1.9, 1), (1.1, 1.9, 2), (0.3, 2.1, 1), (1.1, 2.1, 3)):
        text, met = bench_overlap.report(overlap(exposed_s, iteration_s))
        assert not met and len(missed(text)) == count


def test_each_sync_of_the_overlap_benchmark_gives_another_program() -> None:
    run = RUNS["chimera, D=4, N=4"]
    programs = [run.program(sync) for sync in SYNCS]
    assert len({program.digest for program in programs}) == len(SYNCS)


def test_a_ratio_is_computed_in_each_round() -> None:
    # The ratios are 0.5, 1 and 0.25. Expected are their first quartile, their median and their third quartile.
    assert ratios([1.0, 10.0, 100.0], [2.0, 10.0, 400.0]) == pytest.approx((0.375, 0.5, 0.75))


def test_the_page_of_benchmarks_has_its_four_blocks() -> None:
    for name in ("runtime", "instructions", "timed", "overlap"):
        assert recorded(name, PAGE)
