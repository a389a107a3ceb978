"""One stage's work on one micro-batch: the values that each task reads and makes, and what it keeps or frees.

FWD          act[s, m]  -> act[s + 1, m], or the loss          keeps its graph; with recompute, nothing
BWD          grad[s, m] -> grad[s - 1, m], weight gradients    frees act[s, m], grad[s, m] and the graph
BWD_INPUT    grad[s, m] -> grad[s - 1, m]                      frees grad[s, m] and the graph
BWD_WEIGHT   weight gradients                                  frees act[s, m] and what the BWD_INPUT left for it
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from chimerac.interpreter.runtime.batch import Batch
from chimerac.interpreter.runtime.draws import drawing
from chimerac.interpreter.runtime.model import Model, Stage, Values
from chimerac.interpreter.runtime.split import Splitting
from chimerac.interpreter.runtime.store import Slot


class Iteration:
    """The state that all work of a rank shares in one iteration. loss: the sum over this rank's last stages so far."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self.model, self.device = model, device
        self.batch: Batch | None = None

    def begin(self, batch: Batch) -> None:
        """Start an iteration on these micro-batches."""
        self.batch, self.valid_targets = batch, batch.valid_targets
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)

    def inputs(self, m: int) -> Values:
        """Return the samples of a micro-batch, on the device of the stages."""
        assert self.batch is not None
        return self._on_device(self.batch.inputs(m))

    def targets(self, m: int) -> Tensor:
        """Return the targets of a micro-batch, on the device of the stages."""
        assert self.batch is not None
        return self._on_device([self.batch.targets(m)])[0]

    def _on_device(self, tensors: Sequence[Tensor]) -> Values:
        return in_own_memory([t.to(self.device) for t in tensors], [False] * len(tensors))


class Work:
    """The work of `module` on micro-batch `m`.

    input: None on the first stage, whose input is samples; needs_gradient: which tensors of the input have a gradient.
    output: None on the last stage, whose output is the loss; kept: which tensors of the output the graph also keeps.
    output_gradient, input_gradient: read and written by the backward; None where output or input is None. split: what
    BWD_INPUT leaves for BWD_WEIGHT; None for a full backward.
    """

    __slots__ = (
        "edges",
        "input",
        "input_gradient",
        "iteration",
        "kept",
        "leaves",
        "m",
        "module",
        "needs_gradient",
        "output",
        "output_gradient",
        "ran",
        "split",
    )

    def __init__(
        self,
        iteration: Iteration,
        module: Stage,
        m: int,
        input: Slot | None,
        needs_gradient: Sequence[bool],
        output: Slot | None,
        kept: Sequence[bool],
        output_gradient: Slot | None,
        input_gradient: Slot | None,
    ) -> None:
        self.iteration, self.module, self.m = iteration, module, m
        self.input, self.needs_gradient, self.output, self.kept = input, tuple(needs_gradient), output, tuple(kept)
        self.output_gradient, self.input_gradient = output_gradient, input_gradient
        self.split: Splitting | None = None
        self.close()

    def close(self) -> None:
        """Free what the forward kept."""
        self.ran = False  # whether the forward has run and its last backward has not
        self.leaves: list[Tensor] = []  # the input's tensors that have a gradient
        # Where the backward begins: the nodes of the output's tensors that have a gradient. The tensors may be freed earlier.
        self.edges: list[GradientEdge] | None = None  # None: the backward runs the forward again

    def forward(self) -> None:
        """Run the stage and keep its graph."""
        self._store_output(self._build(), self.kept)
        self.ran = True

    def forward_to_recompute(self) -> None:
        """Run the stage without a graph: the backward runs it again."""
        self._without_graph()
        self.ran = True

    def forward_only(self) -> None:
        """Run the stage and keep nothing: there is no backward."""
        self._without_graph()
        if self.input is not None:
            self.input.release()

    def backward(self) -> None:
        """Add the weight gradients, and store the input gradient."""
        self._run_backward()
        self._end()

    def split_backward(self) -> None:
        """Prepare for a backward in two halves."""
        self.split = Splitting()

    def backward_input(self) -> None:
        """Store the input gradient; of the graph, keep what the weight gradients need."""
        self._run_backward()
        self.leaves, self.edges = [], []

    def backward_weight(self) -> None:
        """Add the weight gradients."""
        self._begin_backward()
        assert self.split is not None
        self.split.weights()
        self._end()

    def _inputs(self) -> Values:
        return self.iteration.inputs(self.m) if self.input is None else self.input.read()

    def _build(self) -> Values:
        """Run the stage. Its graph begins at detached copies of its inputs, so its backward stops there."""
        inputs = self._inputs()
        if self.input is not None:
            inputs = tuple(t.detach().requires_grad_() if g else t for t, g in zip(inputs, self.needs_gradient, strict=True))
            self.leaves = [t for t in inputs if t.requires_grad]
        outputs = self._compute(inputs)
        self.edges = [get_gradient_edge(t) for t in outputs if t.requires_grad]
        return outputs

    def _compute(self, inputs: Values) -> Values:
        """Run the stage; the last one's output is its share of the iteration's loss."""
        iteration = self.iteration
        assert iteration.batch is not None
        with drawing(iteration.batch.draws(self.m)), self.split or nullcontext():
            outputs: Values = self.module(*inputs)
        if self.output is None:
            return (iteration.model.loss(outputs, iteration.targets(self.m)) / iteration.valid_targets,)
        return outputs

    def _store_output(self, outputs: Values, kept: Sequence[bool]) -> None:
        """Store the output, or add the loss. kept: which tensors of it the graph also keeps."""
        if self.output is None:
            self.iteration.loss += outputs[0].detach()
            return
        # A tensor of the input that is also in the output is copied: the next stage may need it for longer.
        self.output.set(in_own_memory(outputs, kept, () if self.input is None else self.input.read()))

    def _without_graph(self) -> None:
        with torch.no_grad():
            outputs = self._compute(self._inputs())
            self._store_output(outputs, [False] * len(outputs))

    def _run_backward(self) -> None:
        """Compute the gradients, and store the input gradient."""
        edges = self._begin_backward()
        grads = self._take_output_gradient()
        if edges:  # empty for a first stage without parameters
            torch.autograd.backward(edges, grads)
        if self.input_gradient is not None:
            gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in self.leaves]
            self.input_gradient.set(in_own_memory(gradients, [False] * len(gradients)))

    def _begin_backward(self) -> list[GradientEdge]:
        """Return where in the graph the backward begins."""
        if not self.ran:
            raise KeyError("its forward has not run, or its last backward has")
        if self.input is not None:
            self.input.read()  # fails where the input was freed too early
        if self.edges is None:
            self._build()
        assert self.edges is not None
        return self.edges

    def _take_output_gradient(self) -> Values | None:
        """Return the output gradient and free its value; None for the loss, whose gradient is one.

        Autograd may keep these tensors as an input gradient, or for the weight gradients, for longer than the buffer of a
        message lives. So a received gradient is copied.
        """
        if self.output_gradient is None:
            return None
        grads = self.output_gradient.read()
        if self.output_gradient.buffer is not None:
            grads = tuple(g.clone() for g in grads)
        self.output_gradient.release()
        return grads

    def _end(self) -> None:
        self.close()
        if self.input is not None:
            self.input.release()


def in_own_memory(tensors: Sequence[Tensor], kept: Sequence[bool], others: Sequence[Tensor] = ()) -> Values:
    """Return these tensors without their graph, each in memory that it fills and shares with no other.

    So freeing the value frees the memory. A tensor is copied if a graph keeps it (`kept`), if it shares memory with another
    one or with `others`, or if its memory is larger than the tensor.
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
