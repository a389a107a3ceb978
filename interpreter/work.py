"""One stage's work on one micro-batch: what its forward makes and keeps, and what its backwards read and give up.

FWD          act[s, m]  -> act[s + 1, m], or the loss          keeps its graph; to recompute, nothing
BWD          grad[s, m] -> grad[s - 1, m], weight gradients    gives up act[s, m], grad[s, m] and the graph
BWD_INPUT    grad[s, m] -> grad[s - 1, m]                      gives up grad[s, m] and the graph
BWD_WEIGHT   weight gradients                                  gives up act[s, m] and what the graph left for it
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from interpreter.data import Batch
from interpreter.messages import Values
from interpreter.split import Splitting
from interpreter.store import Slot
from models.draws import drawing
from models.model import Model, Stage


class Iteration:
    """What all work of a rank shares in one iteration. loss: what this rank's last stages have contributed."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model, self.device = model, device
        self.batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        """Start an iteration on these micro-batches."""
        self.batch, self.valid_targets = batch, batch.valid_targets
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)

    def inputs(self, m: int) -> Values:
        """Return the samples of a micro-batch, where the stages are."""
        assert self.batch is not None
        return tuple(t.to(self.device) for t in self.batch.inputs(m))


class Work:
    """The work of `module` on micro-batch `m`.

    act: its input, None on the first stage, whose input are samples; gradient: which tensors of the input carry one.
    made: where its output goes, None on the last stage, whose output is the loss. grad: the gradient of the output;
    handed: where that of the input goes. split: what BWD_INPUT leaves for BWD_WEIGHT, None for a full backward.
    """

    __slots__ = ("act", "grad", "gradient", "handed", "iteration", "leaves", "m", "made", "module", "outputs", "ran", "split")

    def __init__(
        self,
        iteration: Iteration,
        module: Stage,
        m: int,
        act: Slot | None,
        gradient: Sequence[bool],
        made: Slot | None,
        grad: Slot | None,
        handed: Slot | None,
    ) -> None:
        self.iteration, self.module, self.m = iteration, module, m
        self.act, self.gradient, self.made, self.grad, self.handed = act, tuple(gradient), made, grad, handed
        self.split: Splitting | None = None
        self.close()

    def close(self) -> None:
        """Forget what the forward kept."""
        self.ran = False  # whether a forward waits for its last backward
        self.leaves: list[Tensor] = []  # the inputs that carry a gradient
        self.outputs: list[Tensor] | None = None  # those that carry a gradient; None where the forward has to run again

    def forward(self) -> None:
        """Run the stage and keep its graph."""
        self._emit(self._build())
        self.ran = True

    def forward_to_recompute(self) -> None:
        """Run the stage without a graph: the backward runs it again."""
        self._without_graph()
        self.ran = True

    def forward_only(self) -> None:
        """Run the stage and keep nothing: there is no backward."""
        self._without_graph()
        if self.act is not None:
            self.act.give_up()

    def backward(self) -> None:
        """Add the weight gradients and hand back the input's."""
        outputs = self._opened()
        grads = self._given(outputs)
        if outputs:  # a stage without parameters at the start of the model has none
            torch.autograd.backward(outputs, grads)
        self._hand_back()
        self._end()

    def split_backward(self) -> None:
        """Let the backward come in two halves."""
        self.split = Splitting()

    def backward_input(self) -> None:
        """Hand back the gradient of the input; of the graph, keep what the weight gradients need."""
        outputs = self._opened()
        grads = self._given(outputs)
        if outputs:
            torch.autograd.backward(outputs, grads)
        self._hand_back()
        self.leaves, self.outputs = [], []

    def backward_weight(self) -> None:
        """Add the weight gradients."""
        self._opened()
        assert self.split is not None
        self.split.weights()
        self._end()

    def _inputs(self) -> Values:
        return self.iteration.inputs(self.m) if self.act is None else self.act.read()

    def _build(self) -> Values:
        """Run the stage so that its backward ends at its own inputs."""
        inputs = self._inputs()
        if self.act is not None:
            inputs = tuple(t.detach().requires_grad_() if g else t for t, g in zip(inputs, self.gradient, strict=True))
            self.leaves = [t for t in inputs if t.requires_grad]
        outputs = self._compute(inputs)
        self.outputs = [t for t in outputs if t.requires_grad]
        return outputs

    def _compute(self, inputs: Values) -> Values:
        """Run the stage; the last one's output is its share of the iteration's loss."""
        now = self.iteration
        assert now.batch is not None
        with drawing(now.batch.draws(self.m)), self.split or nullcontext():
            outputs: Values = self.module(*inputs)
        if self.made is None:
            targets = now.batch.targets(self.m).to(now.device)
            return (now.model.loss(outputs, targets) / now.valid_targets,)
        return outputs

    def _emit(self, outputs: Values) -> None:
        """Hand the outputs on, or add the loss."""
        if self.made is None:
            self.iteration.loss += outputs[0].detach()
            return
        outputs = tuple(t.detach() for t in outputs)
        if self.act is not None and self.act.buffer is not None:
            # What a stage hands on as it came must not end with the buffer: the next stage may read it longer.
            buffer = _memory(self.act.buffer.message)
            outputs = tuple(t.clone() if _memory(t) == buffer else t for t in outputs)
        self.made.put(outputs)

    def _without_graph(self) -> None:
        with torch.no_grad():
            self._emit(self._compute(self._inputs()))

    def _opened(self) -> list[Tensor]:
        """Return the outputs that a backward begins at."""
        if not self.ran:
            raise KeyError("its forward has not run, or its last backward has")
        if self.act is not None:
            self.act.read()  # what the forward read must be there still
        if self.outputs is None:
            self._build()
        assert self.outputs is not None
        return self.outputs

    def _given(self, outputs: list[Tensor]) -> Values:
        """Return the gradients of the outputs, giving up the one that came; that of the loss is one.

        Autograd may keep what it is given, or a view of it, as the gradient of a parameter. So what came in a buffer is
        copied.
        """
        if self.grad is None:
            return (torch.ones_like(outputs[0]),)
        grads = self.grad.read()
        if self.grad.buffer is not None:
            grads = tuple(g.clone() for g in grads)
        self.grad.give_up()
        return grads

    def _hand_back(self) -> None:
        if self.handed is not None:
            self.handed.put(tuple(gradient_of(t) for t in self.leaves))

    def _end(self) -> None:
        self.close()
        if self.act is not None:
            self.act.give_up()


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def gradient_of(t: Tensor) -> Tensor:
    """Return the gradient added up so far: zeros where nothing has been added."""
    return torch.zeros_like(t) if t.grad is None else t.grad
