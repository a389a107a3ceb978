"""All interleavings of small programs: loopback, a model checker and the verifier agree on whether a program ends.

They are compared on every machine. 240 random programs are explored here, and thousands by `make proof`
(tests/proof/explorer.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import pytest
from torch import Tensor

from chimerac.chimera_ir.instructions import AllReduce, Instruction, Recv, Send
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler import compile_text
from chimerac.compiler.verify.waits import END, POST, READ, WINDOW
from chimerac.interpreter.transport.machines import Channel, Operation, Queue
from tests.helpers import program, streams, with_streams
from tests.proof import model, scheduler
from tests.proof.drawn import MACHINES, delay_receives
from tests.proof.explorer import NEEDED, Tally, explored, needed_waits


def test_the_verifier_loopback_and_the_model_checker_agree() -> None:
    tally = explored(seed=3, count=240, limit=60, large=400)
    assert not tally.disagreements
    assert tally.thorough > 3 and tally.model_only < 100
    for machine in MACHINES:
        assert tally.accepted[machine] > 30 and tally.refused[machine] > 30
    # If the verifier leaves out one kind of wait, it misses a deadlock only if the kind is in NEEDED.
    assert all(wait in NEEDED[machine] for wait, machine in tally.missed)


def crossing() -> Program:
    """Return a program of two ranks that both send before they receive."""
    p = program("chimera", D=2, N=2)
    changed = streams(p)
    for g, stream in enumerate(changed):
        transfers = [i for i in stream if isinstance(i, Send | Recv)]
        reordered: list[Instruction] = []
        for i in stream:
            if not isinstance(i, Recv):
                reordered.append(i)
            if isinstance(i, Send):
                reordered += [x for x in transfers if isinstance(x, Recv) and x.value == i.value]
        changed[g] = reordered
    return with_streams(p, changed)


def test_ranks_that_both_send_first_end_only_on_posted_and_window() -> None:
    p = crossing()
    terminates = {"posted": True, "window": True, "rendezvous": False, "paired": False, "serial": False}
    for machine in MACHINES:
        for thorough in (False, True):
            assert scheduler.explore(p, machine, thorough).finals == (terminates[machine],)
        assert model.explore(p, machine).finals == (terminates[machine],)


def test_a_wrong_verdict_is_detected() -> None:
    tally = Tally()
    tally.add("own orders", crossing(), {"posted": True, "window": True, "rendezvous": True, "paired": True, "serial": True})
    assert tally.disagreements == {"rendezvous": 1, "paired": 1, "serial": 1}


def ring() -> Program:
    """Return a program of three ranks in a ring. Each first runs a task whose input the rank before it sends only later."""
    text = """schedule ring ranks 3 stages 2
    pipe p[i in 0 .. 2] { stage k on rank (i + k) % 3   micro_batches 1 }
    order listing for rank r { F p[r]  F p[(r + 2) % 3]  B p[(r + 2) % 3]  B p[r] }"""
    p = compile_text(text).program

    def part(rank: int, i: Instruction) -> int:
        """Return in which part of the stream an instruction goes: 0: other pipe; 1: pipe `rank`; 2: all-reduce."""
        if isinstance(i, AllReduce):
            return 2
        return 1 if i.pipe == rank else 0

    changed = [sorted(stream, key=partial(part, rank)) for rank, stream in enumerate(streams(p))]
    for stream in changed:
        delay_receives(stream, past=(Send,))
    return with_streams(p, changed)


def triangle() -> Program:
    """Return a program in which rank 0 sends to rank 1, then to rank 2. Rank 1 first waits for a value from rank 2."""
    text = """schedule triangle ranks 3 stages 3 window 0
    pipe short { stage k on rank if k == 0 then 0 else 1   micro_batches 1 }
    pipe long { stage k on rank 2 * k % 3   micro_batches 1 }
    order listing for rank r {
        if r == 0 { F short  F long  B long  B short }
        if r == 1 { F long  B long  F short(1, 0)  F short(2, 0)  B short(2, 0)  B short(1, 0) }
        if r == 2 { F long  B long }
    }"""
    p = compile_text(text).program
    changed = streams(p)
    for stream in changed:
        delay_receives(stream, past=(Send,))
    return with_streams(p, changed)


@pytest.mark.parametrize(
    ("make", "machine", "needed"),
    [
        (ring, "window", {READ}),
        (ring, "paired", {READ, END}),
        (triangle, "rendezvous", {READ, POST}),
        (triangle, "paired", {READ, WINDOW, END}),
    ],
)
def test_a_deadlock_is_missed_without_any_one_of_these_kinds_of_wait(
    make: Callable[[], Program], machine: Machine, needed: set[int]
) -> None:
    p = make()
    assert {*needed_waits(p, machine)} == needed
    assert model.explore(p, machine).finals == scheduler.explore(p, machine).finals == (False,)


def test_a_channel_that_is_not_first_in_first_out_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def post_receive(self: Channel, buffer: Tensor, queue: Queue | None) -> Operation:
        self.unmatched = deque(reversed(self.unmatched))
        return original(self, buffer, queue)

    original = Channel.post_receive
    p = program("gpipe", D=2, N=3)
    assert scheduler.explore(p, "posted").finals == (True,)
    monkeypatch.setattr(Channel, "post_receive", post_receive)
    assert False in scheduler.explore(p, "posted").finals


def test_all_reduces_in_two_orders_are_wrong_on_every_machine() -> None:
    p = program("chimera", D=2, N=2)
    changed = streams(p)
    first, second = [n for n, i in enumerate(changed[0]) if isinstance(i, AllReduce)]
    all_reduces = changed[0].pop(first), changed[0].pop(second - 1)
    changed[0] += reversed(all_reduces)
    mutant = with_streams(p, changed)
    for machine in MACHINES:
        assert model.explore(mutant, machine).finals == scheduler.explore(mutant, machine).finals == (False,)
