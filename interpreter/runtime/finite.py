"""Finding the first value that is not finite: an iteration is run again, and every task is checked.

Weights, samples and random numbers are those of the first run, so the values are too. A task is a cause if what it read is
finite and what it made is not. Samples that are not finite are a cause too. A sum over ranks is one only if no task is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, Fwd, Recompute, Task
from chimerac.chimera_ir.textline import instruction_text
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.transport import Transport

SHOWN = 4  # names of parameters in a message


@dataclass(frozen=True, slots=True)
class Cause:
    """The first value that is not finite. number, text: of the instruction that made it, on `rank`.

    what: the value in words; weights: the names of the stage's weights that are not finite.
    """

    is_sum: bool
    number: int
    rank: int
    text: str
    what: str
    weights: tuple[str, ...]

    def __str__(self) -> str:
        return f"rank {self.rank}, instruction {self.number}: {self.text}: {self.what}"

    @property
    def note(self) -> str:
        """Return what is known of the weights that the instruction reads."""
        if self.is_sum:
            return "the terms of the sum are finite"
        if self.weights:
            return f"weights of its stage are not finite before it either: {_names(self.weights)}"
        return "what it reads, and the weights of its stage, are finite"


class FiniteCheck:
    """Checks the tasks of one rank while its stream runs. names: of this rank's parameters, by id."""

    def __init__(self, executor: Executor, names: Mapping[int, str]) -> None:
        self._executor, self._names = executor, names
        self._bad: set[tuple[int, int, int]] = set()  # the stages and micro-batches that have read or made such a value
        self._bad_parameters: set[int] = set()  # whose gradient is not finite
        self.causes: list[Cause] = []

    def around(self, number: int, call: Callable[[], None]) -> None:
        """Run an instruction and check what it reads and makes."""
        instruction = self._executor.stream[number] if number < len(self._executor.stream) else None
        if not isinstance(instruction, Task) or isinstance(instruction, Recompute):  # a RECOMPUTE makes no value
            call()
            return
        keys = [(instruction.pipe, instruction.stage, m) for m in instruction.micro_batches]
        if isinstance(instruction, Fwd):
            self._forward(number, call, keys)
        else:
            self._backward(number, call, keys, reads=isinstance(instruction, Bwd | BwdInput))

    def end(self) -> None:
        """Check the gradients that were summed; called after the last batch."""
        if self.causes:
            return
        reductions = {i.group: n for n, i in enumerate(self._executor.stream) if isinstance(i, AllReduce)}
        for group, parameters in self._executor.groups.items():
            if group in reductions and (names := self._nonfinite_gradients(parameters)):
                self._add(reductions[group], f"the sum of the gradients of {_names(names)} is not finite", is_sum=True)

    def _forward(self, number: int, call: Callable[[], None], keys: list[tuple[int, int, int]]) -> None:
        work = [self._executor.work[key] for key in keys]
        read = [_is_finite(w.iteration.inputs(w.m) if w.input is None else w.input.read()) for w in work]
        call()
        for key, w, is_finite in zip(keys, work, read, strict=True):
            made = (w.iteration.losses[w.m],) if w.output is None else w.output.values or ()
            what = f"its {'loss of' if w.output is None else 'output for'} micro-batch {w.m}"
            if not is_finite and w.input is None:
                self._add(number, f"the inputs of micro-batch {w.m} are not finite", key[1])
            elif is_finite and not _is_finite(made):
                self._add(number, f"{what} is not finite", key[1])
            if not (is_finite and _is_finite(made)):
                self._bad.add(key)

    def _backward(self, number: int, call: Callable[[], None], keys: list[tuple[int, int, int]], reads: bool) -> None:
        """Check a backward. reads: it reads and makes gradients of values, not only of weights."""
        work = [self._executor.work[key] for key in keys]
        gradients = [w.output_gradient.read() if reads and w.output_gradient is not None else () for w in work]
        is_finite = all(key not in self._bad for key in keys) and all(map(_is_finite, gradients))
        call()
        made = [w.input_gradient.values or () for w in work if reads and w.input_gradient is not None]
        names, stage = self._nonfinite_gradients(self._executor.stages[keys[0][1]].parameters()), keys[0][1]
        micro_batches = f"micro-batch{'es' if len(keys) > 1 else ''} {', '.join(str(m) for _, _, m in keys)}"
        if is_finite and names:
            self._add(number, f"the gradient of {_names(names)} is not finite after {micro_batches}", stage)
        elif is_finite and not all(map(_is_finite, made)):
            self._add(number, f"the gradient of its input is not finite for {micro_batches}", stage)
        if not is_finite or names or not all(map(_is_finite, made)):
            self._bad.update(keys)

    def _nonfinite_gradients(self, parameters: Iterable[nn.Parameter]) -> list[str]:
        """Return the names of the parameters whose gradient has become not finite, and note them."""
        new = [p for p in parameters if id(p) not in self._bad_parameters and p.grad is not None and not _is_finite((p.grad,))]
        self._bad_parameters.update(map(id, new))
        return [self._names[id(p)] for p in new]

    def _add(self, number: int, what: str, stage: int | None = None, is_sum: bool = False) -> None:
        weights = [] if stage is None else [p for p in self._executor.stages[stage].parameters() if not _is_finite((p,))]
        text = instruction_text(self._executor.stream[number], self._executor.pipes)
        names = tuple(dict.fromkeys(self._names[id(p)] for p in weights))
        self.causes.append(Cause(is_sum, number, self._executor.transport.rank, text, what, names))


def first_cause(transport: Transport, causes: Iterable[Cause]) -> Cause | None:
    """Return the first cause of all ranks, the same on each; called by all ranks together.

    Of several the one with the lowest number in its stream, of these the one on the lowest rank. None: there is none.
    """
    mine = json.dumps([asdict(cause) for cause in causes])
    found = [Cause(**{**c, "weights": tuple(c["weights"])}) for text in transport.all_gather(mine) for c in json.loads(text)]
    return min(found, key=lambda cause: (cause.is_sum, cause.number, cause.rank), default=None)


def _is_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())


def _names(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:SHOWN]) + (f" and {len(every) - SHOWN} others" if len(every) > SHOWN else "")
