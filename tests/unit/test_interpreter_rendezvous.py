"""If a wait takes too long, the error names the ranks that do not answer. If all answer, it says what each of them does."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from chimerac.interpreter.errors import PeerLostError
from chimerac.interpreter.transport import rendezvous
from chimerac.interpreter.transport.rendezvous import LivenessCheck, Rendezvous

LATE = RuntimeError("[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete")
CLOSED = RuntimeError("[/gloo/pair.cc:537] Connection closed by peer [127.0.0.1]:4711. And more")


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "EVERY_S", 0.01)
    monkeypatch.setattr(rendezvous, "GRACE_S", 0.5)


def connected(store: object, world: int, answering: list[int], hosted: bool = False) -> list[Rendezvous]:
    """Return the rendezvous of each rank of a world in which some ranks answer."""
    checks = [LivenessCheck(store, rank, world, hosted) for rank in range(world)]  # type: ignore[arg-type]
    found = [Rendezvous(timedelta(seconds=2), check) for check in checks]
    for rank in answering:
        checks[rank].start(found[rank])
    return found


def error_of_a_wait(of_rank: Rendezvous, what: str, error: RuntimeError) -> PeerLostError:
    with pytest.raises(PeerLostError) as found, of_rank.wait(what):
        raise error
    return found.value


def test_the_error_names_the_rank_that_does_not_answer_and_not_the_one_in_between() -> None:
    first, second, *_ = ranks = connected(HashStore(), 4, answering=[0, 1, 3])
    found = error_of_a_wait(first, "the receive from rank 1", LATE)
    assert str(found) == "the receive from rank 1 is not complete after 2 s: rank 2 does not answer"
    assert found.exit_delay_s == 0
    assert error_of_a_wait(second, "the receive from rank 2", LATE).exit_delay_s > 0, "one error for one rank that is stopped"
    assert error_of_a_wait(ranks[3], "the receive from rank 2", CLOSED).exit_delay_s > 0


def test_several_ranks_that_do_not_answer_are_named() -> None:
    (first, *_) = connected(HashStore(), 3, answering=[0])
    assert str(error_of_a_wait(first, "a sum over all ranks", LATE)).endswith("after 2 s: ranks 1, 2 do not answer")


def test_if_all_ranks_answer_those_that_compute_are_named_first() -> None:
    first, second, _ = connected(HashStore(), 3, answering=[0, 1, 2])
    second.waiting = "the receive from rank 2", 0.0
    message = str(error_of_a_wait(first, "the receive from rank 1", LATE))
    assert "after 2 s: every rank answers; rank 2 is at work; rank 1 has waited " in message
    assert message.endswith(" s for the receive from rank 2")


def test_a_closed_connection_is_reported_at_once() -> None:
    (first, *_) = connected(HashStore(), 2, answering=[0, 1])
    found = error_of_a_wait(first, "the send to rank 1", CLOSED)
    assert str(found) == "the send to rank 1 failed: Connection closed by peer [127.0.0.1]:4711"
    assert found.exit_delay_s == 0


@pytest.mark.parametrize(("hosted", "name"), [(True, "rank 0"), (False, "the store of torchrun")])
def test_a_store_that_does_not_answer_is_not_waited_for_forever(hosted: bool, name: str) -> None:
    class Stopped:
        def add(self, key: str, amount: int) -> int:
            threading.Event().wait()
            return 1

    _, second = connected(Stopped(), 2, answering=[], hosted=hosted)
    assert str(error_of_a_wait(second, "the receive from rank 0", LATE)).endswith(f"after 2 s: {name} does not answer")
    assert error_of_a_wait(second, "the receive from rank 0", CLOSED).exit_delay_s == 0


def test_before_the_rendezvous_the_error_gives_only_the_reason_of_torch() -> None:
    assert str(error_of_a_wait(Rendezvous(), "connecting ranks 0, 1", CLOSED)).startswith(
        "connecting ranks 0, 1 failed: Connection closed"
    )


def test_missing_environment_variables_of_the_rendezvous_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(PeerLostError, match="in the environment, which lacks MASTER_ADDR, MASTER_PORT, WORLD_SIZE"):
        rendezvous.initialize(1)
