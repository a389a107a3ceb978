"""One instruction of a right program is changed: the verifier rejects it, or the program still computes the same.

Who says "the same" is tests/helpers_reference.py, which runs the program on symbols and shares nothing with the
verifier. So a mutant that both let through is right under every interleaving tried, and neither can be wrong alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from chimera_ir.diagnostics import ChimeraError
from chimera_ir.instructions import AllReduce, Instruction, Recv, Send, stage_group
from chimera_ir.program import Program
from compiler.verify import verify
from tests.helpers import SMALL, Streams, moved, program, streams, with_streams
from tests.helpers_reference import wrong

PER_CLASS = 14  # mutants of one kind and program

Place = tuple[int, int]  # rank, number of the instruction
Mutation = Callable[[Program, Streams, Place, random.Random], bool]  # changes the streams, or returns False


def drop(_: Program, s: Streams, at: Place, __: random.Random) -> bool:
    del s[at[0]][at[1]]
    return True


def duplicate(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    stream = s[at[0]]
    stream.insert(rng.choice([at[1], rng.randrange(len(stream) + 1)]), stream[at[1]])
    return True


def swap_neighbours(_: Program, s: Streams, at: Place, __: random.Random) -> bool:
    return swap(s[at[0]], at[1], at[1] + 1)


def swap_far(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    return swap(s[at[0]], at[1], rng.randrange(len(s[at[0]])))


def swap(stream: list[Instruction], a: int, b: int) -> bool:
    if b >= len(stream) or stream[a] == stream[b]:
        return False
    stream[a], stream[b] = stream[b], stream[a]
    return True


def redirect(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    if not isinstance(i, Send | Recv):
        return False
    return put(s, at, replace(i, peer=other(rng, p.world + 1, i.peer)))


def change_stage(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    stage = other(rng, p.header.stages + 1, i.stage)
    return put(s, at, replace(i, stage=stage, **({"group": stage_group(stage)} if isinstance(i, AllReduce) else {})))


def change_micro_batch(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    if isinstance(i, AllReduce):
        return False
    return put(s, at, replace(i, micro_batches=(other(rng, p.header.micro_batches + 1, i.micro_batches[0]),)))


def change_pipe(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    return not isinstance(i, AllReduce) and put(s, at, replace(i, pipe=other(rng, len(p.header.pipes) + 1, i.pipe)))


def sum_earlier(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    if not isinstance(s[at[0]][at[1]], AllReduce) or at[1] == 0:
        return False
    s[at[0]][:] = moved(s[at[0]], at[1], rng.randrange(at[1]))
    return True


def sum_without_one(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    """Drop one ALLREDUCE, or one rank from its members."""
    i = s[at[0]][at[1]]
    if not isinstance(i, AllReduce):
        return False
    if rng.random() < 0.5:
        return drop(replace, s, at, rng)  # type: ignore[arg-type]
    gone = rng.choice(i.ranks)
    return put(s, at, replace(i, ranks=tuple(r for r in i.ranks if r != gone)))


def put(s: Streams, at: Place, i: Instruction) -> bool:
    s[at[0]][at[1]] = i
    return True


def other(rng: random.Random, bound: int, than: int) -> int:
    """Return another number below `bound`: the last one is one too many."""
    return rng.choice([x for x in range(bound) if x != than])


MUTATIONS: tuple[Mutation, ...] = (
    drop, duplicate, swap_neighbours, swap_far, redirect, change_stage, change_micro_batch, change_pipe, sum_earlier,
    sum_without_one,
)  # fmt: skip


def mutants(p: Program, mutation: Mutation, count: int, seed: str) -> Iterator[Program]:
    """Yield up to `count` different mutants, at places drawn at random."""
    rng = random.Random(seed)
    places = [(g, k) for g in range(p.world) for k in range(int(p.offsets[g + 1] - p.offsets[g]))]
    rng.shuffle(places)
    for at in places:
        changed = streams(p)
        if count and mutation(p, changed, at, rng):
            count -= 1
            yield with_streams(p, changed)


def codes(p: Program) -> set[str]:
    """Return the codes of the verifier's findings, none if it accepts. Any other exception fails the test."""
    try:
        verify(p)
    except ChimeraError as error:
        assert all(d.code.startswith("E4") and d.message for d in error.diagnostics)
        return {d.code for d in error.diagnostics}
    return set()


@pytest.mark.parametrize("schedule", SMALL)
def test_mutants_are_rejected_or_compute_the_same(schedule: str) -> None:
    small, middle = SMALL[schedule]
    for p in (program(schedule, width=2, **small), program(schedule, **middle)):
        assert not codes(p) and not wrong(p)
        counts: dict[str, Counter[str]] = {}
        for mutation in MUTATIONS:
            count = counts[mutation.__name__] = Counter()
            for mutant in mutants(p, mutation, PER_CLASS, f"{schedule} {mutation.__name__}"):
                found, reason = codes(mutant), wrong(mutant)
                assert found or not reason, f"{mutation.__name__}, accepted although {reason}"
                # Nor is it too strict: only the one order of collectives is asked for beyond what `window` needs.
                assert reason or found <= {"E453"}, f"{mutation.__name__}, rejected with {found} although right"
                count["rejected" if found else "equal"] += 1
        print(schedule, dict(p.header.parameters), {name: dict(c) for name, c in counts.items()})
        sums = bool(p.collectives)
        for name, count in counts.items():
            assert count["rejected"] or (not sums and name.startswith("sum_")), name
        # No change of what an instruction says can leave a program right, only some changes of its place.
        assert all(not count["equal"] for name, count in counts.items() if not name.startswith(("swap", "sum_earlier")))


@pytest.mark.parametrize("schedule", SMALL)
def test_the_reference_sees_what_the_verifier_sees(schedule: str) -> None:
    """The reference is no rubber stamp: of the mutants that change what is computed it finds nearly all by itself."""
    p = program(schedule, width=2, **SMALL[schedule][0])
    for mutation in (drop, redirect, change_stage, change_micro_batch):
        seen = [bool(wrong(mutant, seeds=range(1))) for mutant in mutants(p, mutation, PER_CLASS, schedule)]
        assert sum(seen) >= 0.9 * len(seen), mutation.__name__
