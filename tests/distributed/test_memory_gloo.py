"""Real ranks over gloo hold what is predicted, to the byte, after every instruction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.memory_ranks import PROGRAMS

pytestmark = pytest.mark.distributed
ROOT = Path(__file__).parents[2]


def test_two_ranks_hold_what_is_predicted(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "tests/distributed/memory_ranks.py", str(out)],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(out.read_text())
    assert len(found) == PROGRAMS and sum(size for size, _ in found) > 100
    assert [wrong for _, wrong in found] == [[]] * PROGRAMS
