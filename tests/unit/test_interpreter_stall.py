"""The reason why a wait takes too long, which `Stall` finds in the statuses of the ranks; and statuses as JSON."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.interpreter.transport.progress import NONE, Awaited, Position, Progress, Status
from chimerac.interpreter.transport.stall import SHOWN, Stall

PROGRAM = compile_schedule("1f1b", {"D": 3, "N": 2}).program
CHIMERA = compile_schedule("chimera", {"D": 2, "N": 2}).program


class Ranks:
    """The ranks of a program, each at an instruction."""

    def __init__(self, program: Program) -> None:
        self.program, self.progress = program, Progress()
        self.key = self.progress.add(program)
        self.statuses: dict[int, Status] = {}

    def number(self, rank: int, text: str) -> int:
        """Return the number of the first instruction of a rank whose text begins with `text`."""
        first, end = (int(n) for n in self.program.offsets[rank : rank + 2])
        return next(row - first for row in range(first, end) if self.program.text(row).startswith(text))

    def at(self, rank: int, text: str, awaited: Awaited | None = None, posted: str = "", run: int = 1) -> Ranks:
        """Put a rank at the first instruction whose text begins with `text`.

        Args:
            awaited: what the rank waits for; None: it computes.
            posted: the beginning of the text of the instruction that posted the awaited operation.
            run: the number of the rank's iteration, from 1.
        """
        posted_number = self.number(rank, posted) if posted else NONE
        position = Position(run, self.number(rank, text), posted_number, self.key)
        self.statuses[rank] = Status(position, awaited=awaited, posted=posted_number, waited_s=2.5)
        return self

    def reason(self, rank: int = 0) -> list[str]:
        """Return the lines of the reason why the wait of `rank` takes too long."""
        return Stall(self.progress, self.statuses).reason(rank).splitlines()


def receive(peer: int) -> Awaited:
    return Awaited(f"the receive from rank {peer}", "receive", (peer,))


def test_the_rank_that_computes_is_named_and_not_the_one_in_between() -> None:
    ranks = Ranks(PROGRAM).at(0, "BWD main s0 m0", receive(1), "RECV grad main s0 m0")
    ranks.at(1, "BWD main s1 m0", receive(2), "RECV grad main s1 m0").at(2, "FWD main s2 m0")
    place = PROGRAM.place(int(PROGRAM.offsets[2]) + ranks.number(2, "FWD main s2 m0"))
    headline, *lines = ranks.reason()
    assert headline == f"late: rank 2 still computes, {place.removeprefix('rank 2, ')}"
    assert lines[0] == f"  {place}: computes"
    assert lines[1].startswith("  rank 1, instruction ")
    assert "has waited 2.5 s for the receive from rank 2, instruction " in lines[1]


def test_a_message_that_did_not_come_though_its_sender_is_past_the_send_was_never_sent() -> None:
    ranks = Ranks(PROGRAM).at(0, "BWD main s0 m0", receive(1), "RECV grad main s0 m0").at(1, "FWD main s1 m1")
    assert ranks.reason()[0].startswith("late: rank 1 still computes")
    ranks = Ranks(PROGRAM).at(0, "BWD main s0 m0", receive(1), "RECV grad main s0 m0").at(1, "BWD main s1 m1")
    assert ranks.reason()[0].startswith("never sent: rank 1 is past instruction ")
    assert "SEND grad main s0 m0 -> 0, but no message came" in ranks.reason()[0]


def test_a_rank_in_a_later_iteration_is_past_every_send_of_this_one() -> None:
    ranks = Ranks(PROGRAM).at(0, "BWD main s0 m0", receive(1), "RECV grad main s0 m0").at(1, "FWD main s1 m0", run=2)
    assert ranks.reason()[0].startswith("never sent: rank 1 is past ")


def test_a_cycle_is_listed() -> None:
    ranks = Ranks(PROGRAM).at(0, "FWD main s0 m0", receive(1), "RECV grad main s0 m0")
    ranks.at(1, "FWD main s1 m0", receive(0), "RECV act main s1 m1").at(2, "FWD main s2 m0", receive(1), "RECV act main s2 m0")
    headline, *lines = ranks.reason(2)
    assert headline == "cycle: 2 ranks wait for each other"
    assert [line.split(",")[0] for line in lines] == ["  rank 0", "  rank 1"]


def test_a_cycle_of_many_ranks_is_found() -> None:
    count = 3000
    statuses = {r: Status(Position(), awaited=Awaited(f"wait {r}", "other", ((r + 1) % count,))) for r in range(count)}
    assert Stall(Progress(), statuses).reason(7).splitlines()[:2] == [
        f"cycle: {count} ranks wait for each other",
        "  rank 0, the start-up: has waited 0.0 s for wait 0",
    ]


def test_a_send_waits_for_the_receive_with_the_same_number() -> None:
    send = Awaited("the send to rank 1", "send", (1,))
    ranks = Ranks(PROGRAM).at(0, "SEND act main s1 m1", send, "SEND act main s1 m1").at(1, "RECV act main s1 m0")
    assert ranks.reason()[0].startswith("late: rank 1 still computes")
    ranks = Ranks(PROGRAM).at(0, "SEND act main s1 m1", send, "SEND act main s1 m0").at(1, "BWD main s1 m0")
    assert ranks.reason()[0] == "every rank answers, and has posted its side of the operation", "the message may be on its way"


def test_an_all_reduce_waits_for_the_ranks_that_have_not_launched_it() -> None:
    awaited = Awaited("the all-reduce over ranks 0, 1", "all-reduce", (0, 1))
    ranks = Ranks(CHIMERA).at(0, "ALLREDUCE s1", awaited, "ALLREDUCE s0").at(1, "BWD")
    assert ranks.reason()[0].startswith("late: rank 1 still computes, instruction ")
    ranks.at(1, "ALLREDUCE s1")
    assert ranks.reason()[0] == "every rank answers, and has posted its side of the operation"


@pytest.mark.parametrize(("kind", "begun"), [("all", 1), ("other", 2)])
def test_a_wait_for_all_ranks_is_late_because_of_the_rank_that_computes(kind: str, begun: int) -> None:
    """Ranks 0 and 1 have begun two collectives, and rank 2 has begun `begun`.

    all: rank 2 is behind because it has begun fewer. other: a rank that computes is behind, however many it has begun.
    """
    awaited = Awaited("an all-reduce over all ranks", kind, (0, 1, 2))
    waiting = Status(Position(), collectives=2, awaited=awaited, posted=2)
    stall = Stall(Progress(), {0: waiting, 1: waiting, 2: Status(Position(), collectives=begun)})
    assert stall.reason(0).splitlines()[0] == "late: rank 2 still computes, the start-up"


def test_ranks_in_the_same_step_of_the_set_up_do_not_wait_for_each_other() -> None:
    """Each of them awaits the others. So their values `awaited` have the same text and different ranks."""
    statuses = {
        r: Status(Position(), awaited=Awaited("connecting ranks 0, 1, 2", "other", tuple({0, 1, 2} - {r}))) for r in range(3)
    }
    assert Stall(Progress(), statuses).reason(0).splitlines()[0].startswith("every rank answers")
    statuses[2] = Status(Position(), awaited=Awaited("the rendezvous of all ranks", "other", (0, 1)))
    assert Stall(Progress(), statuses).reason(0).splitlines()[0].startswith("cycle: "), "rank 2 is in another step"


def test_a_broadcast_waits_for_the_rank_that_computes_whatever_the_counts_of_collectives_are() -> None:
    """A broadcast is posted by no instruction, and only some ranks take part. So no count says who has posted it."""
    awaited = Awaited("the broadcast from rank 0 to ranks 0, 1", "other", (0, 1))
    waiting = Status(Position(), collectives=3, awaited=awaited, posted=NONE)
    stall = Stall(Progress(), {0: Status(Position(), collectives=7), 1: waiting})
    assert stall.reason(1).splitlines()[0] == "late: rank 0 still computes, the start-up"


def test_a_long_list_is_cut() -> None:
    waiting = Status(
        Position(), collectives=1, awaited=Awaited("an all-reduce over all ranks", "all", tuple(range(40))), posted=1
    )
    lines = Stall(Progress(), dict.fromkeys(range(40), waiting)).reason(0).splitlines()
    assert len(lines) == 1 + SHOWN + 1 and lines[-1] == f"  and {39 - SHOWN} more ranks"


def test_a_status_is_the_same_after_it_was_written_as_json_and_read() -> None:
    for status in (Status(Position()), Status(Position(1, 2, 3, 4, 5), 6, receive(1), 7, 8.5)):
        assert Status.from_json(status.to_json()) == status
