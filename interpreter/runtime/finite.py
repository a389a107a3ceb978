"""Finding the first value that is not finite: the batches of an iteration are run again, and their tasks are checked.

Weights, samples and random numbers are those of the first run. So the values are the same, if all layers are deterministic. A
task is a cause if the activations or gradients that it reads are finite and a value that it computes is not. Inputs of the
model that are not finite are a cause, too. A cause also names the fields and the targets that the task reads and that are not
finite. They alone are no cause: an attention mask may have infinite values. Buffers are not checked: the first run may have
changed them. An all-reduce is a cause only if no task of any rank is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, Fwd, Recompute, Task
from chimerac.chimera_ir.textline import instruction_text
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.work import Work
from chimerac.interpreter.transport import Transport

SHOWN = 4  # how many values a message names at most


@dataclass(frozen=True, slots=True)
class Cause:
    """A value that is not finite, and the instruction that computed it from finite values, or read it from the samples.

    Attributes:
        is_reduction: whether the instruction is an all-reduce.
        number, text: of the instruction, on `rank`.
        name: of the rank in messages.
        value: which value is not finite, in words.
        weights: the names of the stage's weights that are not finite.
        samples: the fields and targets that the instruction reads and that are not finite, in words.
        is_input: whether the value is an input of the model.
    """

    is_reduction: bool
    number: int
    rank: int
    name: str
    text: str
    value: str
    weights: tuple[str, ...]
    samples: tuple[str, ...]
    is_input: bool

    def __str__(self) -> str:
        return f"{self.name}, instruction {self.number}: {self.text}: {self.value}"

    @property
    def note(self) -> str:
        """Return what is known of the values that the instruction reads."""
        if self.is_reduction:
            return "the gradients that it sums are finite"
        if self.is_input:
            return "no instruction computed these inputs: they are in the samples"
        facts = [f"it reads samples that are not finite: {_names(self.samples)}"] if self.samples else []
        if self.weights:
            facts.append(f"weights of its stage were not finite before it: {_names(self.weights)}")
        if facts:
            return "; ".join(facts)
        return "the values that it reads, and the weights of its stage, are finite"


class FiniteCheck:
    """Checks the tasks of one rank while its stream runs.

    Args:
        names: of this rank's parameters, by id.

    Attributes:
        causes: those that were found on this rank.
    """

    def __init__(self, executor: Executor, names: Mapping[int, str]) -> None:
        self._executor, self._names = executor, names
        # (pipe, stage, micro-batch) of the tasks that have read or computed a value that is not finite.
        self._nonfinite: set[tuple[int, int, int]] = set()
        self._nonfinite_parameters: set[int] = set()  # those whose gradient is not finite, by id
        self.causes: list[Cause] = []

    def invoke(self, number: int, call: Callable[[], None]) -> None:
        """Run an instruction. For a task other than a RECOMPUTE, check the values that it reads and computes.

        Args:
            number: of the instruction in the stream, or the length of the stream for the epilogue.
            call: runs it.
        """
        instruction = self._executor.stream[number] if number < len(self._executor.stream) else None
        if not isinstance(instruction, Task) or isinstance(instruction, Recompute):  # a RECOMPUTE makes no value
            call()
            return
        keys = [(instruction.pipe, instruction.stage, m) for m in instruction.micro_batches]
        if isinstance(instruction, Fwd):
            self._forward(number, call, keys)
        else:
            self._backward(number, call, keys, has_values=isinstance(instruction, Bwd | BwdInput))

    def end(self) -> None:
        """Check the gradients that were all-reduced, unless a task of this rank is a cause; called after the last batch."""
        if self.causes:
            return
        reductions = {i.group: n for n, i in enumerate(self._executor.stream) if isinstance(i, AllReduce)}
        for group, parameters in self._executor.groups.items():
            if group in reductions and (names := self._new_nonfinite_gradients(parameters)):
                self._add(reductions[group], f"the sum of the gradients of {_names(names)} is not finite", is_reduction=True)

    def _forward(self, number: int, call: Callable[[], None], keys: list[tuple[int, int, int]]) -> None:
        work = [self._executor.work[key] for key in keys]
        inputs_finite = [_is_finite(w.iteration.inputs(w.m) if w.input is None else w.input.read()) for w in work]
        call()
        for key, w, input_finite in zip(keys, work, inputs_finite, strict=True):
            output_finite = _is_finite((w.iteration.losses[w.m],) if w.output is None else w.output.values or ())
            if not input_finite and w.input is None:
                self._add(number, f"the inputs of micro-batch {w.m} are not finite", [w], is_input=True)
            elif input_finite and not output_finite:
                output = "loss of" if w.output is None else "output for"
                self._add(number, f"its {output} micro-batch {w.m} is not finite", [w])
            if not (input_finite and output_finite):
                self._nonfinite.add(key)

    def _backward(self, number: int, call: Callable[[], None], keys: list[tuple[int, int, int]], has_values: bool) -> None:
        """Check a backward.

        Args:
            has_values: whether it reads and computes gradients of values, not only of weights.
        """
        work, stage = [self._executor.work[key] for key in keys], keys[0][1]
        read = [w.output_gradient.read() for w in work if has_values and w.output_gradient is not None]
        inputs_finite = all(key not in self._nonfinite for key in keys) and all(map(_is_finite, read))
        call()
        outputs_finite = all(
            _is_finite(w.input_gradient.values or ()) for w in work if has_values and w.input_gradient is not None
        )
        names = self._new_nonfinite_gradients(self._executor.stages[stage].parameters())
        micro_batches = f"micro-batch{'es' if len(keys) > 1 else ''} {', '.join(str(m) for _, _, m in keys)}"
        if inputs_finite and names:
            self._add(number, f"the gradient of {_names(names)} is not finite after {micro_batches}", work)
        elif inputs_finite and not outputs_finite:
            self._add(number, f"the gradient of its input is not finite for {micro_batches}", work)
        if names or not (inputs_finite and outputs_finite):
            self._nonfinite.update(keys)

    def _new_nonfinite_gradients(self, parameters: Iterable[nn.Parameter]) -> list[str]:
        """Return the names of the parameters whose gradient is not finite for the first time."""
        new = [
            p
            for p in parameters
            if id(p) not in self._nonfinite_parameters and p.grad is not None and not _is_finite((p.grad,))
        ]
        self._nonfinite_parameters.update(map(id, new))
        return [self._names[id(p)] for p in new]

    def _add(
        self, number: int, value: str, work: Sequence[Work] = (), is_reduction: bool = False, is_input: bool = False
    ) -> None:
        """Add a cause.

        Args:
            work: what the task is for, of one stage; empty for an all-reduce.
        """
        weights = [p for w in work[:1] for p in w.module.parameters() if not _is_finite((p,))]
        samples = tuple(name for w in work for name in _nonfinite_samples(w))
        text = instruction_text(self._executor.stream[number], self._executor.pipe_names)
        names = tuple(dict.fromkeys(self._names[id(p)] for p in weights))
        transport = self._executor.transport
        name = transport.named([transport.rank])
        self.causes.append(Cause(is_reduction, number, transport.rank, name, text, value, names, samples, is_input))


def first_cause(transport: Transport, causes: Iterable[Cause]) -> Cause | None:
    """Return the first cause of all ranks, the same on each rank; called by all ranks together.

    Args:
        causes: of this rank.

    Tasks come before all-reduces. Of two tasks or two all-reduces, the one with the lower number in its stream comes first, and
    of equal numbers the one of the lower rank. None: there is no cause.
    """
    by_rank = transport.all_gather(json.dumps([asdict(cause) for cause in causes]))
    all_causes = [
        Cause(**{**fields, "weights": tuple(fields["weights"]), "samples": tuple(fields["samples"])})
        for text in by_rank
        for fields in json.loads(text)
    ]
    return min(all_causes, key=lambda cause: (cause.is_reduction, cause.number, cause.rank), default=None)


def _nonfinite_samples(work: Work) -> list[str]:
    """Return in words the fields and targets that this work reads and that are not finite."""
    batch, m = work.iteration.batch, work.m
    found = [f"the field {name} of micro-batch {m}" for name in work.module.reads if not _is_finite((batch.field(m, name),))]
    if work.output is None and not _is_finite(batch.targets(m)):
        found.append(f"the targets of micro-batch {m}")
    return found


def _is_finite(tensors: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point() or t.is_complex())


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} others" if len(names) > SHOWN else "")
