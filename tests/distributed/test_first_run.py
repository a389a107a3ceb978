"""Real ranks over gloo: their gradients are those of one process, a mistake is reported once, and no rank is left running."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.distributed.programs import TWO_RANKS
from tests.helpers_processes import (
    CHIMERA,
    LONG,
    RUN,
    TORCHRUN,
    have_ended,
    kill,
    results_of,
    run_command,
    start_process,
    wait_for_iteration,
)
from tools import ROOT

pytestmark = pytest.mark.distributed

THREE_RANKS = [*TORCHRUN[:-1], "3"]  # the last word of TORCHRUN is the number of ranks, 2


@contextmanager
def training() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start a long training and wait for its first iteration. Yield the process of torchrun and the process ids of the ranks.

    At the end the ranks are killed.
    """
    with start_process(*TORCHRUN, *LONG) as process:
        ranks = wait_for_iteration(process)
        assert len(ranks) == 2
        try:
            yield process, ranks
        finally:
            for pid in ranks:
                kill(pid)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run all programs written by hand for two ranks in one pair of processes, and return the results."""
    return results_of("ranks.py", 2, tmp_path_factory.mktemp("ranks") / "results.json")


@pytest.mark.parametrize("name", TWO_RANKS)
def test_gradients_and_losses_are_bit_equal_to_one_process(name: str, results: Any) -> None:
    found = results[name]
    assert [iteration["differing"] for rank in found["ranks"] for iteration in rank] == [[]] * 4  # two ranks, two iterations
    losses = [sum(rank[t]["loss"] for rank in found["ranks"]) for t in range(2)]
    assert losses == found["one process"] and losses[0] != losses[1]


def test_a_sharded_optimizer_gives_the_same_weights(results: Any) -> None:
    # Two trainings with it are compared with one without. In the second of the two, messages are copied through other memory.
    assert results["sharded optimizer"] == [True, True]


def test_a_wrong_number_of_ranks_is_one_finding_and_no_hang() -> None:
    run = run_command(*THREE_RANKS, RUN, "schedules/chimera.sched", "-p", "D=4")
    assert run.returncode == 1
    assert run.stderr.count("error[E800]: 4 ranks are needed, and there are 3") == 1
    assert f'File "{ROOT}/interpreter' not in run.stderr, "a mistake of the user must not print a traceback of the interpreter"


def test_a_wrong_option_is_reported_by_one_rank() -> None:
    run = run_command(*THREE_RANKS, RUN, *CHIMERA, "--lr", "fast")
    assert run.returncode == 1 and run.stderr.count("argument --lr: expected a number, found 'fast'") == 1


def test_a_killed_rank_ends_the_job_and_is_the_first_cause_for_torchrun() -> None:
    with training() as (torchrun, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        _, err = torchrun.communicate(timeout=30)
        assert torchrun.returncode == 1
        assert have_ended(ranks, within_s=5)
    (message,) = re.findall("^error: .*", err, re.MULTILINE)
    assert re.search("^error: rank 0, .* failed: rank 1 has ended, in (instruction|the epilogue)", message)
    cause = err[err.index("Root Cause") :]
    assert re.search(r"rank +: 1 ", cause) and "Signal 9 (SIGKILL)" in cause
    assert f"{ROOT}/interpreter" not in err, "the output has a traceback of the interpreter"


def test_ctrl_c_ends_every_rank_without_a_traceback_of_the_interpreter() -> None:
    with training() as (torchrun, ranks):
        os.killpg(torchrun.pid, signal.SIGINT)
        _, err = torchrun.communicate(timeout=40)
        assert torchrun.returncode != 0
        assert have_ended(ranks, within_s=5)
        assert f"{ROOT}/interpreter" not in err
