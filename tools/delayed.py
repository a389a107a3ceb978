"""A transport that delays messages: a receive is complete no earlier than the delay after the SEND of its message began."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from chimerac.interpreter.transport import Pending
from chimerac.interpreter.transport.gloo import Gloo

SLOTS = 4096  # for each channel, the number of messages whose times are kept: the last ones


class Delayed(Gloo):
    """gloo with a delay for each message, for the ranks of one host.

    Attributes:
        delay_s: the delay in seconds, 0 at first; it may be changed between two iterations.

    The sender records the time at which each SEND begins, in a file that all ranks map into their memory. The receiver waits
    until the delay is over. No SEND waits for the delay, and the next message of the channel may be sent before it is over.
    """

    def __init__(self) -> None:
        super().__init__()
        self.delay_s = 0.0
        shape = (self.world, self.world, SLOTS)
        path = Path(tempfile.gettempdir()) / f"chimerac_delays_{os.environ['MASTER_PORT']}"
        if self.rank == 0:
            path.write_bytes(np.zeros(shape).tobytes())
        self.all_reduce(torch.zeros(1))  # wait until rank 0 has written the file
        self._times = np.memmap(path, np.float64, "r+", shape=shape)  # by sender, receiver and slot
        self.all_reduce(torch.zeros(1))  # wait until all ranks have opened it
        if self.rank == 0:
            path.unlink()
        self._sent, self._received = Counter[int](), Counter[int]()  # how many messages, by peer

    def send(self, peer: int, buffer: Tensor) -> None:
        """Record the time, and post a send. A wait for a full window comes after the recorded time."""
        self._times[self.rank, peer, self._sent[peer] % SLOTS] = time.monotonic()
        self._sent[peer] += 1
        super().send(peer, buffer)

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive. The wait for it includes the delay."""
        slot = self._received[peer] % SLOTS
        self._received[peer] += 1
        return _DelayedPending(self, super().recv(peer, buffer), peer, slot)

    def wait_for(self, peer: int, slot: int) -> None:
        """Wait until the delay of a message is over.

        Args:
            peer: its sender.
            slot: of the time that the sender has recorded.
        """
        begin = time.monotonic()
        due = float(self._times[peer, self.rank, slot]) + self.delay_s
        while (left := due - time.monotonic()) > 0:
            time.sleep(left)
        self.waited_ns += round((time.monotonic() - begin) * 1e9)


class _DelayedPending:
    """A receive that is complete when its message is there and its delay is over."""

    def __init__(self, transport: Delayed, pending: Pending, peer: int, slot: int) -> None:
        self._transport, self._pending, self._peer, self._slot = transport, pending, peer, slot

    def wait(self) -> None:
        """Wait for the message, and for its delay."""
        self._pending.wait()
        self._transport.wait_for(self._peer, self._slot)
