"""One rank of a pipeline, in the user's own training loop: `step` runs one iteration and leaves the gradients.

    pipe = Pipeline(layers, "chimera", {"N": 8}, loss=F.cross_entropy, inputs=tokens[:2])
    optimizer = torch.optim.AdamW(pipe.parameters())
    for inputs, targets in batches:
        loss = pipe.step(inputs, targets)
        optimizer.step()
        optimizer.zero_grad()

Every rank runs the same script. docs/runtime.md is the guide.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program, Tied
from chimerac.interpreter.pipeline.arguments import (
    Divisor,
    Tensors,
    check_inputs,
    checked_autocast,
    fields_of,
    partition_of,
    read_fields,
    tensors_of,
)
from chimerac.interpreter.pipeline.history import History
from chimerac.interpreter.pipeline.layers import Layers, model_of
from chimerac.interpreter.pipeline.ranks import check_equal, joined
from chimerac.interpreter.pipeline.sharded import Ownership, Parameters, ShardedOptimizer
from chimerac.interpreter.pipeline.weights import Weights
from chimerac.interpreter.pipeline.world import check_world
from chimerac.interpreter.runtime.batch import MicroBatches, TensorBatch
from chimerac.interpreter.runtime.buffers import average_buffers, has_buffers
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.measured import Figures, MeasuredTimes
from chimerac.interpreter.runtime.messages import table_digest
from chimerac.interpreter.runtime.model import Example
from chimerac.interpreter.runtime.parameters import holders_by_group
from chimerac.interpreter.runtime.partitioned import PartitionedModel, missing_ties, partitioned
from chimerac.interpreter.runtime.times import IterationTimes, Times
from chimerac.interpreter.runtime.trace import write_trace
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.gloo import leave

Schedule = str | os.PathLike[str] | Program


class Pipeline:
    """One rank of a pipeline. All ranks create it together, with the same arguments.

    layers: the whole model as a list of modules, or of functions that build them, of which each rank calls its own. The
    tensors that a layer returns are the arguments of the next one. Layers may share parameters: their gradients are summed over
    all stages that have them. A layer may be (name, layer); `model` is the module that
    contains the layers and gives them their names. schedule: a name of the library, a path, a text, or a compiled program;
    parameters: its parameters by name, where D follows from the number of ranks. width: data-parallel replicas. loss: called
    with the output of the last layer and the targets of one micro-batch; returns one loss, or a tuple of several. inputs: of
    one micro-batch, with the shapes and dtypes of all of them; targets: the same, only to know what the loss keeps in memory.
    fields: the same for tensors that layers get directly from the batch, such as an attention mask, by name; a layer gets
    those that its `forward` names as parameters. split: how many layers each stage
    has; by default stages of about equal computation. autocast: torch.bfloat16 computes under torch.autocast; weights,
    gradients and the optimizer keep the types of the parameters. compile_stages: compile each stage with torch.compile, with
    these options of it; only for schedules with full backwards.

    Ranks talk over the default process group if there is one, otherwise over one that is created from torchrun's environment.
    device: where the stages are. timeout_s: how long a rank waits for another one before it raises PeerLostError.
    profile_ranges: whether each instruction is a range for torch.profiler, named by its text.

    Raises ChimeraError for a schedule that does not compile, for a number of ranks that does not fit, and where ranks differ;
    TypeError and ValueError for other wrong arguments.
    """

    def __init__(
        self,
        layers: Layers,
        schedule: Schedule,
        parameters: Mapping[str, int] | None = None,
        *,
        loss: Any,
        inputs: Tensors,
        targets: Tensors | None = None,
        fields: Mapping[str, Tensor] | None = None,
        model: nn.Module | None = None,
        width: int = 1,
        split: Sequence[int] | None = None,
        autocast: torch.dtype | None = None,
        compile_stages: bool | Mapping[str, Any] = False,
        device: torch.device | str = "cpu",
        timeout_s: float = 300.0,
        profile_ranges: bool = False,
        transport: Transport | None = None,
    ) -> None:
        # Where a compiled program is run by `of`, the compiler may not be installed. Its import takes 0.2 s.
        from chimerac.interpreter.pipeline.programs import program_for

        self._joined, transport = (False, transport) if transport else joined(torch.device(device), timeout_s)

        def compiled(tied: Sequence[Tied] = ()) -> Program:
            found = program_for(schedule, parameters or {}, width, transport.world, tied)
            check_world(found, transport.world)
            if split is None:
                return found
            return replace(found, partition=partition_of(name, split, len(whole.layer_names), found))

        example = Example(tensors_of(inputs), None if targets is None else tensors_of(targets), fields_of(fields))
        name = type(model or layers).__name__
        whole = replace(model_of(layers, loss, example, model, name), autocast=checked_autocast(autocast))
        program = compiled()
        description = describe(whole, len(example.inputs[0]), transport.device if autocast else None)
        if tied := missing_ties(program, description):
            program = compiled(tied)
        parts = partitioned(program, whole, description, ties_by_stage=True)
        self._profile_ranges = profile_ranges
        self._start(program, parts, transport, seed=0, example=example, compile_stages=compile_stages)

    @classmethod
    def of(
        cls,
        program: Program,
        model: PartitionedModel,
        transport: Transport,
        seed: int,
        evaluation: Program | None = None,
        compile_stages: bool = False,
        profile_ranges: bool = False,
    ) -> Self:
        """Return the pipeline of a verified program and a model whose layers are built with the seed.

        evaluation: the program of evaluations; by default the compiler derives it.
        """
        pipeline = cls.__new__(cls)
        pipeline._joined, pipeline._profile_ranges = False, profile_ranges
        pipeline._start(program, model, transport, seed, evaluation=evaluation, compile_stages=compile_stages)
        return pipeline

    def _start(
        self,
        program: Program,
        model: PartitionedModel,
        transport: Transport,
        seed: int,
        example: Example | None = None,
        evaluation: Program | None = None,
        compile_stages: bool | Mapping[str, Any] = False,
    ) -> None:
        self.program, self.model, self.transport, self.partition = program, model.model, transport, model.partition
        self.table, header = model.table, program.header
        check_equal(transport, "program", "E806", program.digest)
        check_equal(transport, "table of boundary values", "E807", table_digest(self.table))
        transport.connect(program)
        held = sorted(s for s in range(header.stages) if transport.rank in header.holders([s]))
        self.stages = {s: model.build(s, seed).to(transport.device) for s in held}
        self.executor = self._executor(program)
        self.weights = Weights(header, self.stages, transport)
        self._history, self._share = History(self.executor), 0.0
        self._has_buffers = has_buffers(self.stages, transport)
        if compile_stages:
            self._compile({} if compile_stages is True else compile_stages)
        self._evaluation_program, self._example = evaluation, example
        self._evaluation: Executor | None = None
        self.iteration = 0
        self._has_run = False

    def _executor(self, program: Program) -> Executor:
        return Executor(program, self.model, self.stages, self.table, self.transport, self._profile_ranges)

    @property
    def rank(self) -> int:
        """Return the number of this rank."""
        return self.transport.rank

    @property
    def replica(self) -> int:
        """Return the number of the data-parallel replica to which this rank belongs, from 0 to width - 1."""
        return self.rank // self.program.header.ranks

    @property
    def reads_inputs(self) -> bool:
        """Return whether `step` needs the inputs on this rank: it has the first stage."""
        return 0 in self.stages

    @property
    def reads_targets(self) -> bool:
        """Return whether `step` needs the targets on this rank: it has the last stage."""
        return self.program.header.stages - 1 in self.stages

    @property
    def reads_fields(self) -> tuple[str, ...]:
        """Return the names of the fields that `step` needs on this rank: its stages read them."""
        return tuple(dict.fromkeys(name for stage in self.stages.values() for name in stage.reads))

    def step(
        self,
        inputs: Tensors | None = None,
        targets: Tensors | None = None,
        *,
        divisor: Divisor | None = None,
        sync: bool = True,
        **fields: Tensor,
    ) -> float:
        """Run one iteration and return its loss, the same on all ranks; called by all ranks together.

        inputs, targets, fields: of this rank's replica, all micro-batches one after the other along the first dimension; a
        rank that does not read them may leave them out. The loss is the sum of the losses of all micro-batches of all
        replicas, divided by `divisor`; by default by their number, which gives the mean. If the loss returns several, the
        divisors may be several too, one for each. Afterwards every parameter has its complete gradient, added to the one that
        it had.

        sync: False leaves the gradients of the ranks unsummed. A later step with sync sums those of all these steps, so a
        weight update over several batches needs one sum. Raises RankError, which names the instruction that failed, and
        ValueError for tensors that do not fit.
        """
        share = self.run(self._batch(inputs, targets, divisor, fields), sync)
        self.iteration += 1
        return self._total(share)

    def run(self, batch: MicroBatches, sync: bool = True) -> float:
        """Run one iteration on micro-batches of any source, and return this rank's share of the loss."""
        self._share = self._history.run(batch, sync)
        self._has_run = True
        return self._share

    def evaluate(
        self,
        inputs: Tensors | None = None,
        targets: Tensors | None = None,
        *,
        divisor: Divisor | None = None,
        **fields: Tensor,
    ) -> float:
        """Return the loss of a batch, as `step` does, without gradients and with all modules in evaluation mode."""
        return self._total(self.evaluate_batch(self._batch(inputs, targets, divisor, fields)))

    def evaluate_batch(self, batch: MicroBatches) -> float:
        """Return this rank's share of the loss of micro-batches of any source, as `evaluate` computes it."""
        self.average_buffers()
        if self._evaluation is None:
            program = self._evaluation_program
            if program is None:
                from chimerac.interpreter.pipeline.programs import evaluation_of  # 0.2 s: see __init__

                program = evaluation_of(self.program)
            self.transport.connect(program)
            self._evaluation = self._executor(program)
        with self._in_evaluation_mode():
            return self._evaluation.run(batch)

    @property
    def correct(self) -> int:
        """Return how many targets of the last evaluation were predicted correctly on this rank; 0 if the model counts none."""
        return 0 if self._evaluation is None else self._evaluation.iteration.total_correct()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters, each once. Their gradients are complete after a step, on every rank that has them."""
        return (p for _, p in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters, each once, with their names in the full model."""
        return self.weights.named_parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of this rank's stages, with their names in the full model."""
        return self.weights.state_dict()

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and buffers of the whole model, on the CPU of every rank; called by all ranks together."""
        self.average_buffers()
        return self.weights.full_state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the parameters and buffers of this rank's stages. state: may also have those of other stages.

        Raises KeyError for a missing name and ValueError for another shape; nothing is loaded then.
        """
        self.weights.load_state_dict(state)

    def average_buffers(self) -> None:
        """Set buffers that differ between copies of a stage, such as running statistics, to their mean; called by all ranks
        together. `evaluate`, `full_state_dict` and checkpoints do this.
        """
        if self._has_buffers:
            average_buffers(self.stages, self.transport)

    def grad_norm(self) -> float:
        """Return the norm of the gradient of the whole model, in which each parameter counts once; called by all together.

        Raises RuntimeError after a step without sync: the ranks then have the gradients of their own tasks only.
        """
        self.check_summed()
        total = torch.tensor([self.squared_norm()], dtype=torch.float64)
        self.transport.all_reduce(total)
        return math.sqrt(float(total[0]))

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the gradients to this norm if theirs is larger, and return theirs; called by all ranks together.

        torch.nn.utils.clip_grad_norm_ knows the parameters of one rank only.
        """
        norm = self.grad_norm()
        self.scale_gradients(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def scale_gradients(self, factor: float) -> None:
        """Multiply this rank's gradients."""
        if factor != 1.0:
            torch._foreach_mul_([p.grad for p in self.parameters() if p.grad is not None], factor)

    def squared_norm(self) -> float:
        """Return this rank's share of the squared norm of the gradient of the whole model."""
        return sum(float(p.grad.double().square().sum()) for p in self.counted_parameters() if p.grad is not None)

    def counted_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that this rank counts where each counts once: the first rank that holds a group counts it."""
        holders = holders_by_group(self.program.header)
        return [p for name, ps in self.executor.groups.items() if holders[name][0] == self.rank for p in ps]

    def check_finite(self) -> None:
        """Raise ChimeraError E812 on all ranks if the last loss or a gradient is not finite; called by all ranks together.

        Call it after a step, before the weights change. The error names the first cause: rank, instruction, micro-batch and,
        for a gradient, the parameter. To find it, the batches since gradients were last complete are run again.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        is_finite = math.isfinite(self._share) and all(bool(torch.isfinite(g).all()) for g in gradients)
        if self._total(0.0 if is_finite else 1.0):
            raise self.nonfinite(f"step {self.iteration} has a loss or a gradient that is not finite")

    def nonfinite(self, message: str, help: str = "") -> ChimeraError:
        """Return the error E812 with the first cause, the same on all ranks; called by all ranks together."""
        cause = self._history.first_cause({id(p): name for name, p in self.named_parameters()})
        if cause is None:
            note = "run again from gradients of zero, every value is finite: gradients were there before, or a layer is random"
            return refuse("E812", message, notes=(note,), help=help)
        return refuse("E812", f"{message}; first {cause}", notes=(cause.note,), help=help)

    def sharded_optimizer(
        self, optimizer_class: Callable[..., Optimizer], parameters: Parameters | None = None, **defaults: Any
    ) -> ShardedOptimizer:
        """Return an optimizer whose state is shared out over the holders of each parameter; called by all ranks together.

            optimizer = pipe.sharded_optimizer(torch.optim.AdamW, lr=1e-3)

        Every rank then has the state of the parameters that it owns. `step` gives the updated values to all holders, bit for
        bit as a whole optimizer would. parameters: of this rank, or groups of them with their own options, as for any
        optimizer of torch; by default all. defaults: the class's own arguments.
        """
        ownership = Ownership(self.executor.groups, holders_by_group(self.program.header), self.transport)
        chosen = self.parameters() if parameters is None else parameters
        return ShardedOptimizer(optimizer_class, chosen, ownership, self.check_summed, defaults)

    def check_summed(self) -> None:
        """Raise RuntimeError if the last step was without sync."""
        if not all(gradients.are_complete for gradients in self.executor.gradients.values()):
            raise RuntimeError("the last step was without sync: run one with sync before the gradients are used")

    @property
    def times(self) -> Times:
        """Return when this rank's instructions ran in the last step."""
        return self.executor.times

    @property
    def figures(self) -> Figures:
        """Return what this rank measured of the last step."""
        return Figures.of(self.times, self.transport.device)

    def measured(self) -> MeasuredTimes:
        """Return the duration of the last step, in seconds, and of each rank its idle share, the time that it waited for
        communication, and its peak memory; called by all ranks together.
        """
        row = self.figures.row()
        rows = torch.zeros(self.transport.world, len(row), dtype=torch.float64)
        rows[self.rank] = torch.tensor(row, dtype=torch.float64)
        self.transport.all_reduce(rows)
        return MeasuredTimes.of(rows.tolist())

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the times of the last step on all ranks to a file that Perfetto opens; called by all ranks together.

        Rank 0 writes the file. Raises ValueError before the first step, and ChimeraError E811 on all ranks if the file cannot
        be written.
        """
        if not self._has_run:
            raise ValueError("there is nothing to trace before the first step")
        write_trace(self.program, self.times, self.transport, path)

    def predicted(self) -> IterationTimes:
        """Return the duration of a step by the simulator, in units of the program's costs, and the idle share of each rank."""
        from chimerac.interpreter.pipeline.programs import predicted_times  # 0.2 s

        return predicted_times(self.program)

    def check_copies(self) -> None:
        """Raise ChimeraError E810 on all ranks if copies of a parameter differ in any bit; called by all ranks together."""
        self.executor.check_copies()

    def close(self) -> None:
        """Leave the process group if this pipeline has created it; called by all ranks together."""
        if self._joined:
            leave()
            self._joined = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:  # after an error the other ranks may never come to the barrier
            self.close()

    def _batch(
        self, inputs: Tensors | None, targets: Tensors | None, divisor: Divisor | None, fields: Mapping[str, Tensor]
    ) -> TensorBatch:
        if torch.is_autocast_enabled(self.transport.device.type):
            raise RuntimeError("leave torch.autocast before a step, and create the pipeline with autocast=torch.bfloat16")
        header = self.program.header
        count = header.micro_batches
        if inputs is None and self.reads_inputs:
            raise ValueError(f"rank {self.rank} has the first stage: give it the inputs of its replica")
        if targets is None and self.reads_targets:
            raise ValueError(f"rank {self.rank} has the last stage: give it the targets of its replica")
        given = None if inputs is None else tensors_of(inputs)
        goals = None if targets is None else tensors_of(targets)
        if self._example is not None:
            if given is not None:
                check_inputs(given, self._example.inputs, count)
            fields = read_fields(fields, self._example.fields, self.reads_fields, count, self.rank)
        if odd := next((len(t) for t in goals or () if len(t) % count), None):
            raise ValueError(f"{odd} targets cannot be cut into {count} micro-batches")
        size = len(given[0]) // count if given else 1
        first = (self.iteration * header.width + self.replica) * count
        draws = [Draws(0, self.iteration, tuple(range((first + m) * size, (first + m + 1) * size))) for m in range(count)]
        divisors = divisor if isinstance(divisor, Sequence) else (divisor or count * header.width,)
        return TensorBatch(given, goals, fields, count, divisors, draws)

    def _total(self, share: float) -> float:
        total = torch.tensor([share], dtype=torch.float64)
        self.transport.all_reduce(total)
        return float(total[0])

    def _compile(self, options: Mapping[str, Any]) -> None:
        """Compile this rank's stages. Raises ValueError for a program with split backwards."""
        if bool((self.program.table.op == Op.BWD_INPUT).any()):
            raise ValueError(
                f"{self.program.header.schedule} has split backwards, for which stages cannot be compiled: every function that "
                "defers a weight gradient would be compiled apart; leave out compile_stages or take a schedule without I and W"
            )
        for stage in self.stages.values():
            stage.compile(**options)

    @contextmanager
    def _in_evaluation_mode(self) -> Iterator[None]:
        training = [m for stage in self.stages.values() for m in stage.modules() if m.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True
