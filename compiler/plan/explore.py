"""The best configuration of a problem: the fastest one that fits, by the simulation of its compiled program.

First every configuration gets bounds, which need no program. Those whose bounds show that they are not possible or do not fit
are left out. The others are tried in the order of their least times. One is left out if even its least time is more than the
best time so far of replicas with as many ranks. The configurations are tried in parallel. Whether one is left out as too slow
is decided from the results of those at least `AHEAD` places before it. So this does not depend on the number of processes, nor
on which of them is faster.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.compiler.plan.evaluate import Bounds, Evaluator, Outcome
from chimerac.compiler.plan.space import Configuration, Problem, configurations

AHEAD = 32  # whether a configuration is left out depends on the results of those at least so many places before it
AT_ONCE = 16  # configurations that a process gets at once to compute their bounds
# The choices in one of which a neighbour differs from the best configuration, in the order of the rows of the printed table.
DIFFERENCES = ("D x W", "micro-batch", "parameter", "recompute", "schedule")


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The result of a search for the best configuration.

    Attributes:
        best: the outcome of the fastest configuration that fits.
        outcomes: those of all configurations that the search tried, without those that it tried only as neighbours.
        neighbours: for configurations that differ from the best one in one choice, the choice and the outcome (`_neighbours`).
        is_interrupted: whether Ctrl-C ended the search. Then neighbours is empty.
        total: the number of all configurations. The next four count some of them.
        impossible: those that are not possible, by the code of the reason, or by the reason itself if it has no code.
        too_large: those whose bounds show that they do not fit.
        too_slow: those left out because even their least time is more than the time of another one whose replicas have as many
            ranks.
        left: those that were not tried, since the search was interrupted.
    """

    problem: Problem
    best: Outcome
    outcomes: Mapping[Configuration, Outcome]
    total: int
    impossible: Mapping[str, int]
    too_large: int
    too_slow: int
    left: int = 0
    neighbours: Sequence[tuple[str, Outcome]] = ()
    is_interrupted: bool = False

    @property
    def by_ranks(self) -> dict[int, Outcome]:
        """Return the best outcome for each number of ranks of a replica, ascending."""
        found: dict[int, Outcome] = {}
        for o in sorted((o for o in self.outcomes.values() if o.can_run), key=lambda o: o.key):
            found.setdefault(o.configuration.ranks, o)
        return dict(sorted(found.items()))


@dataclass(slots=True)
class _State:
    """The outcomes of a search so far.

    Attributes:
        best: by the ranks of a replica, the least makespan.
        too_slow: how many are left out.
    """

    outcomes: dict[Configuration, Outcome] = field(default_factory=dict)
    best: dict[int, int] = field(default_factory=dict)
    too_slow: int = 0

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a configuration that was tried."""
        self.outcomes[outcome.configuration] = outcome
        if outcome.makespan is not None:
            ranks = outcome.configuration.ranks
            self.best[ranks] = min(outcome.makespan, self.best.get(ranks, outcome.makespan))


def search(problem: Problem, processes: int = 1, progress: Callable[[int, int], None] = lambda done, total: None) -> PlanResult:
    """Return the best configuration and how it was found.

    Args:
        progress: called after each configuration that is tried or left out as too slow. Its arguments: how many these are so
            far, and how many at the end.

    After Ctrl-C the best so far is returned; if there is none, KeyboardInterrupt is raised.

    Raises ChimeraError: E714 a profile of another model, E718 nothing fits, E719 nothing is possible, the findings of a
    schedule's text, and the errors of `find_model` (compiler/descriptions.py).
    """
    evaluator = Evaluator(problem)
    evaluator.check()
    every = sorted(configurations(problem, evaluator.trees))
    state = _State()
    with _Workers(evaluator, processes) as workers:
        bounds = dict(zip(every, workers.bounds(every), strict=True))
        possible = [c for c in every if not bounds[c].reason]
        impossible = Counter(b.reason.partition(":")[0] for b in bounds.values() if b.reason)
        if not possible:
            raise _nothing_possible(problem, [b.reason for b in bounds.values()])
        fitting = [c for c in possible if bounds[c].memory <= problem.limit]
        too_large = len(possible) - len(fitting)
        fitting.sort(key=lambda c: (bounds[c].time, bounds[c].tasks, c))
        interrupted = False
        try:
            for done, _ in enumerate(_try(fitting, bounds, workers, state), 1):
                progress(done, len(fitting))
        except KeyboardInterrupt:
            interrupted = True
            workers.kill()
            if not state.best:
                raise
        runnable = [o for o in state.outcomes.values() if o.can_run]
        if not runnable:
            raise _nothing_fits(problem, possible, bounds, workers, state)
        best = min(runnable, key=lambda o: o.key)
        impossible.update(o.reason.partition(":")[0] for o in state.outcomes.values() if o.reason)
        left = len(fitting) - len(state.outcomes) - state.too_slow
        result = PlanResult(problem, best, dict(state.outcomes), len(every), impossible, too_large, state.too_slow, left)
        if interrupted:
            return replace(result, is_interrupted=True)
        try:
            return replace(result, neighbours=_neighbours(best.configuration, possible, workers, state))
        except KeyboardInterrupt:
            workers.kill()
            return replace(result, is_interrupted=True)


def _try(
    queue: Iterable[Configuration], bounds: Mapping[Configuration, Bounds], workers: _Workers, state: _State
) -> Iterator[None]:
    """Try configurations in their order. Yields after each that is tried or left out."""
    running: deque[Future[Outcome] | None] = deque()  # None: one that is left out as too slow

    def finish() -> None:
        """Wait for the outcome of the first configuration in `running`."""
        future = running.popleft()
        if future is not None:
            state.add(workers.result(future))

    for c in queue:
        if len(running) >= AHEAD:
            finish()
            yield
        if bounds[c].time > state.best.get(c.ranks, bounds[c].time):
            state.too_slow += 1
            running.append(None)
        else:
            running.append(workers.outcome(c))
    while running:
        finish()
        yield


def _neighbours(
    best: Configuration, possible: Sequence[Configuration], workers: _Workers, state: _State
) -> list[tuple[str, Outcome]]:
    """Return, for each possible configuration that differs from the best one in one choice, the choice and the outcome.

    `_difference` says what counts as one choice. Of the configurations of another schedule only the one with the best
    parameters is returned. Configurations that do not fit are returned too. Those whose program turned out not to be possible
    are left out.
    """
    near = [(what, c) for c in possible if (what := _difference(best, c, possible))]
    futures = {c: workers.outcome(c) for _, c in near if c not in state.outcomes}
    outcomes = dict(state.outcomes) | {c: workers.result(future) for c, future in futures.items()}
    found: dict[tuple[object, ...], tuple[str, Outcome]] = {}
    for what, c in near:
        o = outcomes[c]
        if o.reason:
            continue
        key = (what, c.schedule) if what == "schedule" else (what, c)
        known = found.get(key)
        if known is None or _preference(o) < _preference(known[1]):
            found[key] = (what, o)
    order = {what: k for k, what in enumerate(DIFFERENCES)}
    return sorted(found.values(), key=lambda x: (order[x[0]], _preference(x[1])))


def _preference(o: Outcome) -> tuple[Any, ...]:
    """Return a key that sorts better outcomes first; those that do not fit come last, by their memory."""
    return (False, *o.key) if o.can_run else (True, o.memory, o.configuration)


def _difference(best: Configuration, other: Configuration, possible: Sequence[Configuration]) -> str:
    """Return in which choice another configuration differs from the best one, by its name in DIFFERENCES.

    Return '' if it differs in none or in several. All parameters of a schedule besides D and N are one choice. Those of another
    schedule are not compared. Of D x W and of micro-batches only the nearest possible values count: return '' if another one is
    between the two.
    """
    same = {
        "D x W": best.ranks == other.ranks,
        "micro-batch": best.micro_batch == other.micro_batch,
        "parameter": best.own == other.own,
        "recompute": best.recompute == other.recompute,
        "schedule": best.schedule == other.schedule,
    }
    if not same["schedule"]:  # another schedule has other parameters, so these are not compared
        return "schedule" if same["D x W"] and same["micro-batch"] and same["recompute"] else ""
    different = [what for what, is_same in same.items() if not is_same]
    if len(different) != 1:
        return ""
    for what, name in (("D x W", "ranks"), ("micro-batch", "micro_batch")):
        if different == [what]:
            here, there = getattr(best, name), getattr(other, name)
            between = (
                getattr(c, name)
                for c in possible
                if (c.schedule, c.own, c.recompute) == (best.schedule, best.own, best.recompute)
                and (c.ranks == best.ranks or what == "D x W")
                and (c.micro_batch == best.micro_batch or what == "micro-batch")
            )
            if any(min(here, there) < x < max(here, there) for x in between):
                return ""
    return different[0]


def _nothing_possible(problem: Problem, all_reasons: Sequence[str]) -> ChimeraError:
    """Return the finding E719 with the most common reasons.

    Args:
        all_reasons: why each configuration is impossible.
    """
    p, ranks = problem, count_text(problem.ranks, "rank")
    message = f"no schedule can run {p.model} on {ranks} with {count_text(p.batch, 'sample')} in an iteration"
    reasons = Counter(all_reasons).most_common(3)
    notes = tuple(f"{count} of {len(all_reasons)} configurations: {reason}" for reason, count in reasons)
    help = "the number of replicas divides both the ranks and the samples: give numbers with common divisors, and D that a "
    help += "schedule allows; a replica has at most one rank for each layer; --micro-batch and -p leave fewer to try"
    if all_reasons and all(reason.startswith("E3") for reason in all_reasons):  # findings of orders
        help = "compile the schedule by itself, for instance with `chimerac SCHEDULE -p D=4`, and correct its order"
    return refuse("E719", message, notes=notes, help=help)


def _nothing_fits(
    problem: Problem,
    possible: Sequence[Configuration],
    bounds: Mapping[Configuration, Bounds],
    workers: _Workers,
    state: _State,
) -> ChimeraError:
    """Return the finding E718 with the least memory that would do, or E719 if no configuration is possible.

    Further configurations are compiled while their bounds do not rule out that they need less.
    """
    refused = [b.reason for b in bounds.values() if b.reason] + [o.reason for o in state.outcomes.values() if o.reason]
    least = min((o for o in state.outcomes.values() if not o.reason), key=lambda o: o.memory, default=None)
    for c in sorted(possible, key=lambda c: (bounds[c].memory, bounds[c].tasks, c)):
        if c in state.outcomes:
            continue
        if least is not None and bounds[c].memory >= least.memory:
            break
        outcome = workers.result(workers.outcome(c))
        if outcome.reason:
            refused.append(outcome.reason)
        elif least is None or outcome.memory < least.memory:
            least = outcome
    if least is None:
        return _nothing_possible(problem, refused)
    p = problem
    message = f"no configuration of {p.model} on {count_text(p.ranks, 'rank')} fits: a rank has {p.limit:,} bytes"
    c = least.configuration
    own = "".join(f" -p {name}={value}" for name, value in c.own)
    saving = (", recomputation" if c.recompute else "") + (", ZeRO-1" if least.zero else "")
    note = f"{least.memory:,} bytes: {c.schedule}{own}, D={c.ranks}, W={c.width}, micro-batches of {c.micro_batch}{saving}"
    help = f"the least that would do is --memory {least.memory}" + (
        "; or allow --zero auto" if p.zero is False and p.state.per_gradient else ""
    )
    return refuse("E718", message, notes=(note,), help=help)


_evaluator: Evaluator  # set in each process of a `_Workers`


def _begin(problem: Problem) -> None:
    """Prepare a process of a `_Workers`."""
    global _evaluator
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the search, which then ends its processes
    _evaluator = Evaluator(problem)


def _bounds(c: Configuration) -> Bounds:
    return _evaluator.bounds(c)


def _outcome(c: Configuration) -> Outcome:
    return _evaluator.outcome(c)


class _Workers:
    """Processes that evaluate configurations. With `processes` 1, or after one of them was killed, the caller does."""

    def __init__(self, evaluator: Evaluator, processes: int) -> None:
        self._evaluator = evaluator
        self._others = set(multiprocessing.active_children())  # processes that `kill` must not end
        self._pool: ProcessPoolExecutor | None = None
        self._configurations: dict[Future[Outcome], Configuration] = {}  # by the futures of the pool
        if processes > 1:
            # With fork the processes need not import the compiler, which takes 0.4 s.
            method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
            context = multiprocessing.get_context(method)
            self._pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(evaluator.problem,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self.kill()
        elif self._pool is not None:
            self._pool.shutdown()

    def kill(self) -> None:
        """End the processes, whatever they do, and wait for their end."""
        if self._pool is not None:
            processes = set(multiprocessing.active_children()) - self._others
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
            for process in processes:
                process.kill()
            for process in processes:
                process.join()

    def bounds(self, every: Sequence[Configuration]) -> list[Bounds]:
        """Return the bounds of configurations."""
        if self._pool is not None:
            with suppress(BrokenProcessPool):
                return list(self._pool.map(_bounds, every, chunksize=AT_ONCE))
            self._pool = None
        return [self._evaluator.bounds(c) for c in every]

    def outcome(self, c: Configuration) -> Future[Outcome]:
        """Begin to evaluate a configuration; without a pool, evaluate it at once."""
        if self._pool is not None:
            try:
                future = self._pool.submit(_outcome, c)
            except BrokenProcessPool:
                self._pool = None
            else:
                self._configurations[future] = c
                return future
        done: Future[Outcome] = Future()
        done.set_result(self._evaluator.outcome(c))
        return done

    def result(self, future: Future[Outcome]) -> Outcome:
        """Return the outcome of a configuration whose evaluation has begun."""
        try:
            return future.result()
        except BrokenProcessPool:
            self._pool = None
            return self._evaluator.outcome(self._configurations[future])
