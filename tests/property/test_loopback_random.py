"""Random programs have the gradients of one process, and deadlock in loopback where the verifier says so."""

from __future__ import annotations

import random

import pytest

from chimerac.chimera_ir.program import Program
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines
from chimerac.interpreter.errors import StuckError
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_loopback import deep_model, rank_of, run_and_compare
from tests.proof.drawn import Sizes, lower_tasks, random_tasks, with_moved_receives
from tests.proof.mutations import codes

MODEL = deep_model(4)
SIZES = Sizes(tied=False)  # the model has no tied parameters
PROGRAMS, PROGRAMS_OF_A_TEST = 60, 10


@pytest.mark.parametrize("first_seed", range(0, PROGRAMS, PROGRAMS_OF_A_TEST))
def test_drawn_programs_have_the_gradients_of_one_process(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + PROGRAMS_OF_A_TEST):
        r = random.Random(seed)
        p = lower_tasks(random_tasks(r, SIZES), r)
        run_and_compare(p, MODEL, seed, every_post=True, iterations=2)


def test_drawn_programs_are_of_many_shapes() -> None:
    drawn = [random_tasks(random.Random(seed), SIZES) for seed in range(PROGRAMS)]
    assert len({(p.header.ranks, p.header.stages, len(p.header.pipes)) for p in drawn}) > 25
    # A rank has several stages of a pipe.
    with_shared_rank = [p for p in drawn if any(len(set(pipe.placement)) < p.header.stages for pipe in p.header.pipes)]
    assert len(with_shared_rank) > 30


def maybe_deadlocking(r: random.Random) -> Program | None:
    """Return a random program with its RECVs moved; None if the verifier finds anything but a deadlock, E440."""
    p = with_moved_receives(r, lower_tasks(random_tasks(r, SIZES), r))
    return p if codes(p) <= {"E440"} else None


def test_a_program_hangs_in_loopback_exactly_where_the_verifier_says() -> None:
    verdicts = []
    for seed in range(150):
        p = maybe_deadlocking(random.Random(1000 + seed))
        if p is None:
            continue
        for machine, terminates in machines(ProgramIndex(p)).items():
            verdicts.append((machine, terminates))
            if terminates:
                run_and_compare(p, MODEL, seed, machine, every_post=True)  # type: ignore[arg-type]
            else:
                with pytest.raises(StuckError):
                    run_in_loopback(p, rank_of(p, MODEL), seed, machine, every_post=True)  # type: ignore[arg-type]
    for machine in ("window", "rendezvous", "paired", "serial"):
        assert verdicts.count((machine, True)) > 3 and verdicts.count((machine, False)) > 3, (machine, verdicts)
