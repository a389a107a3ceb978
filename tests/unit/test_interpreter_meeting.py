"""If a wait takes too long, the ranks that do not answer are named, or else what all ranks do."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from chimerac.interpreter.errors import PeerLostError
from chimerac.interpreter.transport import meeting
from chimerac.interpreter.transport.meeting import Meeting, Rollcall

LATE = RuntimeError("[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete")
CLOSED = RuntimeError("[/gloo/pair.cc:537] Connection closed by peer [127.0.0.1]:4711. And more")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "EVERY_S", 0.01)
    monkeypatch.setattr(meeting, "GRACE_S", 0.5)


def met(store: object, world: int, answering: list[int], hosted: bool = False) -> list[Meeting]:
    """Return the meeting of each rank of a world, of which some ranks answer."""
    rolls = [Rollcall(store, rank, world, hosted) for rank in range(world)]  # type: ignore[arg-type]
    found = [Meeting(timedelta(seconds=2), roll) for roll in rolls]
    for rank in answering:
        rolls[rank].answer(found[rank])
    return found


def waits(one: Meeting, what: str, error: RuntimeError) -> PeerLostError:
    with pytest.raises(PeerLostError) as found, one.wait(what):
        raise error
    return found.value


def test_the_rank_that_does_not_answer_is_named_and_not_the_one_in_between() -> None:
    first, second, *_ = ranks = met(HashStore(), 4, answering=[0, 1, 3])
    found = waits(first, "the receive from rank 1", LATE)
    assert str(found) == "the receive from rank 1 is not complete after 2 s: rank 2 does not answer"
    assert found.give_way_s == 0
    assert waits(second, "the receive from rank 2", LATE).give_way_s > 0, "one error for one rank that is stopped"
    assert waits(ranks[3], "the receive from rank 2", CLOSED).give_way_s > 0


def test_several_that_do_not_answer_are_named() -> None:
    (first, *_) = met(HashStore(), 3, answering=[0])
    assert str(waits(first, "a sum over all ranks", LATE)).endswith("after 2 s: ranks 1, 2 do not answer")


def test_where_all_answer_those_that_work_are_named_first() -> None:
    first, second, _ = met(HashStore(), 3, answering=[0, 1, 2])
    second.waiting = "the receive from rank 2", 0.0
    said = str(waits(first, "the receive from rank 1", LATE))
    assert "after 2 s: every rank answers; rank 2 is at work; rank 1 has waited " in said
    assert said.endswith(" s for the receive from rank 2")


def test_a_connection_that_is_closed_is_said_at_once() -> None:
    (first, *_) = met(HashStore(), 2, answering=[0, 1])
    found = waits(first, "the send to rank 1", CLOSED)
    assert str(found) == "the send to rank 1 failed: Connection closed by peer [127.0.0.1]:4711"
    assert found.give_way_s == 0


@pytest.mark.parametrize(("hosted", "who"), [(True, "rank 0"), (False, "the store of torchrun")])
def test_a_store_that_does_not_answer_is_no_wait_without_end(hosted: bool, who: str) -> None:
    class Stopped:
        def add(self, key: str, amount: int) -> int:
            threading.Event().wait()
            return 1

    _, second = met(Stopped(), 2, answering=[], hosted=hosted)
    assert str(waits(second, "the receive from rank 0", LATE)).endswith(f"after 2 s: {who} does not answer")
    assert waits(second, "the receive from rank 0", CLOSED).give_way_s == 0


def test_who_has_met_nobody_says_what_torch_says() -> None:
    assert str(waits(Meeting(), "connecting ranks 0, 1", CLOSED)).startswith("connecting ranks 0, 1 failed: Connection closed")


def test_a_rank_without_a_place_to_meet_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(PeerLostError, match="nothing here says MASTER_ADDR, MASTER_PORT, WORLD_SIZE"):
        meeting.meet(1)
