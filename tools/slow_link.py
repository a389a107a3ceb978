"""A transport whose all-reduces take as long as over links of limited bandwidth, on any host and without root rights."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from queue import SimpleQueue

import torch
from torch import Tensor

from chimerac.interpreter.transport import Pending
from chimerac.interpreter.transport.backends import all_reduce
from chimerac.interpreter.transport.gloo import Gloo

TIMEOUT_S = 120.0


class LaunchedAllReduce(Future[None]):
    """An all-reduce on its way over a slow link."""

    def wait(self) -> None:
        """Return when it is complete. Raises the error that made it fail, and TimeoutError after TIMEOUT_S."""
        self.result(TIMEOUT_S)


class SlowLink(Gloo):
    """Gloo, as if the all-reduces that a rank launches shared a link of limited bandwidth. Messages do not use this link.

    An all-reduce of b bytes over n ranks occupies the link of each of these ranks for 2 (n - 1) / n * b / bandwidth seconds, as
    in a ring of ranks (Thakur, Rabenseifner and Gropp, IJHPCA 2005), or for as long as gloo takes, if that is longer. It begins
    when all of these ranks have launched it and their links are free. A rank's all-reduces use its link one after another, in
    the order of their launches. A thread runs them with gloo, and delays the end of each until the link would have carried it.

    Attributes:
        bandwidth: in bytes per second, infinite at first; it may be changed between two iterations.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bandwidth = float("inf")
        self._launched: SimpleQueue[tuple[tuple[int, ...], Tensor, LaunchedAllReduce]] = SimpleQueue()
        threading.Thread(target=self._carry, name="link", daemon=True).start()

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks."""
        launched = LaunchedAllReduce()
        self._launched.put((ranks, buffer, launched))
        return launched

    def _carry(self) -> None:
        """Complete the all-reduces, one after another."""
        while True:
            ranks, buffer, launched = self._launched.get()
            try:
                self._sum(ranks, buffer)
            except BaseException as error:
                launched.set_exception(error)
            else:
                launched.set_result(None)

    def _sum(self, ranks: tuple[int, ...], buffer: Tensor) -> None:
        """Run one all-reduce, and return when the link would have carried it."""
        backend, sent_bytes = self._collectives[ranks], 2 * (len(ranks) - 1) / len(ranks) * buffer.nbytes
        all_reduce(backend, torch.zeros(1)).wait()  # complete when it is the turn of this all-reduce on every rank
        due = time.monotonic() + sent_bytes / self.bandwidth
        all_reduce(backend, buffer).wait()
        time.sleep(max(0.0, due - time.monotonic()))
