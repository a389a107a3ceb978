"""The playground's page in a real Chromium: a mistake, a slider, the menu, downloads, the keyboard, another origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.compiler import compile_schedule
from chimerac.compiler.draw.shades import shade
from chimerac.compiler.library import find
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


def place(page: Any, words: str) -> None:
    """Select the first occurrence of these words in the text."""
    page.locator("#text").evaluate(
        """(text, words) => {
            const at = text.value.indexOf(words);
            text.focus();
            text.setSelectionRange(at, at + words.length);
        }""",
        words,
    )


def test_a_mistake_is_underlined_with_its_help_and_its_correction_is_drawn(page: Any) -> None:
    place(page, "param N")
    page.keyboard.type("parm N")
    page.locator(".wrong").wait_for()
    assert page.locator(".wrong").inner_text() == "parm"
    assert page.locator("#text").get_attribute("aria-invalid") == "true"
    assert "did you mean 'param'?" in page.locator("#findings li").inner_text()
    # The caret is behind the word and a blank; F8 goes to the error, whose help then is beside it.
    page.keyboard.press("F8")
    assert "did you mean 'param'?" in page.locator("#bubble").inner_text()
    place(page, "parm")
    page.keyboard.type("param")
    page.locator("#status", has_text="compiled and verified").wait_for()
    assert page.locator(".wrong").count() == 0 and page.locator("#bubble").is_hidden()


def test_an_underline_is_below_its_word_after_tabs_wide_characters_and_scrolling(page: Any) -> None:
    """The layer with the underlines has the geometry of the textarea: its width and height of the text, and its scrolling."""
    lines = "\n".join(f"# {k} \t\u65e5\u672c \U0001f600 {'x' * (k * 3)}" for k in range(60))
    place(page, "sync eager where idle")
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
    page.locator(".scroller[aria-label*='6 ranks']").wait_for()
    assert f"{int(expected.program.table.is_task.sum())} tasks" in page.locator(".scroller").get_attribute("aria-label")
    page.get_by_label("Default of D").click()
    page.locator(".scroller[aria-label*='4 ranks']").wait_for()
    assert "-p" not in page.locator("#command").inner_text()


def test_the_names_of_the_ranks_hide_tasks_from_the_mouse(page: Any) -> None:
    scroller = page.locator(".scroller")
    page.locator("#closer").click(click_count=3)
    scroller.evaluate("s => { s.scrollLeft = 60; }")
    scroller.hover(position={"x": 100, "y": 40})
    assert "rank 0" in page.locator("#task").inner_text()
    scroller.hover(position={"x": 20, "y": 40})
    assert page.locator("#task").inner_text() == ""


def test_keywords_have_a_colour(page: Any) -> None:
    words = page.locator("#layer .keyword").all_inner_texts()
    assert words[:4] == ["schedule", "param", "require", "and"]


def test_tasks_have_the_colours_of_pictures(page: Any) -> None:
    fills = page.locator("#legend path").evaluate_all("found => found.map((x) => x.getAttribute('fill'))")
    assert fills == [*(shade(pipe, op) for pipe in (0, 1) for op in (Op.FWD, Op.BWD)), "currentColor"]


def test_the_menu_opens_a_shipped_schedule_and_undo_leads_back(page: Any) -> None:
    before = page.locator("#text").input_value()
    page.select_option("#schedules", "zb_v")
    page.locator(".scroller[aria-label*='zb_v']").wait_for()
    assert page.locator("#text").input_value() == find("zb_v").text
    page.locator("#text").focus()
    page.keyboard.press("Control+z")
    assert page.locator("#text").input_value() == before
    page.reload()
    page.locator("#status", has_text="compiled and verified").wait_for()
    assert page.locator("#text").input_value() == before  # nothing is lost by a reload


def test_everything_can_be_downloaded(page: Any, tmp_path: Path) -> None:
    for label, name, expected in (
        ("the text (.sched)", "chimera.sched", find("chimera").text),
        ("json (.json)", "chimera.json", program_to_json(compile_schedule("chimera").program)),
    ):
        page.select_option("#products", label=label)
        with page.expect_download() as waiting:
            page.locator("#download").click()
        waiting.value.save_as(tmp_path / name)
        assert (waiting.value.suggested_filename, (tmp_path / name).read_text()) == (name, expected)


def test_the_keyboard_goes_from_task_to_task(page: Any) -> None:
    page.locator(".scroller").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator("#task").inner_text().startswith("forward of micro-batch ")
    assert ", rank 1, from 1 to 2" in page.locator("#task").inner_text()
    wide = page.locator(".scroller").evaluate("s => s.scrollWidth")
    page.keyboard.press("+")
    assert page.locator(".scroller").evaluate("s => s.scrollWidth") > wide


def test_another_origin_reaches_nothing(chromium: Any, server: Playground) -> None:
    """A page of another origin that knows even the token: the browser sends its origin, and the server refuses it."""
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
    assert told == "TypeError" and all(status == 403 for status in statuses)
    page.close()
