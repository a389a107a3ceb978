"""Checkpoints of real ranks: a rank dies and torchrun starts all again; another schedule goes on; processes are killed."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers_torchrun import ROOT, results_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return results_of("checkpoint_ranks.py", 4, tmp_path_factory.mktemp("ranks") / "out.json", restarts=1)


def test_ranks_that_are_started_again_go_on_from_the_last_checkpoint_bit_by_bit(results: Any) -> None:
    start, losses, messages = results["again"]
    assert start == 6 and "iteration_00000006" in messages[0], "a rank was killed after iteration 8"
    assert losses == results["whole"][1][6:]
    assert results["equal"] == [True] * 4, "weights and optimizer of every rank"


def test_ranks_go_on_under_another_schedule_and_width(results: Any) -> None:
    start, losses, messages = results["other"]
    assert start == 9 and "written under chimera, D = 4, W = 1" in messages[0]
    assert losses == pytest.approx(results["whole"][1][9:], rel=1e-5)


def test_a_process_that_is_killed_again_and_again_has_the_losses_of_one_that_is_not() -> None:
    command = [sys.executable, "-m", "tests.distributed.killed", "--kills", "5"]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "5 processes killed" in run.stdout


@pytest.mark.timeout(600)
def test_a_job_whose_ranks_are_killed_is_restarted_and_has_the_losses_of_one_that_is_not() -> None:
    command = [sys.executable, "-m", "tests.distributed.killed_ranks", "--kills", "1", "--seed", "3"]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "kills of ranks: 1 " in run.stdout
