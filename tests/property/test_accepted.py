"""The verifier accepts changes that leave a program correct, so it does not require the order that lowering chooses.

a SEND later       past any instruction except a SEND of its channel, if the program then does not deadlock
a RECV earlier     past any instruction except a RECV of its channel
tasks exchanged    adjacent tasks that do not depend on each other

All programs here are for the machine `window`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chimerac.chimera_ir.instructions import AllReduce, Instruction, Recv, Send
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_from_text
from chimerac.chimera_ir.textline import instruction_text
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.verify import verify
from tests.helpers import Streams, program, streams, with_move, with_streams
from tests.helpers_reference import find_error

PROGRAMS = {
    "chimera": program("chimera", D=4),
    "chimera, 4 pipes": program("chimera", D=4, N=8, f=2),
    "1f1b": program("1f1b", D=3, N=5),
    "interleaved": program("interleaved", D=2, N=4, v=2),
    "1f1b, width 2": program("1f1b", width=2, D=2, N=3),
    "chimera, width 2": program("chimera", width=2, D=2, N=4),
}

HEADER = """chimera-program 1
schedule by_hand
sizes width=1 ranks=2 stages=2 micro_batches=2 window=2 machine=window kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe main on 0 1 micro_batches 0 1
"""
BY_HAND = {
    "SENDs as late and RECVs as early as possible": """
rank 0:
  RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1
  FWD main s0 m0
  FWD main s0 m1; SEND act main s1 m0 -> 1; SEND act main s1 m1 -> 1
  BWD main s0 m0
  BWD main s0 m1
rank 1:
  RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0
  FWD main s1 m0
  FWD main s1 m1
  BWD main s1 m0
  BWD main s1 m1; SEND grad main s0 m0 -> 0; SEND grad main s0 m1 -> 0
""",
    "RECVs as late as possible, micro-batches in another order": """
rank 0:
  FWD main s0 m1; SEND act main s1 m1 -> 1
  FWD main s0 m0; SEND act main s1 m0 -> 1; RECV grad main s0 m0 <- 1
  BWD main s0 m0; RECV grad main s0 m1 <- 1
  BWD main s0 m1
rank 1:
  RECV act main s1 m1 <- 0; RECV act main s1 m0 <- 0
  FWD main s1 m0
  BWD main s1 m0; SEND grad main s0 m0 -> 0
  FWD main s1 m1
  BWD_INPUT main s1 m1; SEND grad main s0 m1 -> 0
  BWD_WEIGHT main s1 m1
""",
}


@pytest.mark.parametrize("name", BY_HAND)
def test_programs_written_by_hand_are_accepted(name: str) -> None:
    p = program_from_text(HEADER + BY_HAND[name])
    assert verify(p) is p
    assert not find_error(p)
    simulate(p)


def channel_end(g: int, i: Instruction) -> tuple[object, ...] | None:
    """Return ("send" or "recv", sender, receiver) for a SEND or RECV, ("all-reduce",) for an ALLREDUCE.

    Return None for a task. These programs have no FREE.
    """
    match i:
        case Send():
            return ("send", g, i.peer)
        case Recv():
            return ("recv", i.peer, g)
        case AllReduce():
            return ("all-reduce",)
        case _:
            return None


def later_sends(s: Streams) -> Iterator[Streams]:
    """Yield the streams with one SEND moved later, up to the next SEND of its channel."""
    for g, stream in enumerate(s):
        for k, i in enumerate(stream):
            if isinstance(i, Send):
                for to in range(k + 1, len(stream)):
                    if channel_end(g, stream[to]) == channel_end(g, i):
                        break
                    yield [*s[:g], with_move(stream, k, to), *s[g + 1 :]]


def earlier_receives(s: Streams) -> Iterator[Streams]:
    """Yield the streams with one RECV moved earlier, back to the RECV before it in its channel."""
    for g, stream in enumerate(s):
        for k, i in enumerate(stream):
            if isinstance(i, Recv):
                for to in range(k - 1, -1, -1):
                    if channel_end(g, stream[to]) == channel_end(g, i):
                        break
                    yield [*s[:g], with_move(stream, k, to), *s[g + 1 :]]


def exchanged_tasks(s: Streams) -> Iterator[Streams]:
    """Yield the streams with two consecutive tasks of different micro-batches exchanged, in two ways.

    In the first way each task takes along the transfers and all-reduces that follow it. In the second way only the second task
    moves, to the place before the first one, and the transfers and all-reduces follow both tasks.
    """
    for g, stream in enumerate(s):
        places = [k for k, i in enumerate(stream) if channel_end(g, i) is None]
        for a, b, end in zip(places, places[1:], [*places[2:], len(stream)], strict=False):
            if stream[a].micro_batches != stream[b].micro_batches:  # type: ignore[union-attr]
                yield [*s[:g], stream[:a] + stream[b:end] + stream[a:b] + stream[end:], *s[g + 1 :]]
                yield [*s[:g], with_move(stream, b, a), *s[g + 1 :]]


def in_order(p: Program, s: Streams) -> bool:
    """Return whether both ends of every channel have the same order, and the collectives their original one."""
    ends: dict[object, list[object]] = {}
    groups = []
    for g, stream in enumerate(s):
        groups.append([i.group for i in stream if isinstance(i, AllReduce)])
        for i in stream:
            c = channel_end(g, i)
            if isinstance(i, Send | Recv) and c:
                ends.setdefault(c, []).append((i.value, i.stage, i.micro_batches))
    original = [[i.group for i in p.stream(g) if isinstance(i, AllReduce)] for g in range(p.world)]
    return groups == original and all(ends.get(("recv", *c[1:])) == v for c, v in ends.items() if c[0] == "send")  # type: ignore[index]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("changes", [later_sends, earlier_receives, exchanged_tasks])
def test_correct_changes_are_accepted(name: str, changes: Callable[[Streams], Iterator[Streams]]) -> None:
    p = PROGRAMS[name]
    accepted = 0
    for changed in list(changes(streams(p)))[:: 1 if changes is exchanged_tasks else 3]:
        changed_program = with_streams(p, changed)
        if in_order(p, changed) and not find_error(changed_program, range(2)):
            assert verify(changed_program) is changed_program
            assert changed_program.digest != p.digest
            accepted += 1
    assert accepted >= 3, "too few changes of this kind are correct"


def test_a_receive_may_move_earlier() -> None:
    """A RECV that is posted earlier, but not past a RECV of its channel, never blocks a SEND on this machine."""
    for p in PROGRAMS.values():
        for changed in list(earlier_receives(streams(p)))[::7]:
            verify(with_streams(p, changed))


def test_backwards_of_two_pipes_may_be_exchanged() -> None:
    """Chimera, rank 1 of 4: `B2 B0 B3 B1` may as well be `B0 B2 B1 B3`."""
    p = PROGRAMS["chimera"]
    changed = streams(p)
    at = {instruction_text(i, p.pipe_names): k for k, i in enumerate(changed[1])}
    for first, second in (("BWD up[0] s2 m2", "BWD down[0] s1 m0"), ("BWD up[0] s2 m3", "BWD down[0] s1 m1")):
        assert at[second] == at[first] + 2  # each is followed by its SEND
        a = at[first]
        changed[1][a : a + 4] = changed[1][a + 2 : a + 4] + changed[1][a : a + 2]
    assert verify(with_streams(p, changed)) != p
