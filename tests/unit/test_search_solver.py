"""The solver of the search: its bounds, and that Ctrl-C stops it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, wait

import pytest

from chimerac.compiler.search.orders import search
from chimerac.compiler.search.sequences import one_after_another
from chimerac.compiler.search.solver import solve
from tests.helpers_command import SIGINT_ON
from tests.helpers_search import two_pipes
from tools import ROOT

UNPROVED = 494  # the bound of the ranks for two_pipes(4, 16, "FIW", 1, unit=10); an hour does not prove more


def test_the_solver_returns_a_bound_only_if_it_is_higher_than_the_given_one() -> None:
    problem = two_pipes(4, 4, "FB", 0)
    optimum = search(problem, [], 20)
    assert optimum.best is not None and optimum.best.makespan == optimum.bound
    assert solve(problem, optimum.best, optimum.bound, 20, 0).bound == 0


def test_ctrl_c_stops_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the solver has begun: `solve` ends at once, although it may take an hour."""
    problem = two_pipes(4, 16, "FIW", 1, unit=10)
    calls = []

    def interrupted(running: list[Future[object]], timeout: float) -> None:
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        wait(running, timeout)

    monkeypatch.setattr("chimerac.compiler.search.solver.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(problem, one_after_another(problem), UNPROVED, 3600, 0)
    assert len(calls) > 1


INTERRUPTED = """
import os, signal, threading
from chimerac.compiler.search.sequences import one_after_another
from chimerac.compiler.search.solver import solve
from tests.helpers_search import two_pipes
from tests.unit.test_search_solver import UNPROVED

problem = two_pipes(4, 16, "FIW", 1, unit=10)
order = one_after_another(problem)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    solve(problem, order, UNPROVED, 3600, 0)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_stops_the_solver() -> None:
    """In a process of its own, where the test is in the main thread: the solver catches no signals itself."""
    command = [sys.executable, "-c", INTERRUPTED]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=SIGINT_ON, timeout=100)
    assert completed.stdout.split() == ["interrupted"], completed.stderr
