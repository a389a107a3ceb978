"""All-reduces of ranks of one host, through memory that they share.

gloo sends the bytes of an all-reduce through sockets, which copies them several times and takes processor time from the
computation. Here each rank copies a piece of its values to shared memory, and reads those of the others there. Sockets only
carry a byte for each step, with which the ranks wait for each other. Values are summed in the order of the ranks, so that all
ranks get the same bits.

Before step k, each rank copies a piece to buffer k mod 3. Step k waits until all ranks have done so. Two ranks then sum the
piece, each for itself. Of more ranks, each sums one part of the piece, and copies the whole sum back after step k + 1. So the
last piece is followed by a step without a piece. Steps are counted over all all-reduces. The buffer is written again after
step k + 2, which no rank reaches before it has read its sum.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from chimerac.interpreter.transport.backends import all_reduce

LEAST_BYTES = 2**16  # smaller all-reduces are left to gloo, which needs fewer steps for them
PIECE_BYTES = 2**20
BUFFERS = 3
KEY_BYTES = 16  # of a random key, which only the ranks of the group know
OFFSET = 64  # of the buffers in the memory, after the key: a multiple of the size of every dtype
HELLO_TIMEOUT_S = 10.0  # how long a rank waits for the key of a connection that it has accepted
STEP = b"\1"


class SharedMemory:
    """The memory and the connections of the ranks of a group, as one of them has them.

    Args:
        peers: a connection to each other rank.

    Attributes:
        buffers: BUFFERS x (ranks + 1) x PIECE_BYTES bytes. In each buffer, row r has the values of rank r of the group. With
            more than two ranks, the last row has the sum.
        steps: how many steps this rank has made.
    """

    def __init__(self, memory: mmap.mmap, rank: int, ranks: int, peers: Sequence[socket.socket]) -> None:
        self.rank, self.peers, self.steps = rank, peers, 0
        self.buffers = torch.frombuffer(memory, dtype=torch.uint8, offset=OFFSET).view(BUFFERS, ranks + 1, PIECE_BYTES)

    def step(self) -> None:
        """Wait until all ranks have called this. Raises OSError if a rank has ended."""
        for peer in self.peers:
            peer.sendall(STEP)
        for peer in self.peers:
            if not peer.recv(1):
                raise ConnectionResetError("connection closed by peer")
        self.steps += 1

    def sum(self, values: Tensor) -> None:
        """Sum a vector over all ranks, in place. Raises OSError if a rank has ended."""
        buffers = self.buffers.view(values.dtype)
        pieces = torch.split(values, buffers.shape[-1])
        if buffers.shape[1] == 3:  # the rows of two ranks, and that of the sum
            self._sum_of_two(buffers, pieces)
        else:
            self._sum_in_parts(buffers, pieces)

    def _sum_of_two(self, buffers: Tensor, pieces: Sequence[Tensor]) -> None:
        """Sum pieces over two ranks. Each rank sums all of them: that takes less time than copying half of the sums."""
        for piece in pieces:
            rows = self._written(buffers, piece)
            self.step()
            torch.add(rows[0], rows[1], out=piece)

    def _sum_in_parts(self, buffers: Tensor, pieces: Sequence[Tensor]) -> None:
        """Sum pieces over all ranks. Each rank sums one part of each piece."""
        before: tuple[Tensor, Tensor] | None = None  # the piece before, and its sum
        for piece in (*pieces, None):
            rows = None if piece is None else self._written(buffers, piece)
            self.step()
            if before is not None:
                before[0].copy_(before[1])
            if piece is not None and rows is not None:
                *parts, total = rows.tensor_split(len(rows) - 1, dim=1)[self.rank]
                torch.add(parts[0], parts[1], out=total)
                for part in parts[2:]:
                    total.add_(part)
                before = piece, rows[-1]

    def _written(self, buffers: Tensor, piece: Tensor) -> Tensor:
        """Copy a piece to the row of this rank in the buffer of the next step. Return the rows of this buffer."""
        rows = buffers[self.steps % BUFFERS, :, : len(piece)]
        rows[self.rank].copy_(piece)
        return rows

    def close(self) -> None:
        """Close the connections. A call of `step` that waits then fails, in all ranks."""
        for peer in self.peers:
            with suppress(OSError):  # the other end may be closed already
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


class SharedWork:
    """The handle of an all-reduce that was launched."""

    def __init__(self) -> None:
        self._ended, self._error = threading.Event(), ""

    def end(self, error: str = "") -> None:
        """Record that the all-reduce is complete, or that it has failed."""
        self._error = error
        self._ended.set()

    def wait(self, limit: timedelta | None = None) -> None:
        """Wait until it is complete. Raises RuntimeError if it has failed, or is not complete within the limit."""
        if not self._ended.wait(None if limit is None else limit.total_seconds()):
            raise RuntimeError("timed out")
        if self._error:
            raise RuntimeError(self._error)


class SharedAllReduces:
    """The all-reduces of a group of ranks, which run in a thread, in the order of their launches.

    All ranks of the group launch them in the same order.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._launched = SimpleQueue[tuple[Tensor, SharedWork] | None]()
        self._thread = threading.Thread(target=self._run, name="shared all-reduces", daemon=True)
        self._thread.start()

    def launch(self, values: Tensor) -> SharedWork:
        """Launch an all-reduce (sum) of a contiguous tensor, in place."""
        work = SharedWork()
        self._launched.put((values.view(-1), work))
        return work

    def takes(self, values: Tensor) -> bool:
        """Return whether an all-reduce of this tensor may be launched here."""
        return values.nbytes >= LEAST_BYTES and values.is_contiguous() and not values.is_complex()

    def close(self) -> None:
        """Close the connections, and end the thread. An all-reduce that is not complete fails, in all ranks."""
        self._memory.close()
        self._launched.put(None)
        self._thread.join()

    def _run(self) -> None:
        """Run the all-reduces. After one has failed, all later ones fail too."""
        error = ""
        while (launched := self._launched.get()) is not None:
            values, work = launched
            if not error:
                try:
                    self._memory.sum(values)
                except Exception as failure:  # of any kind: it is raised in the rank that waits
                    error = getattr(failure, "strerror", None) or str(failure)
                    self._memory.close()  # a rank that waits for this one would not learn of the failure otherwise
            work.end(error)
            del launched, values, work  # or the tensor would be kept until the next launch


def share_memory(backend: Any, store: Store, rank: int, ranks: int) -> SharedMemory | None:
    """Return memory that the ranks of a group share; called by all of them together.

    None on all ranks if one of them cannot share memory with the others, as on another host or in another container.

    Args:
        backend: gloo's, of these ranks.
        store: no other call uses its keys.
        rank: the number of this rank in the group.
    """
    with ExitStack() as needed_to_connect:
        group = _Group(rank, ranks, needed_to_connect)
        store.set(f"shared {rank}", json.dumps(group.offer()))
        offers = [json.loads(store.get(f"shared {r}")) for r in range(ranks)]  # waits for each of them
        failed = torch.tensor([0 if all(offers) and group.connect(offers) else 1])
        all_reduce(backend, failed).wait()
        if not failed.item():
            return group.accept()
        for peer in group.peers:
            peer.close()
        return None


class _Group:
    """The ranks of a group while they connect.

    Args:
        opened: for what a rank opens only until all have connected.
    """

    def __init__(self, rank: int, ranks: int, opened: ExitStack) -> None:
        self.rank, self.ranks, self.opened = rank, ranks, opened
        self.peers: list[socket.socket] = []
        self.key = b""

    def offer(self) -> Mapping[str, str] | None:
        """Return what the other ranks need to connect to this one; None if it cannot share memory.

        Rank 0 creates the memory. Each rank accepts connections at an address that has no file and ends with its socket.
        """
        if sys.platform != "linux":
            return None  # other systems have neither memfd_create nor such addresses
        try:
            self.listener = self.opened.enter_context(socket.socket(socket.AF_UNIX))
            self.listener.bind(f"\0chimerac-{secrets.token_hex(KEY_BYTES)}")
            self.listener.listen(self.ranks)
            address = self.listener.getsockname()[1:].decode()
            if self.rank > 0:
                return {"address": address}
            file = os.memfd_create("chimerac")
            self.opened.callback(os.close, file)
            self.key = secrets.token_bytes(KEY_BYTES)
            size = OFFSET + BUFFERS * (self.ranks + 1) * PIECE_BYTES
            os.posix_fallocate(file, 0, size)  # so that later no write to the memory can fail
            os.pwrite(file, self.key, 0)
            return {"address": address, "memory": f"/proc/{os.getpid()}/fd/{file}", "key": self.key.hex()}
        except OSError:
            return None

    def connect(self, offers: Sequence[Mapping[str, str]]) -> bool:
        """Open the memory, and connect to the ranks before this one. Return whether this was possible."""
        try:
            self.key = bytes.fromhex(offers[0]["key"])
            with open(offers[0]["memory"], "r+b") as file:
                self.memory = mmap.mmap(file.fileno(), 0)
            for offer in offers[: self.rank]:
                self.peers.append(socket.socket(socket.AF_UNIX))
                self.peers[-1].connect(f"\0{offer['address']}")
                self.peers[-1].sendall(self.key)
        except (OSError, ValueError):
            return False
        return self.memory[:KEY_BYTES] == self.key

    def accept(self) -> SharedMemory:
        """Accept the connections of the ranks after this one, which have all connected. Those without the key are closed."""
        while len(self.peers) < self.ranks - 1:
            peer, _ = self.listener.accept()
            peer.settimeout(HELLO_TIMEOUT_S)
            try:
                known = peer.recv(KEY_BYTES, socket.MSG_WAITALL) == self.key
            except OSError:
                known = False
            if known:
                peer.settimeout(None)
                self.peers.append(peer)
            else:
                peer.close()
        return SharedMemory(self.memory, self.rank, self.ranks, self.peers)
