"""The solver of the search: its bounds, and that Ctrl-C stops it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, wait

import pytest

from chimerac.compiler.search.orders import search
from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import one_after_another
from chimerac.compiler.search.solver import solve
from tests.helpers_command import SIGINT_ON
from tests.helpers_search import two_pipes
from tools import ROOT


def hard_problem() -> Problem:
    """Return a problem on which the solver works for many seconds: `D=4 N=16, split, hop 1/10` of docs/search.md."""
    return two_pipes(ranks=4, total=16, kinds="FIW", hop=1, unit=10)


RANK_BOUND = 494  # the highest bound of a rank in `hard_problem` (compiler/search/bounds.py)


def test_the_solver_returns_a_bound_only_if_it_is_higher_than_the_given_one() -> None:
    problem = two_pipes(ranks=4, total=4, kinds="FB", hop=0)
    optimum = search(problem, known=[], seconds=20)
    assert optimum.best is not None and optimum.best.makespan == optimum.bound
    assert solve(problem, optimum.best, optimum.bound, seconds=20, seed=0).bound == 0  # 0: it proved none that is higher


def test_ctrl_c_stops_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of `wait` raises KeyboardInterrupt, maybe before the solver has begun.

    `solve` then stops the solver, although it may run for an hour, and waits until it has ended.
    """
    problem = hard_problem()
    calls = []

    def interrupted(running: list[Future[object]], timeout: float) -> None:
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        wait(running, timeout)

    monkeypatch.setattr("chimerac.compiler.search.solver.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(problem, one_after_another(problem), RANK_BOUND, seconds=3600, seed=0)
    assert len(calls) > 1


INTERRUPTED = """
import os, signal, threading
from chimerac.compiler.search.sequences import one_after_another
from chimerac.compiler.search.solver import solve
from tests.unit.test_search_solver import RANK_BOUND, hard_problem

problem = hard_problem()
order = one_after_another(problem)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    solve(problem, order, RANK_BOUND, seconds=3600, seed=0)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_stops_the_solver() -> None:
    """In a process of its own, which gets the signal while its main thread waits for the solver."""
    command = [sys.executable, "-c", INTERRUPTED]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=SIGINT_ON, timeout=100)
    assert completed.stdout.split() == ["interrupted"], completed.stderr
