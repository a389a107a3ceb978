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
from interpreter.batch import Batch
from interpreter.messages import Specs, message_bytes, pack, with_gradient
from interpreter.store import Key, Store, Values
from interpreter.transport import Pending, Transport
from models.model import Model, Stage


class InstructionError(Exception):
    """What went wrong at one instruction of one rank."""

    def __init__(self, rank: int, number: int, text: str, cause: Exception) -> None:
        super().__init__(f"rank {rank}, instruction {number}: {text}: {str(cause.args[0]) if cause.args else cause!r}")


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

        Afterwards every parameter has its whole gradient. Raises InstructionError.
        """
        self.batch, self.loss = batch, torch.zeros((), dtype=torch.float64)
        for number, i in enumerate(self.stream):
            try:
                self._execute(i)
            except Exception as cause:
                raise InstructionError(self.transport.rank, number, instruction_text(i, self.pipes), cause) from cause
        self.transport.flush()
        for pending, total, parameters in self.sums:
            pending.wait()
            for p, grad in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
                p.grad = grad.view_as(p)
        self.sums.clear()
        assert not self.store.left() and not self.kept, "a verified stream ends with nothing left in the store"
        return float(self.loss)

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
                total = torch.cat([_grad(p).flatten() for p in parameters])
                self.sums.append((self.transport.sum(i.ranks, total), total, parameters))
            case Free():
                for m in i.micro_batches:
                    self.store.drop(Key(i.value, i.pipe, i.stage, m))
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
            inputs = self._leaves(stage, inputs)
            outputs = self._compute(stage, m, inputs)
            self.kept[pipe, stage, m] = Kept(inputs, outputs)
        if stage < self.last:
            self.store.put(Key("act", pipe, stage + 1, m), tuple(t.detach() for t in outputs))
        else:
            self.loss += outputs[0].detach()
            self.store.put(Key("grad", pipe, stage, m), (torch.ones_like(outputs[0]),))

    def _backward(self, pipe: int, stage: int, m: int) -> None:
        kept = self._open(pipe, stage, m)
        torch.autograd.backward(_differentiable(kept.outputs), self.store.take(Key("grad", pipe, stage, m)))
        self._close(pipe, stage, m, [_grad(t) for t in kept.inputs if t.requires_grad])

    def _backward_input(self, pipe: int, stage: int, m: int) -> None:
        kept = self._open(pipe, stage, m)
        kept.grads = self.store.take(Key("grad", pipe, stage, m))
        ...
