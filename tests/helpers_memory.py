"""Memory measured from outside: the bytes of the tensors that a rank holds after each instruction, beside the prediction.

Nothing here asks the interpreter what it holds. Every storage that an operation of a rank's thread reads or makes is
noted, weakly, and counted for as long as somebody holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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

SEED = 3


class Meter(TorchDispatchMode):
    """Notes the storages that this thread's operations see first. seen: those that any thread has seen."""

    def __init__(self, seen: dict[int, StorageWeakRef]) -> None:
        super().__init__()
        self._seen, self._mine = seen, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note(args)
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result

    def note(self, tree: Any) -> None:
        """Note the storages of the tensors in a structure."""
        for t in tree_leaves(tree):
            if isinstance(t, Tensor):
                storage = t.untyped_storage()
                known = self._seen.get(storage._cdata)
                if known is None or known.expired():
                    self._seen[storage._cdata] = reference = StorageWeakRef(storage)
                    self._mine[storage._cdata] = (reference, storage.nbytes())

    def forget(self) -> None:
        """Forget what was noted so far: a backend's thread may hold for a moment what ranks told each other."""
        self._mine.clear()

    def bytes(self, without: Iterable[Tensor] = ()) -> int:
        """Return how many bytes are held now, some tensors aside."""
        self._mine = {k: x for k, x in self._mine.items() if not x[0].expired()}
        aside = {t.untyped_storage()._cdata for t in without}
        return sum(size for k, (_, size) in self._mine.items() if k not in aside)


def predicted(program: Program, description: ModelDescription, rank: int) -> list[int]:
    """Return what is held after each instruction of a rank, by the rule of lifetimes."""
    lives = lifetimes(program)
    amounts = sizes(lives, description.stage_sums(balanced(description, program.header.stages).layers))
    a, b = program.offsets[rank : rank + 2].tolist()
    change = [0] * (b - a + 1)
    for born, freed, size in zip(lives.born.tolist(), lives.freed.tolist(), amounts.tolist(), strict=True):
        if a <= born < b and freed > born:
            change[born - a] += size
            change[freed - a] -= size
    return [sum(change[: n + 1]) for n in range(b - a)]


def constants(executor: Executor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights and the gradients of a rank."""
    modules = executor.stages.values()
    weights = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    return weights, [p.grad for p in weights if p.grad is not None]


def measured(executor: Executor, batch: Batch, meter: Meter, others: Sequence[Executor] = ()) -> list[int]:
    """Run one iteration and return what the rank holds after each instruction, and at the end.

    Left out are weights, gradients, and the one number that each executor adds its losses to. others: of the same stages.
    """
    found: list[int] = []

    def note() -> None:
        weights, gradients = constants(executor)
        losses = [x.iteration.loss for x in (executor, *others) if hasattr(x.iteration, "loss")]
        found.append(meter.bytes(without=[*weights, *gradients, *losses]))

    calls = executor.calls
    executor.calls = [partial(_both, call, note) for call in calls]
    try:
        executor.run(batch)
    finally:
        executor.calls = calls
    note()
    return found


def _place(executor: Executor, number: int) -> str:
    return f"instruction {number}: {executor.stream[number]}" if number < len(executor.stream) else "epilogue"


def _both(first: Callable[[], None], then: Callable[[], None]) -> None:
    first()
    then()


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the storages of these tensors."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def differences(
    program: Program, model: Model, description: ModelDescription, samples: Samples
) -> Callable[[Transport], Iterator[str]]:
    """Return the life of a rank that trains twice, and evaluates in between, and yields where it holds what was not said."""
    h = program.header
    parts = partitioned(program, model, description)
    forwards = evaluation_of(program)
    seen: dict[int, StorageWeakRef] = {}

    def live(transport: Transport) -> list[str]:
        with Meter(seen) as meter:
            return list(_differences(transport, meter))

    def _differences(transport: Transport, meter: Meter) -> Iterator[str]:
        rank = transport.rank
        transport.connect(program)
        stages = {s: parts.build(s, SEED) for s in range(h.stages) if rank in h.holders([s])}
        trains = Executor(program, model, stages, parts.table, transport)
        transport.connect(forwards)
        evaluates = Executor(forwards, model, stages, parts.table, transport)
        meter.forget()
        for p, executor in [(program, trains), (forwards, evaluates), (program, trains)]:
            batch = Batch(samples, SEED, 0, rank // h.ranks, h.width, h.micro_batches, description.samples)
            found = measured(executor, batch, meter, [trains, evaluates])
            said = [*predicted(p, description, rank), 0]
            for number, (a, b) in enumerate(zip(found, said, strict=True)):
                if a != b:
                    yield f"{p.header.kind}, rank {rank}, {_place(executor, number)}: holds {a} bytes, not {b}"
        weights, gradients = (_bytes(tensors) for tensors in constants(trains))
        need = memory(program, description)[rank]
        if (weights, gradients) != (need.weights, need.gradients):
            yield f"rank {rank}: weights {weights}, gradients {gradients}, not {need}"

    return live
