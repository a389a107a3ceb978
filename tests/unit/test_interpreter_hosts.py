"""Jobs on several hosts: messages name the hosts of lost ranks; a lost store blocks neither ranks nor launchers."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import RendezvousHandler

from chimerac.interpreter.launch import rendezvous_handler
from chimerac.interpreter.launch.rendezvous_handler import NonBlockingHandler
from chimerac.interpreter.transport import liveness
from chimerac.interpreter.transport.liveness import LivenessCheck
from chimerac.interpreter.transport.progress import Awaited, Progress
from chimerac.interpreter.transport.rendezvous import Host, Rendezvous, ranks_of_hosts
from tests.helpers_liveness import LostStore, answer_quickly

HOSTS = [Host("0", "node1"), Host("0", "node1"), Host("1", "node2"), Host("1", "node2")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_quickly(monkeypatch, within_s=0.2)
    monkeypatch.setattr(liveness, "STORE_LOST_S", 0.2)
    monkeypatch.setattr(rendezvous_handler, "SHUTDOWN_S", 0.2)


def message(store: object, rank: int, answering: list[int], awaited: int, error: str) -> str:
    """Return what one of four ranks on two hosts says when its wait for another rank fails.

    Args:
        answering: the ranks that answer.
        awaited: the rank that is waited for.
        error: the message of torch.
    """
    checks = [LivenessCheck(store, r, world=4, hosted=False, progress=Progress()) for r in range(4)]
    for r in answering:
        checks[r].start()
    rendezvous = Rendezvous(timedelta(seconds=2), checks[rank], Progress(), HOSTS)
    text = str(rendezvous.lost(Awaited(f"the receive from rank {awaited}", "receive", (awaited,)), RuntimeError(error)))
    for r in answering:
        checks[r].stop()
    return text


def test_all_ranks_of_a_lost_host_are_named_with_the_host() -> None:
    assert message(HashStore(), rank=1, answering=[0, 1], awaited=2, error="Connection closed").endswith(
        "failed: ranks 2, 3 (node2) have ended"
    )
    assert message(HashStore(), rank=1, answering=[0, 1], awaited=2, error="timed out").endswith(
        "after 2 s: ranks 2, 3 (node2) do not answer"
    )


def test_a_lost_rank_of_a_host_that_goes_on_is_named_alone() -> None:
    assert message(HashStore(), rank=0, answering=[0, 1, 3], awaited=2, error="Connection closed").endswith(
        "failed: rank 2 (node2) has ended"
    )


def test_the_ranks_on_the_host_of_a_lost_store_are_named_on_other_hosts() -> None:
    store = "the store of torchrun, on the host of ranks 0, 1 (node1),"
    assert message(LostStore(), rank=2, answering=[], awaited=1, error="timed out").endswith(
        f"after 2 s: {store} does not answer"
    )
    assert message(LostStore(), rank=2, answering=[], awaited=1, error="Connection closed").endswith(
        f"failed: {store} has ended"
    )
    assert message(LostStore(), rank=0, answering=[], awaited=1, error="timed out").endswith(
        "after 2 s: the store of torchrun does not answer"
    )


def test_hosts_of_one_name_are_told_apart() -> None:
    same = [Host("0", "localhost"), Host("1", "localhost")]
    assert ranks_of_hosts([0, 1], same) == "rank 0 (localhost), rank 1 (localhost)"
    assert ranks_of_hosts([0, 1], []) == "ranks 0, 1"


def test_without_the_store_one_rank_of_a_host_reports(tmp_path: Path) -> None:
    progress = Progress()
    checks = [
        LivenessCheck(LostStore(), r, world=4, hosted=False, progress=progress, claim=tmp_path / "report") for r in (2, 3)
    ]
    assert [check.claim_report() for check in checks] == [True, False]


def test_a_rank_that_was_asked_to_end_does_so_if_the_store_is_lost() -> None:
    ended, codes = threading.Event(), []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    check = LivenessCheck(LostStore(), rank=2, world=4, hosted=False, progress=Progress(), end=end)
    check.terminate()
    assert ended.wait(30) and codes == [1]


class Handler(RendezvousHandler):
    """A handler whose store is lost.

    Args:
        blocks: its calls of the store never return; False: they raise an error.
    """

    use_agent_store = True

    def __init__(self, blocks: bool) -> None:
        self.blocks, self.asked = blocks, threading.Event()

    def num_nodes_waiting(self) -> int:
        self.asked.set()
        if self.blocks:
            threading.Event().wait()
        raise RuntimeError("The connection to the C10d store has failed")

    def shutdown(self) -> bool:
        return self.num_nodes_waiting() == 0

    def get_backend(self) -> str:
        return "c10d"

    def get_run_id(self) -> str:
        return "run1"

    next_rendezvous = is_closed = set_closed = num_nodes_waiting  # abstract methods, which are not called here


@pytest.mark.parametrize("blocks", [True, False])
def test_the_handler_of_the_launcher_answers_if_the_store_is_lost(blocks: bool) -> None:
    handler = Handler(blocks)
    non_blocking = NonBlockingHandler(handler)
    assert (non_blocking.num_nodes_waiting(), non_blocking.num_nodes_waiting()) == (0, 0)
    assert handler.asked.wait(30)
    assert not non_blocking.shutdown()
    assert (non_blocking.get_backend(), non_blocking.get_run_id(), non_blocking.use_agent_store) == ("c10d", "run1", True)
