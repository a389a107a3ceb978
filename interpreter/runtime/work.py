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
from torch.autograd.graph import GradientEdge, get_gradient_edge

from chimerac.interpreter.runtime.draws import drawing
from chimerac.interpreter.runtime.messages import Values
from chimerac.interpreter.runtime.model import Model, Stage
from chimerac.interpreter.runtime.split import Splitting
from chimerac.interpreter.runtime.store import Slot
from chimerac.interpreter.training.data import Batch


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
        return self._here(self.batch.inputs(m))

    def targets(self, m: int) -> Tensor:
        """Return the targets of a micro-batch, where the stages are."""
        assert self.batch is not None
        return self._here([self.batch.targets(m)])[0]

    def _here(self, tensors: Sequence[Tensor]) -> Values:
        return alone([t.to(self.device) for t in tensors], [False] * len(tensors))


class Work:
    """The work of `module` on micro-batch `m`.

    act: its input, None on the first stage, whose input are samples; gradient: which tensors of the input carry one.
    made: where its output goes, None on the last stage, whose output is the loss; kept: which tensors of the output the
    stage keeps for its backward, too. grad: the gradient of the output; handed: where that of the input goes. split: what
    BWD_INPUT leaves for BWD_WEIGHT, None for a full backward.
    """

    __slots__ = (
        "act",
        "edges",
        "grad",
        "gradient",
        "handed",
        "iteration",
        "kept",
        "leaves",
        "m",
        "made",
        "module",
        "ran",
        "split",
    )

    def __init__(
        self,
        iteration: Iteration,
        module: Stage,
        m: int,
        act: Slot | None,
        gradient: Sequence[bool],
        made: Slot | None,
        kept: Sequence[bool],
        grad: Slot | None,
        handed: Slot | None,
    ) -> None:
        self.iteration, self.module, self.m = iteration, module, m
        self.act, self.gradient, self.made, self.kept = act, tuple(gradient), made, tuple(kept)
        self.grad, self.handed = grad, handed
        self.split: Splitting | None = None
        self.close()

    def close(self) -> None:
        """Forget what the forward kept."""
        self.ran = False  # whether a forward waits for its last backward
        self.leaves: list[Tensor] = []  # the inputs that carry a gradient
        # Where the backward begins: in the graph at the outputs that carry a gradient, which need not be there any more.
        self.edges: list[GradientEdge] | None = None  # None where the forward has to run again

    def forward(self) -> None:
        """Run the stage and keep its graph."""
        self._emit(self._build(), self.kept)
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
        self._run_backward()
        self._end()

    def split_backward(self) -> None:
        """Let the backward come in two halves."""
        self.split = Splitting()

    def backward_input(self) -> None:
        """Hand back the gradient of the input; of the graph, keep what the weight gradients need."""
        self._run_backward()
        self.leaves, self.edges = [], []

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
        self.edges = [get_gradient_edge(t) for t in outputs if t.requires_grad]
        return outputs

    def _compute(self, inputs: Values) -> Values:
        """Run the stage; the last one's output is its share of the iteration's loss."""
        now = self.iteration
        assert now.batch is not None
        with drawing(now.batch.draws(self.m)), self.split or nullcontext():
            outputs: Values = self.module(*inputs)
        if self.made is None:
            return (now.model.loss(outputs, now.targets(self.m)) / now.valid_targets,)
        return outputs

    def _emit(self, outputs: Values, kept: Sequence[bool]) -> None:
        """Hand the outputs on, or add the loss. kept: which of them a graph keeps."""
        if self.made is None:
            self.iteration.loss += outputs[0].detach()
            return
        # What a stage hands on as it came is copied, too: the next stage may read it longer.
        self.made.put(alone(outputs, kept, () if self.act is None else self.act.read()))

    def _without_graph(self) -> None:
        with torch.no_grad():
            outputs = self._compute(self._inputs())
            self._emit(outputs, [False] * len(outputs))

    def _run_backward(self) -> None:
        """Compute the gradients, and hand back the input's."""
        edges = self._opened()
        grads = self._given()
        if edges:  # a stage without parameters at the start of the model has none
            torch.autograd.backward(edges, grads)
        if self.handed is not None:
            found = [torch.zeros_like(t) if t.grad is None else t.grad for t in self.leaves]
            self.handed.put(alone(found, [False] * len(found)))

    def _opened(self) -> list[GradientEdge]:
        """Return where a backward begins."""
        if not self.ran:
            raise KeyError("its forward has not run, or its last backward has")
        if self.act is not None:
            self.act.read()  # what the forward read must be there still
        if self.edges is None:
            self._build()
        assert self.edges is not None
        return self.edges

    def _given(self) -> Values | None:
        """Return the gradients of the outputs, giving up the one that came; nothing for the loss, whose gradient is one.

        What waits for the weight gradients, or is handed back, may lie in what autograd is given, and outlive a buffer.
        So what came in one is copied.
        """
        if self.grad is None:
            return None
        grads = self.grad.read()
        if self.grad.buffer is not None:
            grads = tuple(g.clone() for g in grads)
        self.grad.give_up()
        return grads

    def _end(self) -> None:
        self.close()
        if self.act is not None:
            self.act.give_up()


def alone(tensors: Sequence[Tensor], kept: Sequence[bool], others: Sequence[Tensor] = ()) -> Values:
    """Return these tensors without their graph, each alone in memory of just its size, so that it ends with its value.

    Copied is what a graph keeps (kept), lies in the memory of another of them or of `others`, or in part of a larger one.
    """
    taken = {t.untyped_storage()._cdata for t in others}
    result = []
    for t, is_kept in zip(tensors, kept, strict=True):
        memory = t.untyped_storage()
        fits = t.is_contiguous() and memory.nbytes() == t.nbytes
        is_free = fits and not is_kept and memory._cdata not in taken
        taken.add(memory._cdata)
        result.append(t.detach() if is_free else t.detach().clone(memory_format=torch.contiguous_format))
    return tuple(result)
