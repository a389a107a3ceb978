"""The executor: one rank's stream, instruction by instruction, on a store keyed by value.

It knows what each instruction means (docs/semantics.md) and nothing of schemes or placements: FWD reads act[s, m] and
writes act[s + 1, m]; SEND takes a value out of the store, RECV puts one in.

    stream                              store
    RECV act down s1 m0 <- 0            act down s1 m0, on its way
    FWD down s1 m0                      act down s1 m0, grad down s1 m0   (the last stage: the loss's own gradient)
    BWD down s1 m0                      grad down s0 m0
    SEND grad down s0 m0 -> 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor, nn

from chimera_ir.instructions import (
    AllReduce,
    Bwd,
    BwdInput,
    BwdWeight,
    Free,
    Fwd,
    Instruction,
    Recv,
    Send,
    instruction_text,
    stage_group,
)
from chimera_ir.program import Program
from interpreter.data import Batch
from interpreter.messages import Specs, message_bytes, pack, with_gradient
from interpreter.store import Key, Store, Values
from interpreter.transport import Pending, Transport
from models.draws import drawing
from models.model import Model, Stage


class RankError(Exception):
    """What went wrong at one place of one rank."""

    def __init__(self, rank: int, place: str, cause: Exception) -> None:
        text = cause.args[0] if len(cause.args) == 1 and isinstance(cause.args[0], str) else repr(cause)
        super().__init__(f"rank {rank}, {place}: {text}")


@dataclass(slots=True)
class Kept:
    """What a forward keeps for its backward. outputs: none where the forward has to be run again."""

    inputs: Values
    outputs: Values | None
    grads: Values = ()


class Executor:
    """One rank. stages: its modules by stage, one copy each; table: the tensors that every stage hands on."""

    def __init__(
        self, program: Program, model: Model, stages: Mapping[int, Stage], table: Sequence[Specs], transport: Transport
    ) -> None:
        self.stream = program.stream(transport.rank)
        self.pipes = program.pipe_names
        self.last = program.header.stages - 1
        self.model, self.stages, self.table, self.transport = model, stages, table, transport
        self.groups: dict[str, list[nn.Parameter]] = {stage_group(s): list(m.parameters()) for s, m in stages.items()}
        self.store = Store()
        self.kept: dict[tuple[int, int, int], Kept] = {}
        self.sums: list[tuple[Pending, Tensor, list[nn.Parameter]]] = []
        self.loss = torch.zeros((), dtype=torch.float64)

    def run(self, batch: Batch) -> float:
        """Execute the stream for one iteration and return this rank's share of the loss.

        Afterwards every parameter has its whole gradient. Raises RankError, which names the instruction.
        """
        self.batch, self.loss = batch, torch.zeros((), dtype=torch.float64)
        place = ""
        try:
            for number, i in enumerate(self.stream):
                place = f"instruction {number}: {instruction_text(i, self.pipes)}"
                self._execute(i)
            place = "epilogue"
            self._finish()
        except Exception as cause:
            raise RankError(self.transport.rank, place, cause) from cause
        return float(self.loss)

    def _finish(self) -> None:
        """Wait for sends and sums, and hand the sums back to their parameters."""
        self.transport.flush()
        for pending, total, parameters in self.sums:
            pending.wait()
            for p, grad in zip(parameters, torch.split(total, [p.numel() for p in parameters]), strict=True):
                p.grad = grad.view_as(p)
        self.sums.clear()
        left = self.store.left()
        assert not left and not self.kept, f"a stream left {left} and {list(self.kept)} behind: it was not verified"

    def _execute(self, i: Instruction) -> None:
        match i:
            case Fwd():
                for m in i.micro_batches:
                    self._forward(i.pipe, i.stage, m, i.recompute)
            case Bwd():
                for m in i.micro_batches:
                    self._backward(i.pipe, i.stage, m)
            case BwdInput():
                for m in i.micro_batches:
                    self._backward_input(i.pipe, i.stage, m)
            case BwdWeight():
                for m in i.micro_batches:
                    self._backward_weight(i.pipe, i.stage, m)
            case Send():
                keys, specs = self._message(i)
                tensors = [t for key in keys for t in self.store.take(key)]
                self.transport.send(i.peer, pack(tensors, specs * len(keys)))
            case Recv():
                keys, specs = self._message(i)
                buffer = torch.empty(message_bytes(specs * len(keys)), dtype=torch.uint8)
                self.store.expect(keys, self.transport.recv(i.peer, buffer), buffer, specs)
            case AllReduce():
                parameters = self.groups[i.group]
                # A stage without parameters sums nothing, but its ranks may still meet here.
                total = torch.cat([_grad(p).flatten() for p in parameters] or [torch.zeros(0)])
                self.sums.append((self.transport.sum(i.ranks, total), total, parameters))
            case Free():
                for m in i.micro_batches:
                    self.store.take(Key(i.value, i.pipe, i.stage, m))
            case _:
                assert_never(i)

    def _message(self, i: Send | Recv) -> tuple[list[Key], Specs]:
        """Return the values of a message and the tensors of each. An act comes from the stage before its consumer's."""
        keys = [Key(i.value, i.pipe, i.stage, m) for m in i.micro_batches]
        return keys, self.table[i.stage - 1] if i.value == "act" else with_gradient(self.table[i.stage])

    def _forward(self, pipe: int, stage: int, m: int, recompute: bool) -> None:
        inputs = self.batch.inputs(m) if stage == 0 else self.store.read(Key("act", pipe, stage, m))
        if recompute:
            with torch.no_grad():
                outputs = self._compute(stage, m, inputs)
            self.kept[pipe, stage, m] = Kept(inputs, None)
        else:
            self.kept[pipe, stage, m] = kept = self._with_graph(stage, m, inputs)
            assert kept.outputs is not None
            outputs = kept.outputs
        if stage < self.last:
            self.store.put(Key("act", pipe, stage + 1, m), tuple(t.detach() for t in outputs))
        else:
            self.loss += outputs[0].detach()
            self.store.put(Key("grad", pipe, stage, m), (torch.ones_like(outputs[0]),))

    def _compute(self, stage: int, m: int, inputs: Values) -> Values:
        """Run a stage; the last one's output is its share of the iteration's loss."""
        with drawing(self.batch.draws(m)):
            outputs: Values = self.stages[stage](*inputs)
        if stage == self.last:
            return (self.model.loss(outputs, self.batch.targets(m)) / self.batch.valid_targets,)
        return outputs

    def _with_graph(self, stage: int, m: int, inputs: Values) -> Kept:
        """Run a stage so that its backward ends at its own inputs."""
        gradient = [False for _ in inputs] if stage == 0 else [spec.gradient for spec in self.table[stage - 1]]
        leaves = tuple(t.detach().requires_grad_(g) for t, g in zip(inputs, gradient, strict=True))
        return Kept(leaves, self._compute(stage, m, leaves))

    def _opened(self, pipe: int, stage: int, m: int) -> tuple[Kept, list[Tensor]]:
        """Return what a forward kept and the outputs that its backward begins at."""
        if (pipe, stage, m) not in self.kept:
            raise KeyError("its forward has not run, or its last backward has")
        kept = self.kept[pipe, stage, m]
        if kept.outputs is None:
            kept = self.kept[pipe, stage, m] = self._with_graph(stage, m, kept.inputs)
        assert kept.outputs is not None
        return kept, [t for t in kept.outputs if t.requires_grad]

    def _backward(self, pipe: int, stage: int, m: int) -> None:
        kept, outputs = self._opened(pipe, stage, m)
        torch.autograd.backward(outputs, self.store.take(Key("grad", pipe, stage, m)))
        self._hand_back(pipe, stage, m, [_grad(t) for t in kept.inputs if t.requires_grad])
        self._close(pipe, stage, m)

    def _backward_input(self, pipe: int, stage: int, m: int) -> None:
        kept, outputs = self._opened(pipe, stage, m)
        kept.grads = self.store.take(Key("grad", pipe, stage, m))
        wanted = [t for t in kept.inputs if t.requires_grad]
        if wanted:
            torch.autograd.backward(outputs, kept.grads, retain_graph=True, inputs=wanted)
        self._hand_back(pipe, stage, m, [_grad(t) for t in wanted])

    def _backward_weight(self, pipe: int, stage: int, m: int) -> None:
        kept, outputs = self._opened(pipe, stage, m)
        wanted = [p for p in self.stages[stage].parameters() if p.requires_grad]
        if wanted:
            torch.autograd.backward(outputs, kept.grads, inputs=wanted)
        self._close(pipe, stage, m)

    def _hand_back(self, pipe: int, stage: int, m: int, grads: Sequence[Tensor]) -> None:
        if stage > 0:
            self.store.put(Key("grad", pipe, stage - 1, m), tuple(grads))

    def _close(self, pipe: int, stage: int, m: int) -> None:
        """Give up what the last backward of a stage has read."""
        del self.kept[pipe, stage, m]
        self.store.drop(Key("act", pipe, stage, m))


def _grad(t: Tensor) -> Tensor:
    """Return the gradient added up so far: zeros where nothing has been added."""
    return torch.zeros_like(t) if t.grad is None else t.grad
