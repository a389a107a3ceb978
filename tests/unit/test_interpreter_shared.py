"""All-reduces through shared memory: the sums, how failures end them, and when ranks do not share memory."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from chimerac.interpreter.transport import shared
from chimerac.interpreter.transport.shared import PIECE_BYTES, SharedAllReduces, SharedMemory, share_memory

FAILURE = "connection closed by peer|Connection reset by peer|Broken pipe"  # of all-reduces with a rank that has ended
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only on Linux do ranks share memory")


class Backend:
    """Stands for the gloo backend of ranks that are threads. All ranks launch an all-reduce of one number together."""

    def __init__(self, ranks: int) -> None:
        self.barrier, self.lock, self.total = threading.Barrier(ranks), threading.Lock(), 0

    def wait_for_sum(self, buffer: Tensor) -> None:
        with self.lock:
            self.total += int(buffer)
        self.barrier.wait(timeout=30)
        buffer.fill_(self.total)


def on_threads(ranks: int, run: Callable[[int], Any]) -> list[Any]:
    """Return what the function returns for each rank, each in a thread of its own."""
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(run, range(ranks)))


@pytest.fixture(autouse=True)
def fake_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `Backend` the backend by which ranks agree whether all can share memory."""

    class Launched:
        def __init__(self, backend: Backend, buffer: Tensor) -> None:
            self.wait = lambda: backend.wait_for_sum(buffer)

    monkeypatch.setattr(shared, "all_reduce", Launched)


def connected(ranks: int) -> list[SharedMemory | None]:
    """Return the memory of each rank of a group, None for a rank that shares none."""
    backend, store = Backend(ranks), HashStore()
    found: list[SharedMemory | None] = on_threads(ranks, lambda rank: share_memory(backend, store, rank, ranks))
    return found


@contextmanager
def memories_of(ranks: int) -> Iterator[list[SharedMemory]]:
    """Yield the memory of each rank of a group, and close it in the end."""
    found = [memory for memory in connected(ranks) if memory is not None]
    assert len(found) == ranks
    yield found
    for memory in found:
        memory.close()


def sum_of(memories: list[SharedMemory], values: list[Tensor], rank: int) -> None:
    memories[rank].sum(values[rank])


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_all_ranks_get_the_same_sum(ranks: int) -> None:
    sizes = [1, ranks - 1, 1000, PIECE_BYTES // 4 - 1, PIECE_BYTES // 4, PIECE_BYTES // 4 + 1, 5 * PIECE_BYTES // 4 + 7]
    with memories_of(ranks) as memories:
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64):
            for size in sizes:
                own = [
                    torch.randn(size, generator=torch.Generator().manual_seed(rank)).mul(100).to(dtype) for rank in range(ranks)
                ]
                expected = own[0].clone()
                for values in own[1:]:
                    expected += values  # in the order of the ranks
                on_threads(ranks, partial(sum_of, memories, own))
                assert all(values.equal(expected) for values in own), (dtype, size)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("size", [1000, PIECE_BYTES // 4 + 1])
def test_a_slow_rank_still_gets_its_sums_when_the_others_go_on(ranks: int, size: int) -> None:
    """Each rank pauses after some steps, while the others go on as far as they can."""
    with memories_of(ranks) as memories:

        def run(rank: int) -> bool:
            random, step = Random(rank), memories[rank].step

            def step_slowly() -> None:
                step()
                time.sleep(random.choice([0, 0, 0.002]))

            memories[rank].step = step_slowly  # type: ignore[method-assign]
            is_right = True
            for k in range(100):
                values = torch.full((size,), float(k + rank))
                memories[rank].sum(values)
                is_right &= bool(values.eq(ranks * k + sum(range(ranks))).all())
            return is_right

        assert on_threads(ranks, run) == [True] * ranks


def test_all_reduces_run_one_after_another_beside_the_rank() -> None:
    with memories_of(2) as memories:
        groups = [SharedAllReduces(memory) for memory in memories]
        values = [[torch.full((2, 300_000), float(rank + k)) for k in range(20)] for rank in range(2)]
        first = [groups[0].launch(v) for v in values[0]]
        with pytest.raises(RuntimeError, match="timed out"):
            first[0].wait(timedelta(seconds=0.1))  # rank 1 has launched nothing
        second = [groups[1].launch(v) for v in values[1]]
        for work in (*first, *second):
            work.wait(timedelta(seconds=30))
        assert all(v.eq(1 + 2 * k).all() for of_rank in values for k, v in enumerate(of_rank))
        for group in groups:
            group.close()


def test_if_a_rank_ends_the_all_reduces_of_the_others_fail() -> None:
    with memories_of(3) as memories:
        groups = [SharedAllReduces(memory) for memory in memories[:2]]
        works = [group.launch(torch.zeros(10**6)) for group in groups]
        memories[2].close()
        later = [group.launch(torch.zeros(10**6)) for group in groups]
        for work in (*works, *later):
            with pytest.raises(RuntimeError, match=FAILURE):
                work.wait(timedelta(seconds=30))
        for group in groups:
            group.close()


def test_a_rank_that_has_failed_is_waited_for_by_no_other() -> None:
    with memories_of(3) as memories:
        memories[2].peers[0].sendall(shared.STEP)
        [rank_2], _, _ = select.select(memories[0].peers, [], [], 30)
        rank_2.recv(1)
        memories[0].peers = sorted(memories[0].peers, key=lambda peer: peer is not rank_2)  # rank 0 turns to rank 2 first
        waiting, failing = SharedAllReduces(memories[1]), SharedAllReduces(memories[0])
        waits = waiting.launch(torch.zeros(10**6))
        assert memories[2].peers[1].recv(1) == shared.STEP  # from rank 1, which now waits for rank 0
        memories[2].close()
        fails = failing.launch(torch.zeros(10**6))
        for work in (fails, waits):
            with pytest.raises(RuntimeError, match=FAILURE):
                work.wait(timedelta(seconds=30))
        for group in (waiting, failing):
            group.close()


def test_small_complex_and_transposed_tensors_are_left_to_gloo() -> None:
    with memories_of(2) as memories:
        group = SharedAllReduces(memories[0])
        assert group.takes(torch.zeros(2**14)) and not group.takes(torch.zeros(2**14 - 1))
        assert not group.takes(torch.zeros(2**14, dtype=torch.complex64)) and not group.takes(torch.zeros(2**8, 2**8).t())
        group.close()


def test_a_connection_without_the_key_does_not_join_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    class Intruding(shared._Group):
        def accept(self) -> SharedMemory:
            if self.rank == 0:
                stranger = self.opened.enter_context(socket.socket(socket.AF_UNIX))
                stranger.connect(self.listener.getsockname())
                stranger.sendall(bytes(shared.KEY_BYTES))
            return super().accept()

    monkeypatch.setattr(shared, "_Group", Intruding)
    with memories_of(2) as memories:
        values = [torch.ones(3), torch.ones(3)]
        on_threads(2, partial(sum_of, memories, values))
        assert values[0].tolist() == values[1].tolist() == [2, 2, 2]


@pytest.mark.parametrize("failing", ["memfd_create", "posix_fallocate"])
def test_no_rank_shares_memory_if_it_cannot_be_created(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(os, failing, fail)
    assert connected(3) == [None, None, None]


@pytest.mark.parametrize("other", ["another process's file", "no such file"])
def test_no_rank_shares_memory_if_one_of_them_finds_other_memory(
    other: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On another host, or in another container, the path of the memory does not exist, or belongs to another process."""
    path = tmp_path / "memory"
    if other != "no such file":
        path.write_bytes(bytes(10**6))

    class OnAnotherHost(shared._Group):
        def connect(self, offers: Any) -> bool:
            if self.rank == 2:
                offers = [dict(offers[0], memory=str(path)), *offers[1:]]
            return super().connect(offers)

    monkeypatch.setattr(shared, "_Group", OnAnotherHost)
    assert connected(3) == [None, None, None]


def test_closed_memory_leaves_no_open_files() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with memories_of(2):
            pass
    assert set(os.listdir("/proc/self/fd")) == before
