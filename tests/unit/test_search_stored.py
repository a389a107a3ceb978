"""The searches whose results come with the project: their settings, and their results beside bounds and the library."""

from __future__ import annotations

import json

import pytest

from chimerac.compiler.search.bounds import rank_bounds
from tools.bench_search import FOLDER, GROUPS, settings_of, stored, with_shipped


@pytest.mark.parametrize("group", GROUPS)
def test_the_recorded_settings_are_those_of_the_tool(group: str) -> None:
    rows = json.loads((FOLDER / f"{group}.json").read_text(encoding="utf-8"))
    assert [{k: v for k, v in row.items() if k != "found"} for row in rows] == [vars(s) for s in settings_of(group)]


@pytest.mark.parametrize("group", GROUPS)
def test_the_results_of_searches_are_between_the_bound_and_the_library(group: str) -> None:
    for setting, found in zip(settings_of(group), stored(group), strict=True):
        problem = setting.problem()
        bound = float(max(b.value for b in rank_bounds(problem)) / problem.scale)
        assert bound <= found["bound"] <= found["makespan"] and found["proved"] == (found["bound"] == found["makespan"])
        assert found["shipped_makespan"] is None or found["makespan"] <= found["shipped_makespan"]


# One row of each group.
@pytest.mark.parametrize(("group", "row"), [("published", 5), ("uneven", 5), ("small", 12)])
def test_a_recorded_row_has_the_best_schedules_of_the_library_of_today(group: str, row: int) -> None:
    found = stored(group)[row]
    assert with_shipped(settings_of(group)[row], found) == found
