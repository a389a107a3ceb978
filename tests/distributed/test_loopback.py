"""Every shipped schedule in loopback has the results of one process, bit by bit, under many interleavings of the ranks.

A program deadlocks in loopback on exactly the machines on which it hangs according to the verifier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chimerac.chimera_ir.instructions import Free, Fwd, Recv
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler import evaluation_of
from chimerac.compiler.library import names
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines
from chimerac.interpreter.errors import RankError, StuckError
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.programs import TWO_RANKS
from tests.helpers import program, streams, with_streams
from tests.helpers_loopback import RankResult, deep_model, differences, rank_of, run_and_compare
from tests.helpers_text import small
from tests.proof.drawn import MACHINES

INTERLEAVINGS = {2: 12, 4: 8, 8: 4}  # D -> interleavings of each schedule, besides one for each machine
# By schedule, a function of D that returns the other parameters. If N is not among them, it is 2D, or D for 8 ranks. Where a
# schedule allows pipes with different numbers of micro-batches, N is such that they have them, except for chimera_halving.
SHIPPED: dict[str, Callable[[int], dict[str, int]]] = {
    "gpipe": lambda d: {},
    "1f1b": lambda d: {},
    "dapple": lambda d: {"policy": 2},
    "interleaved": lambda d: {"v": 2},
    "looped_bfs": lambda d: {"v": 2},
    "gems": lambda d: {"N": d},
    "chimera": lambda d: {},
    "chimera_any": lambda d: {"N": d + 1},
    "chimera_doubling": lambda d: {"N": 2 * d + 1},  # the last group of pipe down has one micro-batch
    "chimera_halving": lambda d: {},
    "chimera_recompute": lambda d: {"N": d + 1, "early": 1 + d // 4},
    "chimera_zb": lambda d: {"N": d + 1, "f": max(1, d // 4)},
    "chimera_fill": lambda d: {"N": 2 * d + 1},
    "hanayo": lambda d: {"N": d + 1, "w": 2 if d < 8 else 1},
    "bitpipe": lambda d: {},
    "zb_h1": lambda d: {},
    "zb_h2": lambda d: {"N": 2 * d - 1},
    "zb_v": lambda d: {"N": 2 * d - 1},
    "dualpipe": lambda d: {"N": 2 * d},
    "dualpipev": lambda d: {"N": 2 * d + 1},
}
WITH_RECOMPUTATION = ("chimera_doubling", "chimera_halving")  # under `again` = 1 each backward runs its forward again


def shipped(name: str, ranks: int, **more: int) -> Program:
    """Return the program of a schedule of the library for this number of ranks."""
    micro_batches = 2 * ranks if ranks < 8 else ranks
    return program(name, **({"D": ranks, "N": micro_batches} | SHIPPED[name](ranks) | more))


def test_every_shipped_schedule_is_here() -> None:
    assert set(SHIPPED) == set(names())


def model_for(p: Program) -> Model:
    """Return a model with as many layers as the program has stages, but at least five."""
    return deep_model(max(3, p.header.stages - 2))


def equal_or_stuck(p: Program, interleavings: int) -> None:
    """Compare a program with one process: under this many interleavings, and on the machines on which the verifier accepts it.

    On the other machines it must deadlock.
    """
    for seed in range(interleavings):
        run_and_compare(p, model_for(p), seed, every_post=seed % 2 == 1, iterations=2 if seed == 0 else 1)
    for machine, ends in machines(ProgramIndex(p)).items():
        if ends:
            run_and_compare(p, model_for(p), seed=99, machine=machine)  # type: ignore[arg-type]
        else:
            with pytest.raises(StuckError, match="deadlock on the"):
                run_in_loopback(p, rank_of(p, model_for(p)), seed=99, machine=machine)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", INTERLEAVINGS)
@pytest.mark.parametrize("name", SHIPPED)
def test_gradients_are_bit_equal_under_many_interleavings_and_on_each_machine(name: str, ranks: int) -> None:
    """On a machine on which the program hangs according to the verifier, it must deadlock instead."""
    equal_or_stuck(shipped(name, ranks), INTERLEAVINGS[ranks])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", WITH_RECOMPUTATION)
def test_gradients_are_bit_equal_with_recomputation(name: str, ranks: int) -> None:
    p = shipped(name, ranks, again=1)
    assert all(i.recompute for g in range(p.world) for i in p.stream(g) if isinstance(i, Fwd))
    equal_or_stuck(p, 8)


EACH, PAIR, THREE = "m", "m = 2*g .. 2*g + 1", "m = 3*g .. 3*g + 2"  # the micro-batches of one task, as a rule says it
# By name: the groups of micro-batches on even stages, and those on odd stages. Where they differ, a stage reads other groups
# than the stage before has sent.
FORWARDS = {
    "a group read one by one": (PAIR, EACH),
    "one by one read as a group": (EACH, PAIR),
    "groups across groups": (PAIR, THREE),
    "equal groups": (PAIR, PAIR),
}
# The same for backwards, with the letter of the tasks: B, or I with a separate W.
BACKWARDS = {("B", name): groups for name, groups in FORWARDS.items()} | {
    ("B", "one by one"): (EACH, EACH),
    ("I", "one by one"): (EACH, EACH),
    ("I", "groups across groups"): (PAIR, THREE),
}


def rules(kind: str, groups: tuple[str, str], tick: str) -> str:
    """Return the rules of a kind of tasks, with one grouping on even stages and another on odd stages."""
    return " ".join(f"{kind}(s, {group}) when s % 2 == {odd} at {tick}" for odd, group in enumerate(groups))


PLACES = {
    "apart": "stage s on rank s",
    "together": "stage s on rank s // 2",
    "recomputing": "stage s on rank s recompute when s > 0",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("backwards", BACKWARDS, ids=" ".join)
@pytest.mark.parametrize("forwards", FORWARDS)
def test_tasks_may_read_other_groups_than_were_sent(forwards: str, backwards: tuple[str, str], place: str) -> None:
    # The ticks of all forwards are before those of all backwards, and these before those of all weight gradients.
    backward_rules = rules(backwards[0], BACKWARDS[backwards], "900 - 9*s + 4*m")
    weight_rules = rules("W", (THREE, EACH), "1800 - 2*m + s") if backwards[0] == "I" else ""
    p = small(
        {"D": 4, "N": 7},
        ranks="ranks 2" if place == "together" else "ranks D",
        pipe=f"pipe main {{ {PLACES[place]}   micro_batches N }}",
        rule1=rules("F", FORWARDS[forwards], "9*s + 4*m"),
        rule2=f"{backward_rules} {weight_rules}",
    )
    received = [i for g in range(p.world) for i in p.stream(g) if isinstance(i, Recv) and i.value == "act"]
    stages = {i.stage for i in received}  # the stages that read messages
    sent = [(i.stage, i.micro_batches) for i in received]
    read = [(i.stage, i.micro_batches) for g in range(p.world) for i in p.stream(g) if isinstance(i, Fwd) and i.stage in stages]
    assert forwards == "equal groups" or sorted(sent) != sorted(read), "all groups are read as they were sent"
    equal_or_stuck(p, 2)


@pytest.mark.parametrize(("name", "parameters"), [("chimera", {"D": 4, "N": 8, "f": 2}), ("gpipe", {"D": 2, "N": 3})])
def test_two_replicas_have_one_gradient(name: str, parameters: dict[str, int]) -> None:
    p = program(name, width=2, **parameters)
    for seed in range(3):
        run_and_compare(p, deep_model(3), seed, every_post=True)


@pytest.mark.parametrize("name", TWO_RANKS)
@pytest.mark.parametrize("machine", MACHINES)
def test_programs_by_hand_end_exactly_where_the_verifier_says(name: str, machine: Machine) -> None:
    p = TWO_RANKS[name]
    for seed in range(3):
        if machines(ProgramIndex(p))[machine]:
            run_and_compare(p, deep_model(3), seed, machine, every_post=True, iterations=2)
        else:
            with pytest.raises(StuckError):
                run_in_loopback(p, rank_of(p, deep_model(3)), seed, machine, every_post=True)


def test_some_programs_by_hand_end_and_some_hang() -> None:
    ends = [machines(ProgramIndex(p))[machine] for p in TWO_RANKS.values() for machine in MACHINES]
    assert ends.count(False) > 3 and ends.count(True) > 3, "the comparison needs programs of both outcomes"


def test_the_seed_decides_the_order_of_the_sends_and_seeds_differ() -> None:
    p = shipped("chimera", 4)

    def order_of_sends(seed: int) -> tuple[int, ...]:
        """Return the sender of each message, in the order in which they are sent."""
        senders: list[int] = []

        def run_rank(transport: Any) -> RankResult:
            send = transport.send
            transport.send = lambda peer, buffer: (senders.append(transport.rank), send(peer, buffer))
            return rank_of(p, deep_model(3))(transport)

        run_in_loopback(p, run_rank, seed, every_post=True)
        return tuple(senders)

    orders = [order_of_sends(seed) for seed in range(8)]
    assert orders == [order_of_sends(seed) for seed in range(8)] and len(set(orders)) == 8


def test_a_deadlock_names_the_instruction_of_every_rank() -> None:
    p = shipped("chimera", 4)
    with pytest.raises(StuckError) as caught:
        run_in_loopback(p, rank_of(p, deep_model(3)), machine="paired")
    first, *others = str(caught.value).splitlines()
    assert first == "deadlock on the paired machine:"
    assert [line.partition(": it waits for a message from rank ")[0] for line in others] == [
        "  rank 0, instruction 6: FWD up[0] s3 m4",
        "  rank 1, instruction 4: FWD down[0] s1 m0",
        "  rank 2, instruction 4: FWD up[0] s1 m4",
        "  rank 3, instruction 6: FWD down[0] s3 m0",
    ]


def test_an_evaluation_program_gives_the_loss_and_no_gradients() -> None:
    for name in ("chimera", "interleaved"):
        p = shipped(name, 2)
        forwards = evaluation_of(p)
        found = run_in_loopback(forwards, rank_of(forwards, model_for(p), iterations=2), every_post=True)
        trained = run_in_loopback(p, rank_of(p, model_for(p), iterations=2))
        assert sum(f.loss for f in found) == sum(f.loss for f in trained) != 0
        assert not any(g.any() for f in found for grads in f.grads.values() for g in grads)
        assert not any(f.executor.gradients for f in found)


def with_free(p: Program, at: int) -> Program:
    """Return the program, not verified, with a FREE of the first activation before instruction `at` of rank 1."""
    changed = streams(p)
    changed[1].insert(at, Free("act", pipe=0, stage=1, micro_batches=(0,)))
    return with_streams(p, changed)


def test_a_buffer_freed_too_early_is_detected() -> None:
    p = TWO_RANKS["1f1b"]
    stream = p.stream(1)
    backward = next(n for n, i in enumerate(stream) if i.op == "BWD")
    too_early = with_free(p, backward)
    with pytest.raises(RankError, match=r"rank 1, instruction 4: BWD main s1 m0: act of pipe 0, s1, m0 is not there"):
        run_in_loopback(too_early, rank_of(too_early, deep_model(3)))
    in_time = with_free(p, backward + 1)
    assert not list(differences(in_time, deep_model(3), run_in_loopback(in_time, rank_of(in_time, deep_model(3)))))
