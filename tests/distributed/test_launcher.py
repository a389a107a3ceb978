"""All ranks end with their launcher: after Ctrl-C, after SIGTERM to it or to one rank, and if it is killed.

test_checkpoints.py tests that the launcher restarts the ranks after one of them was killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers_processes import (
    LAUNCHER,
    LONG,
    TORCHRUN,
    children,
    have_ended,
    start_process,
    wait_for_iteration,
    wait_until,
)

pytestmark = pytest.mark.distributed


def has_loaded_torch(process: subprocess.Popen[str]) -> bool:
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def test_ctrl_c_ends_the_launcher_and_its_ranks_with_one_line() -> None:
    # `early` is interrupted while it starts, and `late` while it trains.
    with start_process(sys.executable, *LONG) as early, start_process(sys.executable, *LONG) as late:
        wait_until(lambda: has_loaded_torch(early), early)
        os.kill(early.pid, signal.SIGINT)
        assert early.communicate(timeout=30) == ("", "interrupted\n") and early.returncode == 130
        ranks = wait_for_iteration(late)
        os.kill(late.pid, signal.SIGINT)
        assert late.communicate(timeout=30)[1] == "interrupted\n" and late.returncode == 130
        assert have_ended(ranks, within_s=10)


def test_sigterm_to_the_launcher_stops_all_ranks_after_an_iteration() -> None:
    with start_process(sys.executable, *LONG) as launcher:
        ranks = wait_for_iteration(launcher)
        os.kill(launcher.pid, signal.SIGTERM)
        out, message = launcher.communicate(timeout=60)
        assert (launcher.returncode, message) == (143, "") and have_ended(ranks, within_s=10)
    assert re.search(r"^stopped by SIGTERM after iteration \d+ of 1000000$", out, re.MULTILINE)


def test_sigterm_to_one_rank_stops_all_of_them_and_none_is_restarted() -> None:
    with start_process(*LAUNCHER, "--max-restarts", "2", *LONG) as launcher:
        ranks = wait_for_iteration(launcher)
        os.kill(ranks[1], signal.SIGTERM)
        out, message = launcher.communicate(timeout=60)
        assert (launcher.returncode, message) == (143, "") and have_ended(ranks, within_s=10)
    assert len(re.findall(r"^stopped by SIGTERM after iteration \d+ of 1000000$", out, re.MULTILINE)) == 1


@pytest.mark.parametrize("command", [[sys.executable], TORCHRUN], ids=["launcher", "torchrun"])
def test_if_the_process_that_starts_the_ranks_is_killed_no_rank_is_left(command: list[str]) -> None:
    with start_process(*command, *LONG) as parent:
        wait_until(lambda: children(parent.pid), parent)
        ranks = children(parent.pid)
        parent.kill()
        assert have_ended(ranks, within_s=10)
