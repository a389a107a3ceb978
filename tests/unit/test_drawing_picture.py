"""Pictures of timelines: what is in them, read back from their bytes, and the options of the command about them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.memory import held_bytes, memory_over_time
from chimerac.compiler.analyze.panels import memory_curve, panels_beside, simulated_panel, time_label
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.command.main import main
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.draw import picture
from chimerac.compiler.draw.extent import MAX_ROWS, extent
from chimerac.compiler.draw.panels import all_reduces_of, boxes_of
from chimerac.compiler.draw.picture import draw_picture
from chimerac.compiler.draw.shades import PIPES, shade
from chimerac.compiler.verify import peaks
from tests.helpers import program
from tests.helpers_drawing import DrawnBox, check_boxes, drawn_boxes

pytest.importorskip("matplotlib")


def svg_of(name: str, costs: dict[str, int | Fraction] | None = None, inches: float | None = None, **sizes: int) -> str:
    simulation = simulate(program(name, **sizes), costs)
    return draw_picture([simulated_panel(simulation)], "svg", time_label(simulation), inches=inches).decode()


# --- the figure of the paper -------------------------------------------------------------------------------------------

# Chimera with four ranks and four micro-batches, slot by slot: Li and Hoefler, "Chimera", SC 2021 (arXiv 2107.06925), section
# 3.1, the figure in which the down pipe of micro-batches 0 and 1 and the up pipe of 2 and 3 are merged. A backward takes two
# slots, as in the paper's comparison of schemes. d and u are forwards, D and U backwards of the down and the up pipe, each with
# the number of its micro-batch; .. is an idle slot.
PAPER = (
    "d0 d1 .. u2 U2 U2 u3 U3 U3 .. D0 D0 .. .. D1 D1",
    ".. d0 u2 d1 u3 .. U2 U2 D0 D0 U3 U3 D1 D1 .. ..",
    ".. u2 d0 u3 d1 .. D0 D0 U2 U2 D1 D1 U3 U3 .. ..",
    "u2 u3 .. d0 D0 D0 d1 D1 D1 .. U2 U2 .. .. U3 U3",
)
DOWN, UP = 0, 1  # the pipes
SHADES = {shade(DOWN, Op.FWD): "d", shade(DOWN, Op.BWD): "D", shade(UP, Op.FWD): "u", shade(UP, Op.BWD): "U"}


def slots(row: list[DrawnBox], width: float, origin: float, count: int) -> str:
    """Return the slots of a row of the picture: what is drawn there, by its colour and the text in it.

    Args:
        width: of a slot.
        origin: where the first slot begins.
        count: how many slots there are.
    """
    found = [".."] * count
    for box in row:
        (number,) = box.texts
        first, last = (box.left - origin) / width, (box.right - origin) / width
        assert abs(first - round(first)) < 0.01 and abs(last - round(last)) < 0.01
        for k in range(round(first), round(last)):
            assert found[k] == "..", "boxes do not overlap"
            found[k] = SHADES[box.colour] + number
    return " ".join(found)


def test_chimera_is_drawn_as_in_its_paper_slot_by_slot() -> None:
    rows = drawn_boxes(svg_of("chimera", D=4, N=4))
    origin, count = min(row[0].left for row in rows.values()), len(PAPER[0].split())
    width = (max(row[-1].right for row in rows.values()) - origin) / count
    assert [slots(rows[r], width, origin, count) for r in range(4)] == list(PAPER)


def test_the_all_reduces_are_marked_at_the_times_at_which_they_end() -> None:
    """The all-reduce of stage 3 is at 9, those of stages 1 and 2 are at 14, and that of stage 0 is at 16.

    Both copies of stage 2 are done at 12, but their ranks, 1 and 2, launch the all-reduce of stage 1 first.
    """
    simulation = simulate(program("chimera", D=4, N=4))
    found = all_reduces_of(simulated_panel(simulation))
    marks = {(rank, name): end for rank, end, name in zip(found.rank.tolist(), found.end.tolist(), found.name, strict=True)}
    assert marks[0, "3"] == marks[3, "3"] == 9 and marks[0, "0"] == marks[3, "0"] == 16
    assert marks[1, "1"] == marks[2, "1"] == 14
    assert svg_of("chimera", D=4, N=4).count("<!-- 1,2 -->") == 2, (
        "ranks 1 and 2 each have one mark for the all-reduces of stages 1 and 2"
    )


# --- boxes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("hanayo", {"D": 2, "N": 3}), ("dualpipe", {"D": 2, "N": 4}), ("chimera_recompute", {"D": 2, "N": 4})],
)
def test_every_task_is_a_box_at_its_time_in_its_shade_with_its_number(name: str, sizes: dict[str, int]) -> None:
    costs: dict[str, int | Fraction] = {"F": 2, "B": 3, "hop": Fraction(1, 2)}
    check_boxes(svg_of(name, costs, **sizes), simulated_panel(simulate(program(name, **sizes), costs)))


def test_an_overlapped_pair_shares_a_box() -> None:
    boxes = boxes_of(simulated_panel(simulate(program("dualpipe", D=2, N=4))))
    first = int(np.flatnonzero(boxes.half == 1)[0])
    assert boxes.half[first + 1] == 2
    assert boxes.start[first] == boxes.start[first + 1] and boxes.end[first] == boxes.end[first + 1]


def test_messages_that_take_time_are_in_the_legend() -> None:
    still, moving = (svg_of("1f1b", {"hop": hop}, D=2, N=2) for hop in (0, 1))
    assert "message on its way" in moving and "message on its way" not in still


def lightness(colour: str) -> float:
    """Return the lightness L* of a colour, 100 for white. Grey print shows nothing else of a colour.

    The formula does not hold for colours that are nearly black.
    """
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16


def test_the_kinds_of_tasks_differ_in_grey_print() -> None:
    for shades in PIPES:
        levels = sorted(map(lightness, shades))
        assert min(b - a for a, b in pairwise(levels)) > 8
    for shades_of_a_kind in zip(*PIPES, strict=True):
        levels = [lightness(colour) for colour in shades_of_a_kind]
        assert max(levels) - min(levels) < 2, "a kind of task is equally light in all hues"


# --- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["svg", "png", "pdf"])
def test_the_same_input_gives_the_same_bytes_whatever_the_user_has_set(form: str) -> None:
    import matplotlib

    simulation = simulate(program("chimera", D=2, N=2))
    draw = lambda: draw_picture([simulated_panel(simulation)], form, time_label(simulation))  # noqa: E731
    first = draw()
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "none", "pdf.fonttype": 3, "xtick.direction": "in"}):
        assert draw() == first
    assert first.startswith({"svg": b"<?xml", "png": b"\x89PNG\r\n", "pdf": b"%PDF-"}[form])
    assert re.search(rb"20\d\d-\d\d-\d\d|CreationDate", first) is None, "no date is in the file"


def test_a_pdf_has_its_fonts_and_an_svg_needs_none() -> None:
    simulation = simulate(program("chimera", D=2, N=2))
    pdf = draw_picture([simulated_panel(simulation)], "pdf", time_label(simulation))
    assert b"/FontFile2" in pdf and b"/Subtype /Type3" not in pdf
    svg = svg_of("chimera", D=2, N=2)
    assert "<text" not in svg and "font-family" not in svg and 'href="http' not in svg, "texts are drawn as outlines"


def test_an_svg_has_a_title_and_a_description() -> None:
    svg = svg_of("chimera", D=2, N=2)
    assert "<title>chimera D=2 N=2 f=1</title>" in svg and "<desc>chimera D=2 N=2 f=1: makespan 6, bubble ratio 0.0 %." in svg


# --- sizes -------------------------------------------------------------------------------------------------------------


def test_a_long_iteration_is_drawn_without_its_middle_and_says_so() -> None:
    simulation = simulate(program("1f1b", D=2, N=300))
    panel = simulated_panel(simulation)
    at = extent([panel], [boxes_of(panel)], inches=5.0)  # of the time axis
    (start, first_end), (second_start, end) = at.parts
    assert start == 0 and end == panel.length and first_end < second_start
    svg = draw_picture([panel], "svg", time_label(simulation), inches=5.6).decode()  # of the whole picture
    note = re.search(r"The time from \S+ to \S+ is not drawn, nor any task of micro-batches (\d+)-(\d+)\.", svg)
    assert note is not None
    rows = [row for part in (0, 1) for row in drawn_boxes(svg, part=part).values()]
    drawn = {int(text) for row in rows for box in row for text in box.texts}
    assert {0, 299} <= drawn and not drawn & set(range(int(note[1]), int(note[2]) + 1))


def test_numbers_that_do_not_fit_are_left_out_and_the_picture_says_so() -> None:
    narrow, wide = svg_of("1f1b", inches=5.0, D=4, N=30), svg_of("1f1b", D=4, N=8)
    narrow_boxes, wide_boxes = ([box for row in drawn_boxes(svg).values() for box in row] for svg in (narrow, wide))
    assert "Boxes that are too narrow have no number." in narrow and any(not box.texts for box in narrow_boxes)
    assert "Boxes that are too narrow" not in wide and all(box.texts for box in wide_boxes)


def test_too_many_rows_are_refused_with_help_and_some_of_them_can_be_drawn() -> None:
    simulation = simulate(program("gpipe", D=MAX_ROWS + 2, N=1))
    with pytest.raises(ChimeraError, match=f"at most {MAX_ROWS} rows") as caught:
        draw_picture([simulated_panel(simulation)], "svg", time_label(simulation))
    assert "--ranks" in caught.value.diagnostics[0].help
    svg = draw_picture([simulated_panel(simulation)], "svg", time_label(simulation), ranks=(1, 3)).decode()
    assert set(drawn_boxes(svg)) == {1, 3} and f"Ranks drawn: 2 of {MAX_ROWS + 2}." in svg


def test_all_costs_zero_can_be_drawn() -> None:
    assert "<svg" in svg_of("1f1b", {"F": 0, "B": 0}, D=2, N=2)


# --- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["1f1b", "chimera", "zb_h1", "hanayo"])
def test_the_memory_curve_has_the_peaks_in_activations_and_in_bytes(name: str) -> None:
    p = program(name, D=2, N=4)
    simulation, model = simulate(p), find_model("gpt-small", lambda samples: samples, micro_batch=2, seq_len=64)
    counts = memory_over_time(p, simulation.timeline)
    assert tuple(int(counts.amount[counts.rank == r].max()) for r in range(2)) == tuple(peaks(p).activations)
    assert all(int(counts.amount[counts.rank == r][-1]) == 0 for r in range(2)), "all is freed at the end"
    found = memory_over_time(p, simulation.timeline, model)
    assert [int(found.amount[found.rank == r].max()) for r in range(2)] == [x.peak for x in held_bytes(p, model).ranks]
    assert (np.diff(found.time)[np.diff(found.rank) == 0] >= 0).all()


def test_the_memory_curve_is_drawn_below() -> None:
    simulation = simulate(program("1f1b", D=2, N=4))
    with_curve = simulated_panel(simulation, memory=memory_curve(simulation.program, simulation.timeline))
    svg = draw_picture([with_curve], "svg", time_label(simulation)).decode()
    assert "Activations alive: micro-batches of a stage, all ranks to one scale; the numbers are the peaks" in svg
    assert svg.count("<!-- rank 0 -->") == 2, "rank 0 has a label beside its tasks, and one beside its curve"


def test_a_measured_timeline_is_drawn() -> None:
    simulation = simulate(program("1f1b", D=2, N=2))
    t = simulation.timeline
    measured = Timeline(t.rank, t.row, 7 * t.start, 7 * t.end, scale=10, unit="ms")
    (alone,), label = panels_beside(simulation, measured)
    assert label == "time in ms" and alone.facts == "6.3 ms"  # nine units of 7, in tenths of a millisecond
    (later,), _ = panels_beside(simulation, replace(measured, finish=123_456))
    assert later.facts == "12346 ms" and later.length == 12345.6, "the length includes the all-reduces after the last bar"
    both, label = panels_beside(simulation, replace(measured, unit=""))  # in the unit of the simulation
    svg = draw_picture(both, "svg", label).decode()
    assert "one_f_one_b D=2 N=2, predicted" in svg and len(drawn_boxes(svg, panel=1)) == 2


# --- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_pictures(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = str(tmp_path / "a.png")
    sizes = ["-p", "D=2", "-p", "N=2"]
    assert main(["chimera", *sizes, "--emit", "png", "--memory-curve", "--picture-width", "8.4cm", "-o", path]) == 0
    data = Path(path).read_bytes()
    assert int.from_bytes(data[16:20]) == int(8.4 / 2.54 * picture.DOTS)  # the width in the header of a PNG
    assert main(["compare", "chimera", "1f1b", "dualpipe", *sizes, "--emit", "svg"]) == 0
    svg = capfdbinary.readouterr().out.decode()
    assert len(drawn_boxes(svg, panel=0)) == len(drawn_boxes(svg, panel=1)) == 2
    assert "dualpipe is not drawn: E210" in svg


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chimera", "--emit", "svg", "-o", "a.pdf"], "-o a.pdf: the picture is written as SVG"),
        (["compare", "chimera", "--emit", "pdf", "-o", "a.svg"], "-o a.svg: the picture is written as PDF"),
        (["chimera", "--emit", "svg", "--ranks", "2..9"], "--ranks 2..9: there is no rank 9"),
        (["chimera", "--emit", "svg", "--ranks", "3..1"], "--ranks 3..1: 3..1 is empty"),
        (["chimera", "--emit", "timeline", "--ranks", "x"], "--ranks x: 'x' is no rank"),
        (["chimera", "--emit", "report", "--ranks", "1"], "--ranks is for --emit timeline, --emit svg"),
        (["chimera", "--emit", "timeline", "--memory-curve"], "--memory-curve is for --emit svg"),
        (["chimera", "--emit", "svg", "--picture-width", "9"], "--picture-width 9: expected a length"),
        (["chimera", "--emit", "svg", "--picture-width", "1cm"], "a picture 0.39 inches wide has no room"),
        (
            ["chimera", "--emit", "svg", "--model", "gpt-small"],
            "--model changes a picture only with --memory-curve or --profile",
        ),
        (["chimera", "--emit", "svg", "--columns", "80"], "--columns is for"),
        (["compare", "chimera", "--picture-width", "9cm"], "--picture-width is for --emit svg, png and pdf"),
        (["compare", "chimera", "-p", "D=3", "--emit", "svg"], "--emit svg: no schedule can run at this size"),
    ],
)
def test_wrong_options_of_pictures_are_findings(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, list(tmp_path.iterdir())) == ("", []) and f"error[E002]: {message}" in err


def test_pixels_are_not_written_to_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["chimera", "--emit", "png"]) == 2
    assert "give a path, -o picture.png" in capsys.readouterr().err


def test_without_matplotlib_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    assert main(["chimera", "--emit", "svg", "-o", os.devnull]) == 2
    assert "pip install 'chimerac[draw]'" in capsys.readouterr().err
