"""The playground's page in a real Chromium: a mistake, a slider, the menu, downloads, the keyboard, another origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.library import find
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.playground import limits
from chimerac.compiler.playground.server import Playground
from tests.helpers_browser import browser
from tests.helpers_playground import playground

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    with playground() as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def page(chromium: Any, server: Playground) -> Iterator[Any]:
    page = chromium.new_page(viewport={"width": 1360, "height": 820})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(server.url)
    page.locator("#status", has_text="compiled and verified").wait_for()
    yield page
    page.close()
    assert errors == []


def figure(page: Any, words: str = "") -> Any:
    """Return a locator of the viewer's drawing, which finds it only while its label has these words."""
    return page.frame_locator("#viewer").locator(f"#figure[aria-label*='{words}']" if words else "#figure")


def pixels(viewer: Any) -> str:
    """Return the pixels of the drawing as it is now, as the URL of an image."""
    return str(viewer.evaluate("(viewer.frame(), document.getElementById('lanes').toDataURL())"))


def select(page: Any, words: str) -> None:
    """Select the first occurrence of these words in the text."""
    page.locator("#text").evaluate(
        """(text, words) => {
            const at = text.value.indexOf(words);
            text.focus();
            text.setSelectionRange(at, at + words.length);
        }""",
        words,
    )


def test_a_mistake_is_underlined_with_its_help_until_it_is_corrected(page: Any) -> None:
    select(page, "param N")
    page.keyboard.type("parm N")
    page.locator(".wrong").wait_for()
    assert page.locator(".wrong").inner_text() == "parm"
    assert page.locator("#text").get_attribute("aria-invalid") == "true"
    assert "did you mean 'param'?" in page.locator("#findings li").inner_text()
    # The caret is not on the wrong word. F8 moves it there, and then the help is shown at the word.
    page.keyboard.press("F8")
    assert "did you mean 'param'?" in page.locator("#tooltip").inner_text()
    select(page, "parm")
    page.keyboard.type("param")
    page.locator("#status", has_text="compiled and verified").wait_for()
    assert page.locator(".wrong").count() == 0 and page.locator("#tooltip").is_hidden()


def test_an_underline_is_below_its_word_after_tabs_wide_characters_and_scrolling(page: Any) -> None:
    """The layer with the underlines is as wide and as high as the text in the textarea, and scrolls with it."""
    lines = "\n".join(f"# {k} \t\u65e5\u672c \U0001f600 {'x' * (k * 3)}" for k in range(60))
    select(page, "sync eager where idle")
    page.keyboard.insert_text(f"{lines}\n\t# \U0001f600\tw\u00fcrd\nsink")
    page.locator(".wrong").first.wait_for()
    assert page.locator(".wrong").first.inner_text() == "sink"
    page.locator("#text").evaluate("text => text.scrollTo(40, text.scrollHeight)")
    page.wait_for_timeout(100)
    found = page.evaluate(
        """() => {
            const text = document.getElementById("text"), layer = document.getElementById("layer");
            const mark = document.querySelector(".wrong").getBoundingClientRect(), area = text.getBoundingClientRect();
            const line = text.value.split("\\n").indexOf("sink");
            return { width: [text.scrollWidth, layer.scrollWidth], height: [text.scrollHeight, layer.scrollHeight],
              top: mark.top - area.top + text.scrollTop, left: mark.left - area.left + text.scrollLeft,
              expected: 10 + line * 20 };
        }"""
    )
    # Pixels: the text has a padding of 10 above it and 12 beside it, and its lines are 20 high.
    assert abs(found["width"][0] - found["width"][1]) <= 12 and abs(found["height"][0] - found["height"][1]) <= 20
    assert abs(found["top"] - found["expected"]) <= 4 and abs(found["left"] - 12) <= 1


def test_a_slider_changes_the_timeline_and_can_be_reset(page: Any) -> None:
    slider = page.locator("#slider-D")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expected = compile_schedule("chimera", {"D": 6})
    page.locator("#command", has_text="-p D=6").wait_for()
    figure(page, "6 ranks").wait_for()
    assert f"{int(expected.program.table.is_task.sum())} tasks" in figure(page).get_attribute("aria-label")
    page.get_by_label("Default of D", exact=True).click()
    figure(page, "4 ranks").wait_for()
    assert "-p" not in page.locator("#command").inner_text()


def test_keywords_are_marked(page: Any) -> None:
    words = page.locator("#layer .keyword").all_inner_texts()
    assert words[:4] == ["schedule", "param", "require", "and"]


def test_the_menu_opens_a_shipped_schedule_and_undo_leads_back(page: Any) -> None:
    before = page.locator("#text").input_value()
    page.select_option("#schedules", "zb_v")
    figure(page, "zb_v").wait_for()
    assert page.locator("#text").input_value() == find("zb_v").text
    page.locator("#text").focus()
    page.keyboard.press("Control+z")
    assert page.locator("#text").input_value() == before
    page.reload()
    page.locator("#status", has_text="compiled and verified").wait_for()
    assert page.locator("#text").input_value() == before, "a reload keeps the text"


def test_the_text_and_the_json_can_be_downloaded(page: Any, tmp_path: Path) -> None:
    for label, name, expected in (
        ("the text (.sched)", "chimera.sched", find("chimera").text),
        ("json (.json)", "chimera.json", program_to_json(compile_schedule("chimera").program)),
    ):
        page.select_option("#products", label=label)
        with page.expect_download() as waiting:
            page.locator("#download").click()
        waiting.value.save_as(tmp_path / name)
        assert (waiting.value.suggested_filename, (tmp_path / name).read_text()) == (name, expected)


def test_the_timeline_is_the_viewer_with_arrows_causes_and_memory(page: Any) -> None:
    viewer, expected = page.frames[1], compile_schedule("chimera").program
    figure(page).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    row = viewer.evaluate("viewer.state.selected.row")
    assert expected.rank_of[row] == 1 and expected.table.is_task[row]
    details = page.frame_locator("#viewer").locator("#details").inner_text()
    # The rules of the text are on lines 24 and 25.
    assert expected.text(row) in details and "Waits for" in details and "line 2" in details
    # The arrows of a selected task are drawn: the pixels change if only the arrows are switched off.
    with_arrows = pixels(viewer)
    page.keyboard.press("a")
    assert pixels(viewer) != with_arrows
    height_without_memory = viewer.evaluate("viewer.state.layout.rows[0].height")
    assert not viewer.evaluate("viewer.state.show.memory")
    page.keyboard.press("h")
    assert viewer.evaluate("viewer.state.layout.rows[0].height") > height_without_memory
    legend = page.frame_locator("#viewer").locator("#legend").inner_text()
    assert "idle: waiting for a value" in legend and "idle: drain" in legend
    page.keyboard.press("+")
    page.wait_for_timeout(300)
    assert viewer.evaluate("viewer.state.view.to - viewer.state.view.from") < 16, "a part of the makespan of 16"


def test_a_change_keeps_what_is_selected_shown_and_zoomed_to(page: Any) -> None:
    viewer = page.frames[1]
    viewer.evaluate("viewer.select(viewer.state.panels[0], 30); viewer.setView(2, 9)")
    text = viewer.evaluate("viewer.instructionText(viewer.state.panels[0], 30)")
    page.frame_locator("#viewer").get_by_role("button", name="Memory").click()
    select(page, "sync eager where idle")
    page.keyboard.type("# another comment\nsync eager where idle")
    page.locator("#status", has_text="compiled and verified").wait_for()
    page.get_by_label("Value of N", exact=True).fill("8")
    figure(page, "64 tasks").wait_for()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Value of N"
    kept = viewer.evaluate(
        """(({ panels, selected, show, view }) =>
            [viewer.instructionText(panels[0], selected.row), show.memory, view])(viewer.state)"""
    )
    assert kept == [text, True, {"from": 2, "to": 9}]
    page.select_option("#schedules", "gpipe")  # its program lacks the selected instruction
    figure(page, "gpipe").wait_for()
    assert viewer.evaluate("[viewer.state.selected, viewer.state.panels.length]") == [None, 1]


def test_costs_replicas_and_machine_are_those_of_the_command(page: Any) -> None:
    slider = page.locator("#cost-hop")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.get_by_label("Value of cost of B").fill("1/3")
    page.locator("#width").fill("2")
    page.select_option("#machine", "serial")
    page.get_by_label("arrange transfers for it").check()
    words = "--cost hop=0.5 --cost B=1/3 --width 2 --for serial"
    page.locator("#command", has_text=words).wait_for()
    figure(page, "8 ranks").wait_for()
    program = compile_source(find("chimera"), {}, width=2, machine="serial", arrange=True).program
    s = simulate(program, {"hop": Fraction(1, 2), "B": Fraction(1, 3)})
    page.locator("#figures", has_text=s.time(s.makespan)).wait_for()
    told = page.frames[1].evaluate("(({ makespan, scale, machine }) => [makespan / scale, machine])(viewer.state.panels[0])")
    assert told == [s.makespan / s.scale, "serial"]
    page.reload()
    page.locator("#command", has_text=words).wait_for()  # the reload has kept the settings
    figure(page, "8 ranks").wait_for()
    assert page.get_by_label("Value of cost of B").input_value() == "1/3"
    page.get_by_label("Default of cost of B").click()
    page.locator("#command", has_text="--cost hop=0.5 --width").wait_for()


def test_a_wrong_cost_and_a_wrong_width_are_marked_in_their_fields(page: Any) -> None:
    cost = page.get_by_label("Value of cost of F")
    cost.fill("a third")
    error = page.locator("#setting-error")
    error.wait_for()
    assert "the cost F = a third: expected a number like 2, 0.5 or 1/3" in error.inner_text()
    assert cost.get_attribute("aria-invalid") == "true" and cost.get_attribute("aria-describedby") == "setting-error"
    assert page.get_by_label("Value of cost of B").get_attribute("aria-invalid") == "false"
    assert figure(page, "4 ranks").count() == 1, "the timeline stays"
    assert "old" in page.locator("#right").get_attribute("class")
    page.get_by_label("Default of cost of F").click()
    error.wait_for(state="hidden")
    page.locator("#width").fill("99999")
    error.wait_for()
    assert "at most 65536" in error.inner_text() and "fewer replicas" in error.inner_text()
    assert page.locator("#width").get_attribute("aria-invalid") == "true" and cost.get_attribute("aria-invalid") == "false"


def test_light_and_dark_are_those_of_the_page_in_the_timeline_too(page: Any) -> None:
    themes = "[document.documentElement.dataset.theme, frames[0].document.documentElement.dataset.theme]"
    assert page.evaluate(themes) == ["light", "light"]
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    assert page.evaluate(themes) == ["dark", "dark"]
    page.locator("#theme").click()  # from Auto to Light
    assert page.evaluate(themes) == ["light", "light"]
    figure(page).focus()
    page.keyboard.press("t")
    assert page.evaluate(themes) == ["dark", "dark"] and page.locator("#theme").inner_text() == "Dark"


def test_only_the_start_of_a_large_program_is_drawn(page: Any) -> None:
    page.select_option("#schedules", "gpipe")
    figure(page, "gpipe").wait_for()
    page.get_by_label("Value of D", exact=True).fill("64")
    page.get_by_label("Value of N", exact=True).fill("512")
    page.locator("#status", has_text="drawn up to time").wait_for()
    size, until, makespan = page.frames[1].evaluate(
        "(({ size, until, makespan }) => [size, until, makespan])(viewer.state.panels[0])"
    )
    assert 40_000 < size <= limits.ROWS and until < makespan
    told = page.frame_locator("#viewer").locator("#tables").inner_text()
    assert f"before {until} are drawn; the makespan is {makespan}" in told
    page.frames[1].evaluate("viewer.select(viewer.state.panels[0], viewer.state.panels[0].size - 1)")
    assert "rank 63" in page.frame_locator("#viewer").locator("#details").inner_text()
    page.frame_locator("#viewer").get_by_role("button", name="What a bubble is").click()
    page.frame_locator("#viewer").locator("#moments").press("End")
    assert "the rest of it is not drawn" in page.frame_locator("#viewer").locator("#sum").inner_text()


def test_a_hanging_program_is_told_at_the_field_of_the_machine(page: Any) -> None:
    page.select_option("#machine", "paired")
    page.locator("#setting-error").wait_for()
    told = page.locator("#setting-error").inner_text()
    assert "deadlock on the paired machine" in told and "--for paired" in told
    assert page.locator("#machine").get_attribute("aria-invalid") == "true"
    page.get_by_label("arrange transfers for it").check()
    page.locator("#setting-error").wait_for(state="hidden")


def test_another_origin_reaches_nothing(chromium: Any, server: Playground) -> None:
    """A page of another origin can read no answer of the server, even if it knows the token."""
    page = chromium.new_page()
    page.route("http://evil.example/", lambda route: route.fulfill(body="<p>evil", content_type="text/html"))
    page.goto("http://evil.example/")
    statuses: list[int] = []
    page.on("response", lambda response: statuses.append(response.status))
    body = json.dumps({"text": "", "parameters": {}})
    told = page.evaluate(
        """async ([url, body]) => {
            try { return await (await fetch(url + "draw", { method: "POST", body })).text(); }
            catch (error) { return error.name; }
        }""",
        [server.url, body],
    )
    # The browser may report no status. That it is 403 for another Origin is checked in test_playground.py.
    assert told == "TypeError" and all(status == 403 for status in statuses)
    page.close()
