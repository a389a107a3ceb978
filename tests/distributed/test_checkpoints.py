"""Checkpoints: torchrun restarts ranks after a kill, another schedule goes on, and jobs survive kills at random moments."""

import json
import sys
from typing import Any

import pytest

from tests.helpers_processes import TORCHRUN, run_command

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("ranks") / "out.json"
    run = run_command(*TORCHRUN, "--max-restarts", "1", "tests/distributed/checkpoint_ranks.py", str(out), timeout_s=200)
    assert run.returncode == 0, run.stderr
    return json.loads(out.read_text())


def test_ranks_that_are_started_again_go_on_from_the_last_checkpoint_bit_by_bit(results: Any) -> None:
    start, losses, messages = results["restarted"]
    _, losses_without_pause, _ = results["whole"]
    assert start == 6 and "iteration_00000006" in messages[0], "a rank was killed after iteration 8 or 9"
    assert losses == losses_without_pause[6:]
    assert results["equal"] == [True] * 2, "each rank has the weights and the optimizer state of a training without a pause"


def test_ranks_go_on_under_another_schedule_and_width(results: Any) -> None:
    start, losses, messages = results["other schedule"]
    _, losses_without_pause, _ = results["whole"]
    assert start == 9 and "written under chimera, D = 2, W = 1" in messages[0]
    assert losses == pytest.approx(losses_without_pause[9:], rel=1e-5)  # gradients are added in another order


def test_a_process_that_is_killed_again_and_again_has_the_losses_of_one_that_is_not() -> None:
    run = run_command(sys.executable, "-m", "tests.distributed.killed", "--kills", "3", timeout_s=200)
    assert run.returncode == 0, run.stderr
    assert "3 processes killed" in run.stdout


@pytest.mark.timeout(600)
def test_a_job_with_a_killed_rank_is_restarted_and_has_the_losses_of_one_without_kills() -> None:
    run = run_command(sys.executable, "-m", "tests.distributed.killed_ranks", "--kills", "1", "--seed", "3", timeout_s=550)
    assert run.returncode == 0, run.stderr
    assert "kills of ranks: 1 " in run.stdout
