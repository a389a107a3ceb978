"""The data and the page of the viewer, without a browser. tests/browser tests the page in a browser."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from chimerac.chimera_ir.instructions import Recv, Task
from chimerac.chimera_ir.program import OVERLAP
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.causes import CAUSES, idle_bars, idle_times
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.analyze.viewed import viewed
from chimerac.compiler.command.main import main
from chimerac.compiler.command.values import without_parameters
from chimerac.compiler.diagnose.source_lines import order_spans
from chimerac.compiler.draw.shades import PIPES, page_colours
from chimerac.compiler.draw.viewer.columns import column
from chimerac.compiler.draw.viewer.page import SCRIPTS, page
from chimerac.compiler.playground.server import SCRIPTS as PLAYGROUND_SCRIPTS
from tests.helpers import CASES, library_program

TYPES = {"Uint8Array": "<u1", "Int16Array": "<i2", "Int32Array": "<i4", "Float64Array": "<f8"}  # of JavaScript and of numpy

COLUMNS = ("op", "value", "pipe", "stage", "operand", "peer", "flags", "start", "end")  # a number for each instruction


def numbers(encoded: dict[str, str]) -> np.ndarray[Any, Any]:
    """Return the numbers of a column of the page's data."""
    return np.frombuffer(b64decode(encoded["bytes"]), TYPES[encoded["type"]])


@pytest.mark.parametrize("values", [[], [0, 255], [-1, 256], [2**31 - 1], [2**31], [0.5], [-(2**31)], [2**60, 3]])
def test_a_column_has_the_same_numbers(values: list[float]) -> None:
    assert numbers(column(np.array(values))).tolist() == values
    integers = [value for value in values if isinstance(value, int)]
    assert numbers(column(np.array(integers, object))).tolist() == integers


@pytest.mark.parametrize(("schedule", "parameters"), CASES)
def test_idle_bars_fill_all_time_in_which_a_rank_does_not_compute(
    schedule: str, parameters: tuple[tuple[str, int], ...]
) -> None:
    s = simulate(library_program(schedule, parameters), {"hop": 1})
    bars, p = idle_bars(s), s.program
    assert (bars.end > bars.start).all()
    for rank in range(p.world):
        own = p.table.is_task & (p.rank_of == rank) & (s.timeline.end > s.timeline.start)
        spans = [*zip(s.timeline.start[own].tolist(), s.timeline.end[own].tolist(), strict=True)]
        mine = bars.rank == rank
        spans += zip(bars.start[mine].tolist(), bars.end[mine].tolist(), strict=True)
        ends = [0]
        for start, end in sorted(spans):
            assert start == ends[-1]
            ends.append(end)
        assert ends[-1] == s.makespan
        for k, name in enumerate(CAUSES):
            of_cause = mine & (bars.cause == k)
            assert (bars.end - bars.start)[of_cause].sum() == getattr(idle_times(s)[rank], name)


@pytest.mark.parametrize("schedule", ["chimera", "zb_v", "dualpipe", "chimera_doubling"])
def test_each_row_has_the_line_that_findings_name(schedule: str) -> None:
    compiled = compile_schedule(schedule, {"D": 4, "N": 8}, width=2)
    text = viewed(simulate(compiled.program), schedule, ordered=compiled.ordered)["text"]
    lines = [text["lines"][k][0] for k in numbers(text["of"])]  # the line number of each row
    program, ordered = compiled.program, compiled.ordered
    assert lines == [span.line for span in order_spans(ordered, program, range(len(program)))]
    for rank in range(program.world):
        own = lines[program.offsets[rank] : program.offsets[rank + 1]]
        tasks = [k for k, i in enumerate(program.stream(rank)) if isinstance(i, Task)]
        local = rank % ordered.program.world  # the rank within its replica
        assert [own[k] for k in tasks] == [ordered.span(row).line for row in range(*ordered.program.offsets[local : local + 2])]
        for k, i in enumerate(program.stream(rank)):
            before, after = [x for x in tasks if x < k], [x for x in tasks if x > k]
            if k not in tasks:  # a RECV has the line of the next task, another instruction that of the task before it
                assert own[k] == own[after[0] if isinstance(i, Recv) else before[-1]]


def test_the_tasks_of_an_overlapped_pair_follow_each_other() -> None:
    p = compile_schedule("dualpipe", {"D": 2, "N": 4}).program
    found = viewed(simulate(p), "dualpipe")
    first = np.flatnonzero(p.table.flags & OVERLAP)
    start, end = numbers(found["start"]), numbers(found["end"])
    assert len(first) and (end[first] > start[first]).all()
    assert (start[first + 1] == end[first]).all() and (end[first + 1] > start[first + 1]).all()


def test_a_measured_iteration_ends_with_its_all_reduces() -> None:
    s = simulate(compile_schedule("1f1b", {"D": 2, "N": 2}).program)
    begun = 10  # the start of the first measured bar
    bars = replace(s.timeline, start=s.timeline.start + begun, end=s.timeline.end + begun)
    # finish: when the last all-reduce ended; with None, the iteration ends with the last bar.
    for finish, makespan in ((None, s.makespan), (begun + s.makespan + 5, s.makespan + 5)):
        assert viewed(s, "1f1b", measured=replace(bars, finish=finish))["measured"]["makespan"] == makespan


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe", "zb_v"])
def test_the_start_of_a_program_has_the_same_data_as_the_whole(schedule: str) -> None:
    compiled = compile_schedule(schedule, {"D": 4, "N": 8})
    s = simulate(compiled.program, {"hop": 1})
    whole, part = viewed(s, schedule, ordered=compiled.ordered), viewed(s, schedule, ordered=compiled.ordered, most=100)
    kept = np.flatnonzero(numbers(whole["start"]) < part["until"])
    assert whole["until"] is None and 50 < len(kept) <= 100 and part["makespan"] == whole["makespan"]
    assert viewed(s, schedule, ordered=compiled.ordered, most=len(s.program)) == whole

    columns_of = [(part[name], whole[name]) for name in COLUMNS]
    columns_of += [(part["memory"][name], whole["memory"][name]) for name in ("during", "after")]
    for column_of_part, column_of_whole in [*columns_of, (part["text"]["of"], whole["text"]["of"])]:
        assert np.array_equal(numbers(column_of_part), numbers(column_of_whole)[kept])
    rank_of = np.repeat(np.arange(s.program.world), np.diff(numbers(part["offsets"])))
    assert np.array_equal(rank_of, s.program.rank_of[kept])

    def entries(table: Any, *columns: str) -> set[tuple[int, ...]]:
        """Return the entries of a table of the data, each with its numbers in these columns."""
        return set(zip(*(numbers(table[name]).tolist() for name in columns), strict=True))

    def of_kept(of_whole: set[tuple[int, ...]], rows: int) -> set[tuple[int, ...]]:
        """Return the entries of the whole whose first `rows` numbers are rows that the part has, numbered as in the part."""
        number = {row: k for k, row in enumerate(kept.tolist())}
        return {(*(number[row] for row in x[:rows]), *x[rows:]) for x in of_whole if set(x[:rows]) <= set(number)}

    assert entries(part["edges"], "source", "target") == of_kept(entries(whole["edges"], "source", "target"), 2)
    columns = ("send", "receive", "leaves", "arrives")
    assert entries(part["messages"], *columns) == of_kept(entries(whole["messages"], *columns), 2)

    def reads(data: Any) -> set[tuple[int, ...]]:
        """Return the SEND and the RECV of each value, and the row that reads it."""
        messages = numbers(data["values"]["message"])
        ends = [numbers(data["messages"][name])[messages].tolist() for name in ("send", "receive")]
        return set(zip(*ends, numbers(data["values"]["consumer"]).tolist(), strict=True))

    assert reads(part) == of_kept(reads(whole), 3) != set()
    assert entries(part["path"], "row", "start", "end") == of_kept(entries(whole["path"], "row", "start", "end"), 1)
    idle = entries(whole["idle"], "rank", "start", "end", "cause")
    assert entries(part["idle"], "rank", "start", "end", "cause") == {x for x in idle if x[1] < part["until"]}


class Elements(HTMLParser):
    """Collects the elements of a page and their texts.

    Attributes:
        found: the tag of each element, with its attributes.
        texts: by tag, the texts that come right after its start tags.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts.setdefault(self.inside, []).append(data)


def test_the_page_is_one_file_that_can_load_nothing() -> None:
    p = compile_schedule("chimera", {"D": 2, "N": 2}).program
    hostile = "<!--<script </script ></script><img src=x onerror=alert(1)>\u2028'\"&{{script}}\udc80"
    text = page([viewed(simulate(p), hostile)], ["chimerac", hostile], {"D": 2})
    assert text.isascii() and text == page([viewed(simulate(p), hostile)], ["chimerac", hostile], {"D": 2})
    elements = Elements(text)
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == 2 and not {"img", "link", "iframe"} & set(tags)
    for _, attributes in elements.found:
        assert not {"src", "style"} & set(attributes) and not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    data, script = elements.texts["script"]
    assert json.loads(data)["command"] == ["chimerac", hostile] and not set("<>&") & set(data)
    policy = next(x["content"] for _, x in elements.found if x.get("http-equiv") == "Content-Security-Policy")
    assert policy and "default-src 'none'" in policy and "unsafe" not in policy
    for kind, body in (("script", script), ("style", "".join(elements.texts["style"]))):
        assert f"{kind}-src 'sha256-{b64encode(sha256(body.encode()).digest()).decode()}'" in policy


def test_the_command_line_is_kept_without_its_parameters() -> None:
    words = ["chimera", "-p", "D=4", "-pN=8", "--profile", "p100", "-p", "f = 1", "-o", "x.html"]
    assert without_parameters(words) == ["chimera", "--profile", "p100", "-o", "x.html"]


def data_of(text: str) -> Any:
    """Return the data that a page contains."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found
    return json.loads(found[1])


def test_scripts_have_the_colours_of_tasks_only_as_data() -> None:
    assert data_of(page([], [], None))["colours"] == json.loads(json.dumps(page_colours()))
    for folder, names in (("draw.viewer", SCRIPTS), ("playground", PLAYGROUND_SCRIPTS)):
        for name in names:
            script = (files(f"chimerac.compiler.{folder}") / name).read_text()
            assert not [shade for shades in PIPES for shade in shades if shade in script.lower()], name


def test_the_command_writes_one_program_or_several(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chimera", "-p", "D=4", "--emit", "html", "--model", "gpt-small"]) == 0
    found = data_of(capsys.readouterr().out)
    assert found["command"] == ["chimerac", "chimera", "--emit", "html", "--model", "gpt-small"]
    assert found["parameters"] == {"D": 4, "N": 4, "f": 1} and found["panels"][0]["memory"]["unit"] == "bytes"
    assert main(["compare", "chimera", "gpipe", "-p", "N=3", "--emit", "html"]) == 0
    found = data_of(capsys.readouterr().out)
    assert [panel["name"] for panel in found["panels"]] == ["chimera", "gpipe"]
    assert "E210" in found["panels"][0]["reason"] and found["panels"][1]["makespan"] > 0
    assert found["parameters"] == {"D": 4, "N": 3}
