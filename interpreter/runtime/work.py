"""One stage's work on one micro-batch: the values that each task reads and makes, and what it keeps or frees.

FWD          act[s, m]  -> act[s + 1, m], or the loss          keeps its graph; with recompute, nothing
RECOMPUTE    act[s, m]                                         keeps its graph
BWD          grad[s, m] -> grad[s - 1, m], weight gradients    frees act[s, m], grad[s, m] and the graph
BWD_INPUT    grad[s, m] -> grad[s - 1, m]                      frees grad[s, m] and the graph
BWD_WEIGHT   weight gradients                                  frees act[s, m] and what the BWD_INPUT left for it

The FWD of an evaluation program keeps nothing, and frees act[s, m].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

from chimerac.interpreter.errors import InterpreterError
from chimerac.interpreter.generators import Generators, States
from chimerac.interpreter.runtime.batch import MicroBatches, Pinned, Reads
from chimerac.interpreter.runtime.buffers import unchanged_buffers
from chimerac.interpreter.runtime.draws import set_draws
from chimerac.interpreter.runtime.memory import in_own_memory, is_alone
from chimerac.interpreter.runtime.model import Objective, Stage, Values, combined
from chimerac.interpreter.runtime.split import Splitting
from chimerac.interpreter.runtime.store import Slot

# Since torch 2.13, a node of a function that is written in Python owns its graph, like every other node.
_PYTHON_NODES_KEEP_GRAPH = torch.__version__ >= "2.13"


class Iteration:
    """What all work of a rank shares while its stream runs on one batch of an iteration.

    Args:
        clock: reads a clock (runtime/device_clock.py).

    Attributes:
        losses: the losses that this rank has computed so far, by micro-batch, on the device.
        correct: how many targets it has predicted correctly so far, on the device; counted only if `evaluates`, and if the
            objective counts them.
        reads: what the tasks of this rank read of a batch.
        recomputed: for each forward that has run again so far, the clock before and after it.
        loss_gradient: a tensor with the number 1, with which the backward of a loss begins.
        keep: called with the tensors of each value that a task reads, if tasks run on two CUDA streams (`SecondStream.keep`);
            otherwise None.
    """

    def __init__(self, objective: Objective, device: torch.device, clock: Callable[[], int], evaluates: bool = False) -> None:
        self.clock = clock
        self.loss_of, self.objective, self.device = objective.loss, objective, device
        self.correct_of = objective.correct if evaluates else None
        self.generators = Generators(device)
        self.losses: dict[int, Tensor] = {}
        self.recomputed: list[tuple[int, int]] = []
        self.loss_gradient = torch.ones((), device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.keep: Callable[[Values], None] | None = None
        self.reads = Reads()
        self.batch: MicroBatches

    def begin(self, batch: MicroBatches) -> None:
        """Start on the micro-batches of a batch."""
        self.batch = Pinned(batch, self.reads) if self.device.type == "cuda" else batch
        self.divisors, self.draws = batch.divisors, batch.draws
        self.losses.clear()
        self.recomputed.clear()
        if self.correct_of is not None:
            self.correct.zero_()

    def inputs(self, m: int) -> Values:
        """Return the inputs of a micro-batch, on the device of the stages."""
        return tuple([self._to_device(t) for t in self.batch.inputs(m)])

    def fields(self, m: int, names: Sequence[str]) -> dict[str, Tensor]:
        """Return these fields of a micro-batch, on the device of the stages."""
        return {name: self._to_device(self.batch.field(m, name)) for name in names}

    def loss(self, outputs: Values, m: int) -> Tensor:
        """Return a micro-batch's share of the iteration's loss, and count its correct predictions in an evaluation."""
        targets = tuple([self._to_device(t) for t in self.batch.targets(m)])
        if self.correct_of is not None:
            self.correct += self.correct_of(outputs, targets)
        loss = combined(self.loss_of(outputs, targets), self.divisors)
        if loss.dtype is not self.loss_gradient.dtype:
            self.loss_gradient = torch.ones_like(loss)
        return loss

    def _to_device(self, t: Tensor) -> Tensor:
        return t.to(self.device, non_blocking=True)

    def total_loss(self) -> float:
        """Return the sum of this rank's losses so far; waits for the device."""
        if not self.losses:
            return 0.0
        return float(torch.stack(list(self.losses.values())).sum(dtype=torch.float64))

    def total_correct(self) -> int:
        """Return how many targets this rank has predicted correctly so far; waits for the device."""
        return int(self.correct)


class Work:
    """The work of the stage `module` on micro-batch `m`.

    Args:
        input: the slot of the input; None on the first stage, whose input is samples.
        needs_gradient: which tensors of the input have a gradient.
        output: the slot of the output; None on the last stage, whose output is the loss.
        kept: which tensors of the output the graph also keeps; not used on the last stage.
        output_gradient: the slot that the backward reads; None on the last stage.
        input_gradient: the slot that it fills; None on the first stage.

    Attributes:
        split: what BWD_INPUT leaves for BWD_WEIGHT; None for a full backward.
    """

    __slots__ = (
        "edges",
        "has_buffers",
        "has_single_input",
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
        "random_states",
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
        self.has_single_input = self.needs_gradient == (True,)  # one tensor, which has a gradient, as in most models
        self.has_buffers = any(True for _ in module.buffers())
        self._read_samples()
        self.split: Splitting | None = None
        # Those before a forward that is run again. None: it drew no number, so there are none to restore.
        self.random_states: States | None = None
        self.close()

    def _read_samples(self) -> None:
        """Add what these tasks read of a batch to what the rank reads."""
        reads = self.iteration.reads
        if self.input is None:
            reads.inputs.add(self.m)
        if self.output is None:
            reads.targets.add(self.m)
        reads.fields.update((self.m, name) for name in self.module.reads)

    def close(self) -> None:
        """Free what the forward kept."""
        self.ran = False  # whether the forward has run and its last backward has not
        self.leaves: Values = ()  # the input's tensors that have a gradient
        # Where the backward begins: the nodes of the output's tensors that have a gradient. The tensors themselves may be freed
        # before. None: there is no graph; if `ran`, the forward kept nothing and has to be run again.
        self.edges: tuple[GradientEdge, ...] | None = None

    def forward(self) -> None:
        """Run the stage and keep its graph."""
        inputs = self._inputs()
        self._store_output(self._build(inputs), self.kept, inputs)
        self.ran = True

    def forward_to_recompute(self) -> None:
        """Run the stage without a graph. It is run again before its backward or in it, with the same random numbers."""
        generators = self.iteration.generators
        states = generators.states()
        self._without_graph()
        self.random_states = states if generators.have_advanced(since=states) else None
        self.ran = True

    def recompute(self) -> None:
        """Run a forward that kept nothing again, and keep its graph. Its output or its loss is not stored again.

        Raises KeyError if no such forward has run, or if it has been run again before.
        """
        if not self.ran or self.edges is not None:
            raise KeyError("its forward has not run, has kept its graph, or has been run again before")
        self._build_again()

    def forward_only(self) -> None:
        """Run the stage and keep nothing: there is no backward."""
        self._without_graph()
        if self.input is not None:
            self.input.release()

    def backward(self) -> None:
        """Add the weight gradients, and store the input gradient."""
        self._run_backward()
        self._finish()

    def split_backward(self) -> None:
        """Prepare for a backward in two halves."""
        self.split = Splitting()

    def backward_input(self) -> None:
        """Store the input gradient; of the graph, keep what the weight gradients need."""
        self._run_backward()
        self.leaves, self.edges = (), ()  # not None: the forward is not to be run again

    def backward_weight(self) -> None:
        """Add the weight gradients."""
        self._check_forward()
        assert self.split is not None
        self.split.add_weight_gradients()
        self._finish()

    def _inputs(self) -> Values:
        if self.input is None:
            return self.iteration.inputs(self.m)
        values = self.input.read()
        if self.iteration.keep is not None:
            self.iteration.keep(values)
        return values

    def _take_output_gradient(self) -> Values | None:
        """Return the gradient of the output, which this work then owns; None on the last stage."""
        slot = self.output_gradient
        if slot is None:
            return None
        if self.iteration.keep is not None:
            self.iteration.keep(slot.read())
        return slot.pop()

    def _build(self, inputs: Values) -> Values:
        """Run the stage. Its graph begins at its inputs, which are detached, so its backward stops there."""
        if self.has_single_input:
            inputs = self.leaves = (inputs[0].detach().requires_grad_(),)
        elif self.input is not None:
            inputs = tuple([t.detach().requires_grad_() if g else t for t, g in zip(inputs, self.needs_gradient, strict=True)])
            self.leaves = tuple([t for t in inputs if t.requires_grad])
        outputs = self._compute(inputs)
        if self.split is not None and self.split.deferred:
            raise InterpreterError(
                "a layer or the loss computes gradients in its forward (torch.autograd.grad), which a backward in two halves "
                "does not support: take a schedule without BWD_INPUT"
            )
        self.edges = tuple([_edge(t) for t in outputs if t.requires_grad])
        return outputs

    def _compute(self, inputs: Values) -> Values:
        """Run the stage. On the last stage, return the micro-batch's share of the iteration's loss as the output."""
        iteration, split = self.iteration, self.split
        set_draws((iteration.draws, self.m))
        # Most stages need no context, so none is entered for them: that saves time in every task.
        if iteration.objective.autocast is not None:
            with iteration.objective.autocasting(iteration.device), split or nullcontext():
                return self._apply(inputs)
        if split is not None:
            with split:
                return self._apply(inputs)
        return self._apply(inputs)

    def _apply(self, inputs: Values) -> Values:
        module = self.module
        outputs: Values = module(*inputs, **self.iteration.fields(self.m, module.reads)) if module.reads else module(*inputs)
        return outputs if self.output is not None else (self.iteration.loss(outputs, self.m),)

    def _store_output(self, outputs: Values, kept: Sequence[bool], inputs: Values) -> None:
        """Store the output, or record the loss.

        Args:
            kept: which tensors of the output the graph also keeps.
        """
        if self.output is None:
            self.iteration.losses[self.m] = outputs[0].detach()
            return
        # A tensor of the input that is also in the output is copied: the next stage may need it for longer.
        if len(outputs) == 1 and not kept[0] and is_alone(outputs[0], inputs):
            self.output.set((outputs[0].detach(),))
        else:
            self.output.set(in_own_memory(outputs, kept, inputs))

    def _without_graph(self) -> None:
        inputs = self._inputs()
        with torch.no_grad():
            outputs = self._compute(inputs)
            self._store_output(outputs, [False] * len(outputs), inputs)

    def _build_again(self) -> None:
        """Run the forward again, with the random numbers that it had. Buffers, such as running statistics, stay as they are.

        This waits for no other rank: the input is there, since the forward has run before.
        """
        iteration = self.iteration
        start = iteration.clock()
        # As in `_compute`, no context is entered that is not needed.
        if self.has_buffers or self.random_states is not None:
            self._build_with_same_state()
        else:
            self._build(self._inputs())
        iteration.recomputed.append((start, iteration.clock()))

    def _build_with_same_state(self) -> None:
        """Run the forward with the random numbers of its first run, and restore the buffers afterwards."""
        generators, states = self.iteration.generators, self.random_states
        with unchanged_buffers([self.module]), nullcontext() if states is None else generators.restored(states):
            self._build(self._inputs())
        self.random_states = None

    def _run_backward(self) -> None:
        """Compute the gradients, and store the input gradient."""
        self._check_forward()
        # Autograd may keep the output gradient, as an input gradient or for the weight gradients. So it is taken out of the
        # store. This is done before a forward is run again: such a backward begins when its output gradient is there.
        grads = self._take_output_gradient()
        if self.edges is None:
            self._build_again()
        if self.edges:  # empty if no output has a gradient, as on a first stage without parameters
            _backward(self.edges, (self.iteration.loss_gradient,) if grads is None else grads)
        if self.input_gradient is None:
            return
        if self.has_single_input and (gradient := self.leaves[0].grad) is not None and is_alone(gradient, grads or ()):
            self.input_gradient.set((gradient,))
        else:
            gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in self.leaves]
            self.input_gradient.set(in_own_memory(gradients, [False] * len(gradients), grads or ()))

    def _check_forward(self) -> None:
        """Raise KeyError if the forward has not run, its last backward has, or its input was freed."""
        if not self.ran:
            raise KeyError("its forward has not run, or its last backward has")
        if self.input is not None:
            self.input.read()  # raises KeyError if the input has been freed

    def _finish(self) -> None:
        self.close()
        if self.input is not None:
            self.input.release()


def _backward(edges: tuple[GradientEdge, ...], grads: Values) -> None:
    """Call torch's engine as torch.autograd.backward does, but without its Python code, which takes 15 µs.

    That code converts its arguments, which have the right form here. The engine itself compares the shapes, types and devices
    of the gradients with those of the outputs.
    """
    retain_graph, create_graph, inputs = False, False, ()  # no inputs: the gradients of all leaves are computed
    _engine_run_backward(edges, grads, retain_graph, create_graph, inputs, allow_unreachable=True, accumulate_grad=True)


def _edge(t: Tensor) -> GradientEdge:
    """Return the place of a tensor in its graph, which stays when the tensor is freed.

    get_gradient_edge takes longer than GradientEdge. It is needed for a leaf, and for a function that is written in Python on a
    torch on which the node of such a function does not keep its graph.
    """
    node = t.grad_fn
    if node is None or (not _PYTHON_NODES_KEEP_GRAPH and isinstance(node, torch._C._FunctionBase)):
        return get_gradient_edge(t)
    return GradientEdge(node, t.output_nr)
