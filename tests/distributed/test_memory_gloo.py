"""Real ranks over gloo hold exactly the predicted number of bytes after every instruction."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.memory_ranks import PROGRAMS
from tests.helpers_processes import results_of

pytestmark = pytest.mark.distributed


def test_two_ranks_hold_the_predicted_bytes(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    found = results_of("memory_ranks.py", 2, out)
    assert len(found) == PROGRAMS and sum(instructions for instructions, _ in found) > 100
    assert [wrong for _, wrong in found] == [[]] * PROGRAMS
