"""Traces of simulated and measured iterations: valid trace events, from which the makespan and the bubbles can be computed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.command.main import main
from chimerac.compiler.exchange.perfetto import trace_json
from tests.helpers_trace import Event, events_of, phase


def figures(events: list[Event], processes: range) -> tuple[float, float]:
    """Return the makespan in ms and the bubble ratio of some processes of a trace.

    Args:
        processes: their ids.
    """
    slices = [e for e in phase(events, "X") if e["pid"] in processes and e["cat"] in ("task", "all-reduce", "end")]
    makespan = max(e["ts"] + e["dur"] for e in slices)
    busy = sum(e["dur"] for e in slices if e["cat"] == "task")
    return makespan / 1000, 1 - busy / (len(processes) * makespan)


@pytest.mark.parametrize(
    ("name", "sizes", "costs"),
    [
        ("chimera", {"D": 4, "N": 4}, {}),
        ("chimera", {"D": 4, "N": 4}, {"hop": "0.5"}),
        ("dualpipev", {"D": 2, "N": 4}, {"hop": "0.1"}),
        ("zb_v", {"D": 2, "N": 4}, {"hop": "1"}),
        ("gpipe", {"D": 3, "N": 5}, {"F": "0", "hop": "3"}),
    ],
)
def test_makespan_and_bubbles_follow_from_a_trace(
    name: str, sizes: dict[str, int], costs: dict[str, Any], tmp_path: Path
) -> None:
    """sizes: the parameters of the schedule. A unit of cost is 1 ms in the trace."""
    program = compile_schedule(name, sizes).program
    s = simulate(program, {k: float(v) for k, v in costs.items()})
    path = tmp_path / "trace.json"
    options = [word for k, v in sizes.items() for word in ("-p", f"{k}={v}")]
    options += [word for k, v in costs.items() for word in ("--cost", f"{k}={v}")]
    assert main([name, *options, "--emit", "perfetto", "-o", str(path)]) == 0
    events = events_of(path)
    assert figures(events, range(program.world)) == pytest.approx((s.makespan / s.scale, s.bubble_ratio))
    names = [e["name"] for e in phase(events, "X") if e["cat"] == "task"]
    assert sorted(names) == sorted(program.text(row) for row in range(len(program)) if program.table.is_task[row])
    departures = {e["id"]: e for e in phase(events, "s")}  # the starts of arrows
    arrivals = {e["id"]: e for e in phase(events, "f")}  # and their ends
    assert len(departures) == len(s.waits.send)
    hop_us = 1000 * float(costs.get("hop", 0))
    assert all(arrivals[k]["ts"] >= departures[k]["ts"] + hop_us - 1e-6 for k in departures), "values are read after arrival"


def test_a_measured_iteration_has_processes_of_its_own_after_the_predicted_ones(tmp_path: Path) -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program
    s = simulate(program)
    t = s.timeline
    # A unit of cost took 7 ms, and the iteration ended 3 ms after its last task.
    measured = replace(t, start=7000 * t.start, end=7000 * t.end, scale=1000, unit="ms", finish=7000 * s.makespan + 3000)
    path = tmp_path / "trace.json"
    path.write_text(trace_json(s, measured))
    events = events_of(path)
    assert json.loads(path.read_text())["otherData"]["unit_of_cost_us"] == pytest.approx(7000)
    assert figures(events, range(2)) == pytest.approx((7 * s.makespan, s.bubble_ratio))
    assert figures(events, range(2, 4))[0] == pytest.approx(7 * s.makespan + 3)
    processes = [e["args"]["name"] for e in phase(events, "M") if e["name"] == "process_name"]
    assert processes == ["rank 0 predicted", "rank 1 predicted", "rank 0 measured", "rank 1 measured"]


def test_messages_that_are_under_way_at_one_time_are_on_different_tracks() -> None:
    s = simulate(compile_schedule("gpipe", {"D": 2, "N": 6}).program, {"hop": 5.0})
    events = json.loads(trace_json(s))["traceEvents"]
    lanes = {e["tid"] for e in phase(events, "X") if e["cat"] == "message" and e["pid"] == 0}
    assert len(lanes) > 1
    for lane in lanes:
        own = sorted((e["ts"], e["dur"]) for e in phase(events, "X") if (e["pid"], e["tid"]) == (0, lane))
        assert all(a + length <= b for (a, length), (b, _) in pairwise(own))
