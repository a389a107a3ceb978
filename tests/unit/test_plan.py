"""The search for the fastest configuration: compared with brute force, which compiles the programs of all replicas."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import product

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.profile import Link, profile_from_json
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.durations import profiled_durations
from chimerac.compiler.analyze.memory import OptimizerState, memory
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.library import find
from chimerac.compiler.plan.evaluate import Evaluator, Outcome
from chimerac.compiler.plan.explore import search
from chimerac.compiler.plan.space import Configuration, Problem
from chimerac.compiler.profiles import find_profile
from tests.helpers import EXAMPLE_PROFILE, findings_of_call

SCHEDULES = ("1f1b", "chimera", "interleaved", "chimera_halving", "zb_h1")
STATE = OptimizerState(Fraction(2))


def problem(**changes: object) -> Problem:
    """Return a small problem, in which the links are slow enough to matter."""
    link = Link(latency_s=1e-4, bytes_per_s=1e8)
    profile = replace(profile_from_json(EXAMPLE_PROFILE.read_text()), point_to_point=link, all_reduce=())
    schedules = {name: find(name) for name in SCHEDULES}
    given = Problem(schedules, "gpt-nano", profile, ranks=4, batch=16, limit=2**30, state=STATE)
    return replace(given, **changes)


@dataclass(frozen=True)
class Tried:
    """A configuration that brute force has tried, or the search (`as_tried`).

    Attributes:
        sizes: the parameters of the schedule.
        makespan: in nanoseconds.
        memory: bytes of the rank that needs most.
        shared: the same if the holders of a stage share out the optimizer's state. `shared` is not compared: `as_tried` does
            not set it.
    """

    schedule: str
    sizes: dict[str, int]
    width: int
    micro_batch: int
    recompute: bool
    makespan: int
    memory: int
    shared: int = field(default=0, compare=False)


@cache
def brute_force() -> list[Tried]:
    """Return every configuration of `problem()` that compiles."""
    return list(_brute_force(problem()))


def _brute_force(p: Problem) -> Iterator[Tried]:
    """Yield every configuration that compiles. Its time and memory are those of its verified program over all replicas."""
    for schedule in p.schedules:
        parameter = {"chimera": "f", "interleaved": "v"}.get(schedule)
        own_sizes = [{parameter: value} for value in (1, 2, 4)] if parameter else [{}]
        for d, b, own, recompute in product(range(1, 5), range(1, 17), own_sizes, p.recompute):
            w = p.ranks // d
            if p.ranks % d or p.batch % (w * b):
                continue
            sizes = {"D": d, "N": p.batch // (w * b) * parts_of(schedule), **own}
            try:
                program = compile_schedule(schedule, sizes, width=w, recompute="all" if recompute else "none").program
                model = find_model(p.model, program.header.samples, b)
                costs = p.profile.layer_nanoseconds(model)
                program = program.with_partition(balanced(model, program.header.stages, costs))
                times = simulate(program, durations=profiled_durations(program, model, p.profile))
            except ChimeraError:
                continue
            states = (p.state, replace(p.state, zero=True))
            peaks = (max(x.peak for x in memory(program, model, state)) for state in states)
            yield Tried(schedule, sizes, w, b, recompute, times.makespan, *peaks)


def parts_of(schedule: str) -> int:
    """Return how many micro-batches of a schedule make one of the size that a run is given."""
    return 2 if schedule == "chimera_halving" else 1


def as_tried(c: Configuration, makespan: int | None, peak: int) -> Tried:
    """Return a configuration of the search in the form of `brute_force`.

    Args:
        makespan, peak: of its outcome.
    """
    assert makespan is not None
    sizes = {"D": c.ranks, "N": c.micro_batches * parts_of(c.schedule), **dict(c.own)}
    return Tried(c.schedule, sizes, c.width, c.micro_batch, c.recompute, makespan, peak)


def test_the_best_is_that_of_brute_force_over_all_replicas() -> None:
    """The time and memory of each configuration that the search tried are those of its program over all replicas."""
    p = problem()
    known = brute_force()
    assert len(known) > 50
    found = search(p)
    best = min(known, key=lambda x: x.makespan)
    assert found.best.makespan == best.makespan
    tried = [as_tried(o.configuration, o.makespan, o.memory) for o in found.outcomes.values() if o.can_run]
    assert tried and all(x in known for x in tried)
    # The search leaves out only what cannot be fastest for its D.
    assert found.too_slow > 0 and len(known) == len(tried) + found.too_slow
    for d, o in found.by_ranks.items():
        assert o.makespan == min(x.makespan for x in known if x.sizes["D"] == d)


def test_with_little_memory_the_best_is_that_of_brute_force_that_fits() -> None:
    known = brute_force()
    limits = sorted({x.memory for x in known})
    for limit in (limits[0], limits[len(limits) // 4], limits[len(limits) // 2]):
        found = search(problem(limit=limit))
        assert found.best.makespan == min(x.makespan for x in known if x.memory <= limit)
        assert found.best.memory <= limit
    d = findings_of_call(search, problem(limit=limits[0] - 1))[0]
    assert d.code == "E718" and f"--memory {limits[0]}" in d.help


def test_zero_shares_the_state_among_the_ranks_of_all_replicas() -> None:
    """With zero=None the search shares out the optimizer's state only where a rank would not fit otherwise.

    The memory of its best configuration is that of the program over all replicas.
    """
    known = [x for x in brute_force() if x.schedule == "chimera"]
    chimera = {"chimera": find("chimera")}
    least = min(x.shared for x in known)
    assert least < min(x.memory for x in known)
    found = search(problem(schedules=chimera, limit=least, zero=None))
    assert found.best.zero and found.best.memory == least
    assert not search(problem(schedules=chimera, zero=None)).best.zero, "there is enough memory without sharing"
    always = search(problem(schedules=chimera, zero=True)).best
    assert always.zero and always.makespan is not None and always.makespan > min(x.makespan for x in known)


def test_the_number_of_processes_changes_no_result() -> None:
    p = problem()
    one, two = search(p), search(p, processes=2)
    assert (one.best, one.outcomes, one.too_slow, one.neighbours) == (two.best, two.outcomes, two.too_slow, two.neighbours)


def test_each_neighbour_differs_in_one_choice() -> None:
    found = search(problem())
    best = found.best.configuration
    assert {choice for choice, _ in found.neighbours} >= {"D x W", "micro-batch", "recompute", "schedule"}
    for choice, o in found.neighbours:
        c = o.configuration
        same = {
            "D x W": c.ranks == best.ranks,
            "micro-batch": c.micro_batch == best.micro_batch,
            "recompute": c.recompute == best.recompute,
            "schedule": c.schedule == best.schedule,
        }
        different = [name for name, is_same in same.items() if not is_same]
        assert different == ([] if choice == "parameter" else [choice])
        assert not o.can_run or o.key > found.best.key  # a greater key is worse


def test_only_given_values_are_tried() -> None:
    found = search(problem(own={"D": [2, 4], "f": [1]}, sizes=[2], recompute=[True]))
    tried = [o.configuration for o in found.outcomes.values()]
    assert tried and {c.ranks for c in tried} == {2, 4}
    assert {c.micro_batch for c in tried} == {2} and all(c.recompute for c in tried)
    assert {c.own for c in tried if c.schedule == "chimera"} <= {(("f", 1),)}


def test_the_plan_prefers_the_measured_best_where_the_published_performance_model_does_not() -> None:
    """GPT-2 on 512 ranks: the performance model of the Chimera paper (SC'21) takes W=16, D=32; measured, W=64, D=8 is best."""
    profile = find_profile("gpt2-64-p100", "gpt2-64")
    given = Problem({"chimera": find("chimera")}, "gpt2-64", profile, ranks=512, batch=512, limit=16 * 2**30)
    best_by_ranks = search(replace(given, own={"D": [8, 32], "f": [1]}, sizes=[1])).by_ranks
    assert best_by_ranks[8].makespan < best_by_ranks[32].makespan


def test_a_search_goes_on_after_processes_of_its_pool_were_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process evaluates the remaining configurations. The search neither hangs nor loses a configuration."""
    expected = search(problem())
    parent, original = os.getpid(), Evaluator.outcome

    def outcome(self: Evaluator, c: Configuration) -> Outcome:
        if os.getpid() != parent and c.schedule == "chimera":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, c)

    monkeypatch.setattr(Evaluator, "outcome", outcome)
    found = search(problem(), processes=2)
    assert (found.best, found.outcomes) == (expected.best, expected.outcomes)
