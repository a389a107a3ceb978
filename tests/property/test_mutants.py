"""Mutants of correct programs: the verifier rejects a mutant, or the mutant still computes the same.

A few mutants of every class are checked as in tests/proof/kills.py; `make proof` checks more. Whether a mutant computes the
same is decided without the verifier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from chimerac.chimera_ir.program import Program
from tests.helpers import SMALL, program
from tests.helpers_reference import find_error
from tests.proof.drawn import Sizes
from tests.proof.kills import EVALUATION, TRAINING, Results, check_mutants, evaluations_of, random_programs, shipped_programs
from tests.proof.mutations import (
    MUTATIONS,
    Mutation,
    change_micro_batch,
    change_stage,
    drop,
    drop_sum_member,
    move_recompute,
    mutants,
    redirect_peer,
    sum_earlier,
    swap_sums,
)
from tests.proof.mutations_streams import change_value

PER_CLASS = 2  # the most mutants of one class and program


def programs_of(schedule: str) -> Iterator[tuple[str, Program]]:
    """Yield the shipped programs of one schedule, with their names, such as 'chimera' and 'chimera, width 2'."""
    return ((name, p) for name, p in shipped_programs() if name.split(",")[0] == schedule)


def check(classes: dict[Mutation, Results]) -> None:
    """Check that no mutant was wrongly accepted or rejected.

    Also check that each class has only one outcome, if MUTATIONS has a reason for that.
    """
    for mutation, results in classes.items():
        class_name, why_one_outcome = MUTATIONS[mutation]
        assert not results.outcomes["wrongly accepted"] and not results.outcomes["wrongly rejected"], class_name
        assert not why_one_outcome or not (results.outcomes["equivalent"] and results.outcomes["rejected"]), (
            f"{class_name}: two outcomes, although {why_one_outcome}"
        )


@pytest.mark.parametrize("schedule", SMALL)
def test_mutants_are_rejected_or_compute_the_same(schedule: str) -> None:
    classes: dict[Mutation, Results] = defaultdict(Results)
    check_mutants(programs_of(schedule), PER_CLASS, classes, run=False)
    check(classes)
    assert sum(c.outcomes["rejected"] for c in classes.values()) > len(MUTATIONS)
    # These programs have no FREE. So every instruction is needed, with its stage and its micro-batches. Only a RECOMPUTE of
    # chimera_recompute is not: without it, the backward runs the forward again.
    if schedule != "chimera_recompute":
        assert not any(classes[m].outcomes["equivalent"] for m in (drop, change_stage, change_micro_batch))


@pytest.mark.parametrize("schedule", SMALL)
def test_mutants_of_evaluations_are_rejected_or_compute_the_same(schedule: str) -> None:
    classes: dict[Mutation, Results] = defaultdict(Results)
    check_mutants(evaluations_of(programs_of(schedule)), PER_CLASS, classes, run=False)
    check(classes)
    assert classes[change_value].codes.keys() == {"E401"}, "an evaluation computes no gradients"
    assert not any(classes[m].outcomes["equivalent"] for m in (drop, change_stage, change_micro_batch))


@pytest.mark.parametrize("sizes", [TRAINING, EVALUATION], ids=lambda sizes: sizes.kind)
def test_mutants_of_random_programs_are_rejected_or_compute_the_same(sizes: Sizes) -> None:
    classes: dict[Mutation, Results] = defaultdict(Results)
    check_mutants(random_programs(seed=2, count=12, sizes=sizes), PER_CLASS, classes)
    check(classes)
    of_training = {sum_earlier, drop_sum_member, swap_sums, move_recompute}  # an evaluation has no ALLREDUCE or RECOMPUTE
    assert {*classes} == {*MUTATIONS} - (of_training if sizes is EVALUATION else set())
    assert sum(c.outcomes["run"] for c in classes.values()) > 10


@pytest.mark.parametrize("schedule", SMALL)
def test_the_reference_rejects_most_mutants_of_four_classes(schedule: str) -> None:
    """In these classes nearly every mutant is wrong. The reference alone must reject nine in ten, in one interleaving."""
    p = program(schedule, width=2, **SMALL[schedule][0])
    for mutation in (drop, redirect_peer, change_stage, change_micro_batch):
        rejected = [bool(find_error(mutant, seeds=range(1))) for mutant in mutants(p, mutation, count=14, seed=schedule)]
        assert sum(rejected) >= 0.9 * len(rejected), mutation.__name__
