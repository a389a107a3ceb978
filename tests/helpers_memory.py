"""Measures the bytes of the tensors that a rank holds after each instruction, and compares them with the prediction.

The measurement does not ask the interpreter what a rank holds. It keeps a weak reference to every storage that a torch
operation of the rank's thread is the first to read or create, and counts the storage until it is freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chimerac.chimera_ir.lifetimes import lifetimes, sizes
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.program import Program
from chimerac.compiler import evaluation_of
from chimerac.compiler.analyze.memory import memory
from chimerac.interpreter.runtime.batch import Batch, Samples
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.transport import Transport
from tests.helpers_loopback import stages_of

SEED = 3  # of the weights and the batch


class Meter(TorchDispatchMode):
    """Records the storages that this thread is the first to use.

    Args:
        seen: the storages that any thread has used, by their addresses in torch; all meters of a run share it.
    """

    def __init__(self, seen: dict[int, StorageWeakRef]) -> None:
        super().__init__()
        self._seen, self._first_seen = seen, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note(args)
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result

    def note(self, tree: Any) -> None:
        """Record the storages of the tensors in a structure."""
        for t in tree_leaves(tree):
            if isinstance(t, Tensor):
                storage = t.untyped_storage()
                known = self._seen.get(storage._cdata)
                if known is None or known.expired():
                    self._seen[storage._cdata] = reference = StorageWeakRef(storage)
                    self._first_seen[storage._cdata] = (reference, storage.nbytes())

    def forget(self) -> None:
        """Drop all records, because a thread of the backend may still hold buffers of earlier collectives."""
        self._first_seen.clear()

    def bytes(self, without: Iterable[Tensor] = ()) -> int:
        """Return how many bytes the recorded storages hold now.

        Args:
            without: tensors whose storages do not count.
        """
        self._first_seen = {k: (ref, size) for k, (ref, size) in self._first_seen.items() if not ref.expired()}
        excluded = {t.untyped_storage()._cdata for t in without}
        return sum(size for k, (_, size) in self._first_seen.items() if k not in excluded)


def predicted(program: Program, description: ModelDescription, rank: int) -> list[int]:
    """Return the bytes that chimera_ir/lifetimes.py predicts after each instruction of a rank.

    The partition is the balanced one.
    """
    lives = lifetimes(program)
    amounts = sizes(lives, description.stage_sums(balanced(description, program.header.stages).layers))
    first, end = program.offsets[rank : rank + 2].tolist()
    change = [0] * (end - first + 1)
    for allocated, freed, size in zip(lives.allocated.tolist(), lives.freed.tolist(), amounts.tolist(), strict=True):
        if first <= allocated < end and freed > allocated:
            change[allocated - first] += size
            change[freed - first] -= size
    return list(accumulate(change[:-1]))


def weights_and_gradients(executor: Executor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights of a rank, with the buffers of its modules, and the gradients."""
    modules = executor.stages.values()
    weights = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    return weights, [p.grad for p in weights if p.grad is not None]


def measured(executor: Executor, batch: Batch, meter: Meter, others: Sequence[Executor] = ()) -> list[int]:
    """Run one iteration; return the bytes that the rank holds after each instruction and at the end.

    Weights, gradients and the loss of each micro-batch, a scalar, are not counted.

    Args:
        others: executors of the same stages whose losses are not counted either; this one may be among them.
    """
    held: list[int] = []

    def note() -> None:
        weights, gradients = weights_and_gradients(executor)
        losses = [loss for each in (executor, *others) for loss in each.iteration.losses.values()]
        held.append(meter.bytes(without=[*weights, *gradients, *losses]))

    calls = executor.calls
    executor.calls = [partial(_call_both, call, note) for call in calls]
    try:
        executor.run(batch)
    finally:
        executor.calls = calls
    note()
    return held


def _place(executor: Executor, number: int) -> str:
    return f"instruction {number}: {executor.stream[number]}" if number < len(executor.stream) else "the end"


def _call_both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages of these tensors."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def differences(
    program: Program, model: Model, description: ModelDescription, samples: Samples
) -> Callable[[Transport], list[str]]:
    """Return the function of each rank, which returns a text for each wrong prediction.

    The rank runs the program, then its evaluation, then the program again.
    """
    h = program.header
    parts = partitioned(program, model, description)
    evaluation_program = evaluation_of(program)
    seen: dict[int, StorageWeakRef] = {}

    def run_rank(transport: Transport) -> list[str]:
        with Meter(seen) as meter:
            return list(_differences(transport, meter))

    def _differences(transport: Transport, meter: Meter) -> Iterator[str]:
        rank = transport.rank
        transport.connect(program)
        stages = stages_of(program, parts, rank, SEED)
        training = Executor(program, model, stages, parts.boundary_table, transport)
        transport.connect(evaluation_program)
        evaluation = Executor(evaluation_program, model, stages, parts.boundary_table, transport)
        meter.forget()
        for p, executor in [(program, training), (evaluation_program, evaluation), (program, training)]:
            batch = Batch(samples, SEED, 0, rank // h.ranks, h.width, h.micro_batches, description.samples)
            for stage in stages.values():
                stage.zero_grad()
            held = measured(executor, batch, meter, [training, evaluation])
            expected = [*predicted(p, description, rank), 0]
            for number, (found, wanted) in enumerate(zip(held, expected, strict=True)):
                if found != wanted:
                    yield f"{p.header.kind}, rank {rank}, {_place(executor, number)}: holds {found} bytes, predicted {wanted}"
        weights, gradients = (_bytes(tensors) for tensors in weights_and_gradients(training))
        of_rank = memory(program, description)[rank]
        if (weights, gradients) != (of_rank.weights, of_rank.gradients):
            yield f"rank {rank}: {weights} bytes of weights, {gradients} of gradients; predicted: {of_rank}"

    return run_rank
