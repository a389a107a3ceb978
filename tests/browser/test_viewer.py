"""The viewer in a real browser: mouse, keyboard, several programs, measured times, colours, and hostile names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimerac.chimera_ir.textform import program_from_text
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.analyze.viewed import viewed
from chimerac.compiler.command.main import main
from chimerac.compiler.draw.shades import shade
from chimerac.compiler.draw.viewer.page import page as page_text
from chimerac.compiler.verify import verify
from tests.helpers import replaced
from tests.helpers_browser import browser

pytestmark = pytest.mark.browser
# The number of the selected instruction in its program, or null if none is selected.
ROW = "viewer.state.selected && viewer.state.selected.row"
VIEW = "[viewer.state.view.from, viewer.state.view.to]"  # the times at the left and the right end of the axis
SHOWN = "viewer.state.view.to - viewer.state.view.from"  # the time from one end to the other
# A function: the time at a distance x from the left edge of the page, in the frame that was drawn last.
# viewer.frame() draws a frame.
TIME_AT = "(x) => viewer.lanes.timeAt(x - document.getElementById('figure').getBoundingClientRect().left)"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


Opener = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Opener]:
    """Return a function that opens a page from its text. Its other arguments are options of the browser context.

    The test fails if a page has an error, opens a dialog of the browser, or requests anything but itself.
    """
    contexts, problems = [], []

    def open_page(text: str, **options: Any) -> Any:
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        context = chromium.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: problems.append(request.url) if request.url != path.as_uri() else None)
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


def page_of(schedule: str = "chimera", costs: dict[str, float] | None = None, **parameters: int) -> str:
    """Return the text of the page of a schedule."""
    compiled = compile_schedule(schedule, parameters)
    panel = viewed(simulate(compiled.program, costs), schedule, ordered=compiled.ordered)
    return page_text([panel], ["chimerac", schedule, "--emit", "html"], compiled.program.header.parameters)


def place(page: Any, row: int, panel: int = 0) -> tuple[float, float]:
    """Return a point of the page: at the middle of the time of an instruction, in the task lane of its rank.

    Args:
        row: of the instruction in its program.
        panel: the number of its panel.
    """
    x, y = page.evaluate(
        """([row, panel]) => {
            const p = viewer.state.panels[panel];
            // `row` is an instruction, but a row of the layout is a rank.
            const rank = viewer.state.layout.rows.find((r) => r.panel === p && r.rank === p.rankOf[row]);
            const box = document.getElementById("figure").getBoundingClientRect();
            const lane = rank.lanes.tasks; // its top and its height
            const y = box.top + lane[0] + lane[1] / 2 - viewer.state.scroll;
            return [box.left + viewer.lanes.x((p.start[row] + p.end[row]) / 2 / p.scale), y];
        }""",
        [row, panel],
    )
    return x, y


def until(page: Any, condition: str) -> None:
    """Wait until a condition holds, and fail the test after about 10 s.

    playwright's own wait needs `eval` in the page, which the page's Content Security Policy forbids.
    """
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(25)
    pytest.fail(condition)


def test_the_viewer_writes_every_instruction_as_the_program_does(opened: Opener) -> None:
    for schedule in ("chimera_doubling", "dualpipe", "chimera_recompute"):
        p = compile_schedule(schedule, {"D": 4, "N": 8}).program
        page = opened(page_text([viewed(simulate(p), schedule)], [], None))
        texts = page.evaluate(
            "[...viewer.state.panels[0].op.keys()].map((row) => viewer.instructionText(viewer.state.panels[0], row))"
        )
        assert texts == [p.text(row) for row in range(len(p))]


def test_hover_and_click_show_what_an_instruction_waits_for(opened: Opener) -> None:
    p = compile_schedule("chimera", {"D": 4, "N": 4}).program
    page = opened(page_of(D=4, N=4, costs={"hop": 1}))
    row = next(k for k in range(len(p)) if p.text(k) == "BWD up[0] s2 m2")
    page.mouse.move(*place(page, row))
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("BWD up[0] s2 m2") and "waits for B2 on rank 0" in tip and "message on its way 1" in tip
    assert "line 25: B(s, m) at" in tip  # of schedules/chimera.sched
    page.mouse.click(*place(page, row))
    details = page.locator("#details").inner_text()
    assert page.evaluate(ROW) == row and "rank 1, instruction 16" in details and "(decides the start)" in details
    page.locator("#details button", has_text="B2 on rank 0").first.click()
    assert p.text(page.evaluate(ROW)) == "BWD up[0] s3 m2"
    assert "BWD up[0] s3 m2" in page.locator("#spoken").inner_text()


SINGLE_THEN_GROUPED = """chimera-program 1
schedule grouped
sizes width=1 ranks=2 stages=2 micro_batches=2 window=2 machine=window kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe main on 0 1 micro_batches 0 1

rank 0:
  RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1
  FWD main s0 m0; SEND act main s1 m0 -> 1
  FWD main s0 m1; SEND act main s1 m1 -> 1
  BWD main s0 m0,1
rank 1:
  RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0
  FWD main s1 m0; FWD main s1 m1
  BWD main s1 m0; SEND grad main s0 m0 -> 0
  BWD main s1 m1; SEND grad main s0 m1 -> 0
"""
IN_ONE_MESSAGE = (
    ("RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1", "RECV grad main s0 m0,1 <- 1"),
    ("BWD main s1 m0; SEND grad main s0 m0 -> 0", "BWD main s1 m0"),
    ("SEND grad main s0 m1 -> 0", "SEND grad main s0 m0,1 -> 0"),
)


def test_a_send_waits_for_each_task_whose_value_it_sends(opened: Opener) -> None:
    for text, expected in (
        (SINGLE_THEN_GROUPED, [["B0 on rank 1"], ["B1 on rank 1"]]),
        (replaced(SINGLE_THEN_GROUPED, *IN_ONE_MESSAGE), [["B0 on rank 1", "B1 on rank 1"]]),
    ):
        p = verify(program_from_text(text))
        page = opened(page_text([viewed(simulate(p), "grouped")], [], None))
        sends = [row for row in range(len(p)) if p.text(row).startswith("SEND grad")]
        found = []
        for row in sends:
            page.evaluate("(row) => viewer.select(viewer.state.panels[0], row)", row)
            waits = page.locator("#details dt", has_text="Waits for").first.locator("xpath=following-sibling::dd[1]")
            found.append([wait.partition(",")[0] for wait in waits.locator("li").all_inner_texts()])
        assert found == expected


def test_idle_time_is_explained_by_its_cause(opened: Opener) -> None:
    page = opened(page_of("gpipe", D=4, N=4))
    first_row_of_rank_3 = compile_schedule("gpipe", {"D": 4, "N": 4}).program.offsets[3]
    _, y = place(page, int(first_row_of_rank_3))
    # The mouse is on rank 3 at the time 0.5.
    page.mouse.move(page.evaluate("document.getElementById('figure').getBoundingClientRect().left + viewer.lanes.x(0.5)"), y)
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("S: idle, start-up") and "rank 3, 0 to 3, takes 3" in tip


def test_wheel_drag_range_and_double_click_change_the_view(opened: Opener) -> None:
    page = opened(page_of(D=4, N=16))
    whole = page.evaluate(VIEW)
    x, y = place(page, 4)
    time_under_mouse = page.evaluate(TIME_AT, x)
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    until(page, f"{SHOWN} < {0.8 * (whole[1] - whole[0])}")
    page.evaluate("viewer.frame()")
    assert page.evaluate(TIME_AT, x) == pytest.approx(time_under_mouse, abs=0.05)
    before = page.evaluate(VIEW)
    page.mouse.move(700, y)
    page.mouse.down()
    page.mouse.move(600, y, steps=3)
    page.mouse.up()
    moved = page.evaluate(VIEW)
    assert moved[0] > before[0] and moved[1] - moved[0] == pytest.approx(before[1] - before[0])
    page.keyboard.press("0")  # shows the whole time again
    page.evaluate("viewer.frame()")
    box = page.locator("#axis").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 10, steps=3)
    page.mouse.up()
    dragged_range = page.evaluate(VIEW)
    assert dragged_range[1] - dragged_range[0] < 0.2 * (whole[1] - whole[0])
    page.mouse.dblclick(600, y)
    assert page.evaluate(VIEW) != dragged_range


def test_keys_select_tasks_zoom_switch_parts_and_search(opened: Opener) -> None:
    p = compile_schedule("1f1b", {"D": 4, "N": 8}).program
    page = opened(page_of("1f1b", D=4, N=8))
    page.locator("#figure").focus()

    def press(*keys: str) -> str:
        """Press keys, and return the instruction that is then selected, or an empty text."""
        for key in keys:
            page.keyboard.press(key)
        row = page.evaluate(ROW)
        return "" if row is None else p.text(row)

    assert press("ArrowRight") == "FWD main s0 m0"
    assert press("ArrowRight") == "FWD main s0 m1" and press(",").startswith("SEND") and press("ArrowRight") == "FWD main s0 m1"
    assert press("ArrowDown") == "FWD main s1 m0"
    assert press("w") == "FWD main s0 m0" and press("x") == "FWD main s1 m0"
    assert press("End") == p.text(int(p.offsets[2]) - 1) and press("Home") == p.text(int(p.offsets[1]))
    before_zooming = page.evaluate(SHOWN)
    press("+", "+")
    assert page.evaluate(SHOWN) < before_zooming / 2
    for key, name in zip("bcmaih", ("bubbles", "path", "messages", "arrows", "signs", "memory"), strict=True):
        before = page.evaluate(f"viewer.state.show.{name}")
        press(key)
        assert page.evaluate(f"viewer.state.show.{name}") is not before
        assert page.locator(f"[data-show={name}]").get_attribute("aria-pressed") == str(not before).lower()
    press("/")
    page.keyboard.type("b3 rank 2")
    assert press("Enter") == "BWD main s2 m3"
    press("Escape", "?")
    assert page.locator("#help").is_visible()
    press("Escape")
    assert not page.locator("#help").is_visible() and press("Escape") == ""
    assert page.evaluate("document.activeElement.id") == "figure"


def test_a_bubble_is_explained_moment_by_moment(opened: Opener) -> None:
    page = opened(page_of("gpipe", costs={"F": 1, "B": 1}, D=4, N=4))
    page.keyboard.press("e")
    assert "Moment 1 of 14" in page.locator("#moment").inner_text()
    first = page.locator("#sentences li").all_inner_texts()
    assert first[0] == "Rank 0 runs F0, the forward of micro-batch 0 on stage 0."
    assert first[1] == "Rank 1 is idle (start-up): F0 needs F0 of rank 0, which runs until 1."
    assert first[2] == "Rank 2 is idle (start-up): F0 needs F0 of rank 1, which runs only from 1 to 2."
    for _ in range(13):
        page.keyboard.press("n")
    # Each rank is idle for 2 (D - 1) = 6 slots.
    assert page.locator("#counts li").all_inner_texts() == [f"rank {rank}: 6 idle slots" for rank in range(4)]
    assert page.locator("#sum").inner_text().startswith("In all: 24 idle slots of 56, which is 42.9 %.")
    assert page.locator("#next-moment").is_disabled()
    page.keyboard.press("p")
    assert page.evaluate("viewer.explained().k") == 12
    page.locator("#play").click()
    until(page, "viewer.explained().k === 13")
    page.keyboard.press("Escape")
    assert page.evaluate("viewer.explained()") is None


def test_a_pair_that_waits_for_an_input_of_its_second_task_is_explained_by_it(opened: Opener) -> None:
    page = opened(page_of("dualpipe", costs={"hop": 1}, D=2, N=4))
    page.keyboard.press("e")
    while "Time 6 to 7." not in page.locator("#moment").inner_text():
        assert page.locator("#next-moment").is_enabled()
        page.keyboard.press("n")
    # The input of F3 arrived at 5. That of B0 is sent at 6, and its message takes 1.
    together = "F3 starts together with B0, and B0 needs B0 of rank 1, whose message arrives at 7"
    assert page.locator("#sentences li").first.inner_text() == f"Rank 0 is idle (message on its way): {together}."
    p = compile_schedule("dualpipe", {"D": 2, "N": 4}).program
    first = next(row for row in range(len(p)) if p.text(row).endswith("overlap"))
    said = [page.evaluate("(row) => viewer.spoken(viewer.state.panels[0], row)", row) for row in (first, first + 1)]
    assert "waited for" not in said[0] and "it waited for B0 on rank 1, arrives at 7" in said[1]


def test_a_task_of_the_second_program_of_a_page_can_be_selected(opened: Opener, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "chimera", "1f1b", "-p", "D=4", "-p", "N=8", "--emit", "html"]) == 0
    page = opened(capsys.readouterr().out)
    assert page.locator("h1").inner_text() == "chimera D=4 N=8 f=1 and 1f1b D=4 N=8"
    page.mouse.click(*place(page, 0, panel=0))
    row = page.evaluate("viewer.state.panels[1].tasks.of(1)[2]")  # the third task of rank 1 in the second program
    page.mouse.click(*place(page, row, panel=1))
    assert "1f1b" in page.locator("#details").inner_text() and page.evaluate(ROW) == row
    assert page.locator("table caption", has_text="Where the time").count() == 2
    page.locator("#p-N").fill("16")
    assert page.locator("#command").inner_text() == "chimerac compare chimera 1f1b --emit html -p D=4 -p N=16"


def test_measured_bars_are_drawn_below_the_predicted_ones_and_compared_with_them(opened: Opener) -> None:
    p = compile_schedule("1f1b", {"D": 2, "N": 4}).program
    s = simulate(p)
    # In nanoseconds: a unit of cost takes 5 ms, and each instruction from row 3 on ends 1 ms later. The iteration ends 3 ms
    # after its last bar.
    begin, ms = 10**9, 10**6
    end = s.timeline.end * 5 * ms + begin
    end[3:] += ms
    start, finish = s.timeline.start * 5 * ms + begin, int(end.max()) + 3 * ms
    measured = replace(s.timeline, start=start, end=end, scale=ms, unit="ms", finish=finish)
    page = opened(page_text([viewed(s, "1f1b", measured=measured)], [], None))
    assert page.evaluate("viewer.state.layout.rows.every((r) => r.lanes.measured[0] > r.lanes.tasks[0])")
    row = next(k for k in range(3, len(p)) if p.table.is_task[k])
    page.mouse.click(*place(page, row))
    text = page.locator("#details").inner_text()
    taken_ms = 5 * int(s.timeline.end[row] - s.timeline.start[row]) + 1
    assert f"takes {taken_ms} (" in text and "than predicted" in text
    facts = page.locator("#tables").inner_text()
    assert re.search(r"a unit of cost is taken as 5\.\d+ ms", facts)
    assert f"measured makespan {5 * s.makespan + 1 + 3} ms" in facts


def test_a_negative_difference_of_times_has_all_its_digits(opened: Opener) -> None:
    p = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    s = simulate(p, {"F": 20_000, "B": 20_000})
    measured = replace(s.timeline, start=s.timeline.start * 10, end=s.timeline.start * 10 + 1234, scale=10)
    page = opened(page_text([viewed(s, "1f1b", measured=measured)], [], None))
    row = int(np.flatnonzero(p.table.is_task)[0])
    assert "takes 123.4 (-19876.6)" in page.evaluate(f"viewer.spoken(viewer.state.panels[0], {row})")


def test_a_search_backwards_begins_at_the_last_instruction(opened: Opener) -> None:
    p = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    page = opened(page_of("1f1b", D=2, N=2))
    page.locator("#find").fill("rank 1")
    page.locator("#find").press("Shift+Enter")
    assert page.evaluate(ROW) == len(p) - 1


def test_tasks_have_the_colours_of_pictures(opened: Opener) -> None:
    p = compile_schedule("gpipe", {"D": 2, "N": 2}).program
    page = opened(page_of("gpipe", D=2, N=2))
    for row in np.flatnonzero(p.table.is_task).tolist():
        red, green, blue = page.evaluate(
            """(row) => {
                const p = viewer.state.panels[0], ratio = devicePixelRatio;
                const lane = viewer.state.layout.rows.find((r) => r.rank === p.rankOf[row]).lanes.tasks;
                const x = viewer.lanes.x(p.start[row] / p.scale) + 2, y = lane[0] + 2 - viewer.state.scroll;
                return [...viewer.lanes.context.getImageData(x * ratio, y * ratio, 1, 1).data].slice(0, 3);
            }""",
            row,
        )
        assert f"#{red:02x}{green:02x}{blue:02x}" == shade(0, int(p.table.op[row]))


def has_a_light_background(page: Any) -> bool:
    page.evaluate("viewer.frame()")
    pixel = "[...viewer.lanes.context.getImageData(5, viewer.lanes.canvas.height - 3, 1, 1).data].slice(0, 3)"
    return sum(page.evaluate(pixel)) > 600  # red + green + blue, each at most 255


def test_colours_are_those_that_the_reader_prefers_until_the_key_t_changes_them(opened: Opener) -> None:
    for preferred, other in (("light", "dark"), ("dark", "light")):
        page = opened(page_of(D=2, N=2), color_scheme=preferred)
        assert has_a_light_background(page) is (preferred == "light")
        page.keyboard.press("t")
        assert has_a_light_background(page) is (other == "light")
        assert page.evaluate("document.documentElement.dataset.theme") == other


def test_hostile_names_are_only_text(opened: Opener) -> None:
    name = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\u202e'\"`${1}.sched"
    compiled = compile_schedule("chimera", {"D": 2, "N": 2})
    panel = viewed(simulate(compiled.program), name, ordered=compiled.ordered)
    panel["text"]["lines"] = [[1, name]] * len(panel["text"]["lines"])
    panel["pipes"][0]["name"] = panel["costs"] = name
    page = opened(page_text([panel, {"name": name, "reason": name}], ["chimerac", name, "it's"], {name: 1, "D": 2}))
    page.locator("#figure").focus()
    page.keyboard.press("ArrowRight")
    page.mouse.move(*place(page, page.evaluate(ROW)))
    for place_of_name in ("h1", "#details", "#tip", "#tables", "#legend"):
        assert "<script>alert(1)</script>" in page.locator(place_of_name).inner_text()
    # The two scripts are the data and the code of the page.
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    command = page.locator("#command").inner_text()
    assert command.startswith("chimerac '</script>") and "'it'\\''s'" in command


def test_a_page_without_a_program_says_why(opened: Opener) -> None:
    page = opened(page_text([{"name": "a", "reason": "E210: no"}], ["chimerac"], {"D": 3}))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("e")
    assert "a cannot run at this size: E210: no" in page.locator("#tables").inner_text()


def test_a_large_program_is_drawn_as_shares_of_the_time_and_zooms_to_bars(opened: Opener) -> None:
    page = opened(page_of(D=8, N=1024))
    assert page.evaluate("viewer.state.panels[0].size") > 40_000
    # How many colours 600 pixels of one line have. The numbers of a pixel are red, green, blue, and 255 for opaque.
    colours = "new Set(viewer.lanes.context.getImageData(200, 8, 600, 1).data.join().match(/\\d+,\\d+,\\d+,255/g)).size"
    page.evaluate("viewer.frame()")
    assert page.evaluate(colours) >= 3
    page.locator("#find").fill("B511 rank 0")
    page.keyboard.press("Enter")  # selects the task that was searched for
    page.locator("#figure").focus()
    page.keyboard.press("Enter")  # zooms to the selected task
    page.evaluate("viewer.frame()")
    assert page.evaluate("viewer.lanes.barsIn(viewer.state.layout.rows) < 200")
