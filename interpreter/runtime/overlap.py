"""Overlapped pairs on a GPU: the two tasks of a pair run at the same time, on two CUDA streams (docs/semantics.md, "overlap").

In this file, a *rank's stream* is its instructions; every other stream is a CUDA stream. A rank has its current stream, the
main one, and a second one beside it. All tasks of one pipe, stage and micro-batch run on the same stream, because autograd runs
a backward on the stream of its forward. Before a task or a pair that uses the second stream, that stream waits for the main
one. Afterwards the main stream waits for the second one. So only the two tasks of a pair run at the same time.

    main stream      FWD p[0] s1 m2   | FWD p[0] s1 m3 |  SEND ...
    second stream                     | BWD p[1] s1 m0 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from chimerac.chimera_ir.instructions import Fwd, Instruction, Recompute, Task

Call = Callable[[], None]
WorkKey = tuple[int, int, int]  # pipe, stage, micro-batch


class SecondStream(Protocol):
    """A stream of a device, beside its current one."""

    def fork(self) -> None:
        """Let the second stream wait for all that was started on the current one."""

    def join(self) -> None:
        """Let the current stream wait for all that was started on the second one."""

    def run(self, call: Call) -> None:
        """Make a call that starts its work on the second stream."""

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep freed tensors until the calling task's stream has done all that it was given before they were freed.

        Without this, a later task on the stream that allocated a tensor could get the tensor's memory while the calling task's
        stream still reads it.
        """


class CudaStream:
    """A second stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Micro-batches of one stage may run on both streams. torch then adds to a gradient on another stream than before. It
        # orders the two correctly, but warns of the time that this may cost.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)

    def fork(self) -> None:
        """Let the second stream wait for all that was started on the current one."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def join(self) -> None:
        """Let the current stream wait for all that was started on the second one."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def run(self, call: Call) -> None:
        """Make a call that starts its work on the second stream."""
        with torch.cuda.stream(self._stream):
            call()

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Keep freed tensors until the calling task's stream has done all that it was given before they were freed."""
        current = torch.cuda.current_stream(self._device)
        for t in tensors:
            t.record_stream(current)


class Overlap(NamedTuple):
    """Which pairs of a rank's stream run at the same time, and on which CUDA stream each task runs.

    Attributes:
        first: the number of the first instruction of each such pair.
        second_stream: the pipe, stage and micro-batch of all tasks that run on the second stream; the others run on the main
            one.
    """

    first: frozenset[int]
    second_stream: frozenset[WorkKey]


def second_stream_of(device: torch.device) -> SecondStream | None:
    """Return a second stream of a CUDA device; None for other devices, where the tasks of a pair run one after the other."""
    return CudaStream(device) if device.type == "cuda" else None


def overlap_of(stream: Sequence[Instruction]) -> Overlap:
    """Return which overlapped pairs of a rank's stream run at the same time, and on which CUDA stream each task runs.

    Only a pair of a forward (FWD or RECOMPUTE) and a backward runs at the same time. Two backwards may add to the same
    gradients, and two forwards may change the same buffers. A pair is also left out if its tasks cannot be on different
    streams: the tasks of one pipe, stage and micro-batch share a stream, and so do the micro-batches of one task.
    """
    assignment = _StreamAssignment()
    for i in stream:
        if isinstance(i, Task):
            keys = _keys(i)
            for key in keys[1:]:
                assignment.require(keys[0], key, differ=False)
    first = set()
    for number, (i, following) in enumerate(pairwise(stream)):
        if not isinstance(i, Task) or not isinstance(following, Task) or not i.overlap:
            continue
        if _is_forward(i) != _is_forward(following) and assignment.require(_keys(i)[0], _keys(following)[0], differ=True):
            first.add(number)
    return Overlap(frozenset(first), frozenset(assignment.on_second_stream()))


def on_streams(stream: Sequence[Instruction], calls: Sequence[Call], second: SecondStream) -> list[Call]:
    """Return the calls of a rank's stream, changed so that its overlapped pairs run at the same time.

    Args:
        calls: one for each instruction. A pair keeps its two calls: the first one lets the second CUDA stream wait for the main
            one and starts its task, the second one starts the other task and lets the main stream wait.
    """
    overlap, changed = overlap_of(stream), list(calls)
    for number, (i, call) in enumerate(zip(stream, calls, strict=True)):
        begins, ends = number in overlap.first, number - 1 in overlap.first
        on_second = isinstance(i, Task) and _keys(i)[0] in overlap.second_stream
        if begins or ends or on_second:
            changed[number] = _Forked(call, second, on_second, fork=not ends, join=not begins)
    return changed


class _Forked:
    """The call of a task of a pair, or of another task on the second stream.

    Args:
        on_second: whether the task runs on the second stream.
        fork, join: whether `SecondStream.fork` is called before the task, and `SecondStream.join` after it.
    """

    def __init__(self, call: Call, second: SecondStream, on_second: bool, fork: bool, join: bool) -> None:
        self._call, self._second, self._on_second, self._fork, self._join = call, second, on_second, fork, join

    def __call__(self) -> None:
        if self._fork:
            self._second.fork()
        if self._on_second:
            self._second.run(self._call)
        else:
            self._call()
        if self._join:
            self._second.join()


class _StreamAssignment:
    """Puts each work on one of two streams, such that given pairs of works are on the same stream or on different ones.

    A work is what the tasks of one pipe, stage and micro-batch do, as in `Work`. This is a union-find structure: each work that
    is not a root has a parent in its set, and it is known whether the two are on different streams.
    """

    def __init__(self) -> None:
        self._parent: dict[WorkKey, tuple[WorkKey, bool]] = {}

    def _root(self, key: WorkKey) -> tuple[WorkKey, bool]:
        """Return the root of the set of a work, and whether the work and the root are on different streams."""
        differs, path = False, [key]
        while key in self._parent:
            key, differs_here = self._parent[key]
            differs ^= differs_here
            path.append(key)
        root, differs_from_root = key, differs
        for visited in path[:-1]:  # from now on these have the root as their parent
            parent_differs = self._parent[visited][1]
            self._parent[visited] = (root, differs_from_root)
            differs_from_root ^= parent_differs
        return root, differs

    def require(self, a: WorkKey, b: WorkKey, differ: bool) -> bool:
        """Put two works on different streams, or on the same one; return False if earlier calls require the opposite."""
        (root_a, a_differs), (root_b, b_differs) = self._root(a), self._root(b)
        if root_a == root_b:
            return (a_differs ^ b_differs) == differ
        self._parent[root_b] = (root_a, a_differs ^ b_differs ^ differ)
        return True

    def on_second_stream(self) -> list[WorkKey]:
        """Return the works on the second stream: those on another stream than the root of their set."""
        return [key for key in list(self._parent) if self._root(key)[1]]


def _keys(i: Task) -> list[WorkKey]:
    return [(i.pipe, i.stage, m) for m in i.micro_batches]


def _is_forward(i: Task) -> bool:
    return isinstance(i, Fwd | Recompute)
