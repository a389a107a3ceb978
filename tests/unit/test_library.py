"""The library: schedules are found by name and by path, and each names its source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.library import entries, find
from tests.helpers import codes_of_call
from tools import ROOT


def test_the_library_has_every_file_with_its_title_and_the_year_of_its_source() -> None:
    by_name = {e.name: e for e in entries()}
    assert {f"{name}.sched" for name in by_name} == {path.name for path in (ROOT / "schedules").glob("*.sched")}
    for e in by_name.values():
        assert e.title and re.search(r"\b20\d\d\b(?!\.)", e.source), e.name  # a year, and not the number of an arXiv paper
    assert by_name["chimera"].parameters == "D=4 N=D f=1"


def test_schedules_are_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("schedule mine")
    (tmp_path / "1f1b").write_text("schedule own")  # a file comes before the library
    for name, text in (("mine", "schedule mine"), (str(tmp_path / "mine"), "schedule mine"), ("1f1b", "schedule own")):
        assert find(name) == find(Path(name)) == Source(name, text)
    assert find("chimera") == find("chimera.sched") == find("schedules/chimera.sched")
    for name in ("other/chimera.sched", "chimera.txt", "", "CHIMERA"):
        assert codes_of_call(find, name) == {"E001"}, name
