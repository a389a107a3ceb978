"""Timelines as files: what is written is read again, and wrong files are refused. And measured times beside predicted ones."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import COLUMNS, Timeline
from chimerac.chimera_ir.timeline_form import timeline_from_json, timeline_to_json
from chimerac.compiler import beside, compile_schedule, simulate
from chimerac.compiler.command.main import main

PROGRAM = compile_schedule("chimera", {"D": 2, "N": 2}).program
TEXT = timeline_to_json(PROGRAM, simulate(PROGRAM).timeline, "simulated")


def measured(program: Program, **costs: int) -> Timeline:
    """Return what a run would measure if a unit of these costs took 7 ms, and the iteration ended 3 ms after its last task."""
    s = simulate(program, costs)
    t = s.timeline
    return replace(t, start=7000 * t.start, end=7000 * t.end, scale=1000, unit="ms", finish=7000 * s.makespan + 3000)


def test_a_timeline_is_read_as_it_was_written_in_any_order_of_its_bars() -> None:
    timeline = measured(PROGRAM)
    mixed = timeline.take(np.random.default_rng(1).permutation(len(timeline)))
    file = timeline_from_json(timeline_to_json(PROGRAM, mixed, "measured"), "t.json")
    again = file.of(PROGRAM)
    assert (file.source, file.schedule, again.unit, again.scale) == ("measured", "chimera", "ms", 1000)
    assert again.makespan == timeline.finish
    assert all((getattr(again, name) == getattr(timeline, name)).all() for name in COLUMNS)


def test_columns_of_white_space_have_no_bars() -> None:
    text = re.sub(r'("(?:rank|row|start|end)": )\[[^]]*\]', r"\1[ ]", TEXT)
    assert text.count("[ ]") == 4 and len(timeline_from_json(text, "t.json").timeline) == 0


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ('"version": 1', '"version": 1.0', "E612", "version"),
        ('"unit": ""', '"unit": 3', "E613", "unit: expected a string"),
        ('"unit": ""', '"unit": "m/s"', "E613", r'unit: expected a string that matches .*, found "m/s"'),
        ('"row": [', '"rows": [', "E613", "row: this field is missing"),
        ('"row": [0,', '"row": [-1,', "E613", r"row\[0\]: expected an integer from 0 .* found -1"),
        ('"row": [0,1,', '"row": [0,01,', "E613", r"row\[1\]: .* found 01"),
        ('"row": [0,', '"row": [[0],', "E613", r"row\[0\]"),
        ('"row": [0,', '"row": [,', "E613", r"row\[0\]: .* found nothing"),
        ('"row": [0,', '"row": [9223372036854775807,', "E613", r"row\[0\]: expected an integer from 0"),
        ('"row": [0,', '"row": [9999999999999999999,', "E613", r"row\[0\]: expected an integer from 0"),
        ('"row": [0,', '"row": [99999999999999999999,', "E613", r"row\[0\]: .* found 99999999999999999999"),
        ('"row": [0,', '"row": [1,', "E613", "no bar of row 0"),
        ('"row": [0,1,', '"row": [0,0,', "E613", "two bars of row 0"),
        ('"row": [0,', '"row": [0,0,', "E613", "different lengths: rank .*, row"),
        ('"rank": [0,', '"rank": [1,', "E613", "row 0 has rank 1, and in the program rank 0"),
        ('"start": [0,', '"start": [9,', "E613", r"end\[0\] is .*, before start\[0\], which is 9"),
        ('"finish": ', '"finish": 1, "finish": ', "E613", "appears twice"),
        ('"finish": 6', '"finish": 1', "E613", "finish is 1, before"),
        ("[0,", "[0 ", "E613", "rank"),
        ("]}", "]", "E611", "not JSON"),
        (PROGRAM.digest, "0" * 64, "E614", rf"digest 0{{64}}(.|\n)*chimera with digest {PROGRAM.digest}"),
    ],
)
def test_a_wrong_timeline_is_refused(old: str, new: str, code: str, says: str) -> None:
    assert old in TEXT
    with pytest.raises(ChimeraError) as error:
        timeline_from_json(TEXT.replace(old, new, 1), "t.json").of(PROGRAM)
    findings = error.value.diagnostics
    assert findings[0].code == code and re.search(says, str(error.value)) and "t.json" in findings[0].message
    assert len(findings) == 1 or new == '"rows": ['  # a field is missing, and another one unknown


def test_the_figures_of_a_run_are_beside_the_predicted_ones() -> None:
    # Each rank computes for 9 units: F and B of three micro-batches. The last task ends at 12.
    program = compile_schedule("1f1b", {"D": 2, "N": 3}).program
    figures = beside(simulate(program), measured(program))
    assert figures.unit_of_cost == pytest.approx(7) and figures.unit == "ms"
    assert figures.predicted.makespan == figures.measured.last_task_end == pytest.approx(7 * 12)
    assert figures.measured.makespan == pytest.approx(7 * 12 + 3)
    assert figures.measured.busy == figures.predicted.busy == pytest.approx((7 * 9, 7 * 9))
    assert figures.measured.bubble_ratio == pytest.approx(1 - 7 * 9 / (7 * 12 + 3))
    # Slower backwards make a unit of cost longer, so forwards take less than predicted. Each stage has three tasks of a kind.
    slower = beside(simulate(program), measured(program, B=3)).kinds
    assert {(k.op.name, k.count, k.difference > 0) for k in slower} == {("BWD", 3, True), ("FWD", 3, False)}


WORDS = ["chimera", "-p", "D=2", "-p", "N=2"]  # of a command that compiles PROGRAM


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a measured timeline of PROGRAM."""
    (tmp_path / "t.json").write_text(timeline_to_json(PROGRAM, measured(PROGRAM), "measured"))
    return str(tmp_path / "t.json")


def test_the_command_shows_what_was_measured_beside_what_was_predicted(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--emit", "timeline", "--measured", path, "--columns", "60"]) == 0
    drawn = capsys.readouterr().out
    lines = [line for line in drawn.splitlines() if line.startswith("rank 0 |")]
    assert len(lines) == 2 and drawn.index("predicted: ") < drawn.index("measured: ") and max(map(len, lines)) <= 60
    assert main([*WORDS, "--emit", "report", "--measured", path]) == 0
    assert "measured beside predicted, in ms" in capsys.readouterr().out


def test_the_command_refuses_another_program_an_emitter_without_measured_times_and_an_output_over_the_timeline(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chimera", "--emit", "report", "--measured", path]) == 1
    assert "E614" in capsys.readouterr().err
    assert main([*WORDS, "--emit", "json", "--measured", path]) == 2
    assert main([*WORDS, "--emit", "report", "--measured", path, "-o", path]) == 2  # it would write over the timeline


def test_the_command_writes_the_simulated_timeline(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert main([*WORDS, "--emit", "timeline-json", "-o", str(path)]) == 0
    assert json.loads(path.read_text())["source"] == "simulated"
