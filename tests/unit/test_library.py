"""The library: schedules are found by name and by path, and each names its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chimerac.compiler.library import entries, find, names
from tests.helpers import findings_of_call


def test_the_library_names_the_source_of_each_scheme() -> None:
    found = {e.name: e for e in entries()}
    assert set(found) == set(names())
    for e in found.values():
        assert e.title and re.search(r"\d{4}", e.source), e.name
    assert found["chimera"].parameters == "D=4 N=D f=1"


def test_schedules_are_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find("chimera") == find("chimera.sched") == find("schedules/chimera.sched")
    for name in ("other/chimera.sched", "chimera.txt", "", "CHIMERA"):
        assert [d.code for d in findings_of_call(find, name)] == ["E001"], name
