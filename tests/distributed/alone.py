"""A transport for a single rank without peers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.transport import Pending, ranks_text
from chimerac.interpreter.transport.progress import Progress


class Alone:
    """The transport of the only rank.

    Args:
        gathered: texts that all_gather returns as if other ranks had sent them.
    """

    rank, world, device, waited_ns = 0, 1, torch.device("cpu"), 0
    machine: Machine = "window"
    rehearsal = waits_of_gpu = None

    def __init__(self, *gathered: str) -> None:
        self.gathered, self.progress = gathered, Progress()

    def named(self, ranks: Sequence[int]) -> str:
        """Return ranks as text for a message."""
        return ranks_text(ranks)

    def connect(self, program: Program) -> None:
        """Do nothing, because there are no channels."""

    def send(self, peer: int, buffer: Tensor) -> None:
        raise AssertionError(f"one rank sends nothing, but this is a send to rank {peer}")

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        raise AssertionError(f"one rank receives nothing, but this is a receive from rank {peer}")

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        raise AssertionError(f"one rank needs no all-reduce, but this is one over ranks {ranks}")

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> Pending:
        raise AssertionError(f"one rank sends nothing, but this is a broadcast to ranks {ranks}")

    def flush(self) -> None:
        """Do nothing, because nothing was sent."""

    def forget(self, buffer: Tensor) -> None:
        """Leave the buffer as it is."""

    def all_reduce(self, buffer: Tensor) -> None:
        """Leave the buffer as it is."""

    def all_gather(self, text: str) -> Sequence[str]:
        """Return this text, and then those of `gathered`."""
        return [text, *self.gathered]
