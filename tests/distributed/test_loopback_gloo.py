"""What the loopback shows, once more on real ranks over gloo: shipped schedules bit-equal to one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.gloo_ranks import CASES
from tests.helpers_loopback import deep_model, one_process

pytestmark = pytest.mark.distributed
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run all cases in one set of four ranks."""
    out = tmp_path_factory.mktemp("ranks") / "results.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, "tests/distributed/gloo_ranks.py", str(out)],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_bit_equal_to_one_process(name: str, results: Any) -> None:
    _, parameters, width, _ = CASES[name]
    assert [rank["wrong"] for rank in results[name]] == [[]] * 4
    wanted, _ = one_process(deep_model(6), parameters["N"] * width, iteration=1)
    assert sum(rank["loss"] for rank in results[name]) == wanted != 0
