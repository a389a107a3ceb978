"""A program that is bound to a model and a transport: one rank of a pipeline, ready to run iterations.

`Pipeline` (pipeline.py) is one that is made from a user's arguments. The trainer of interpreter/training makes its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.interpreter.pipeline.gradient import ModelGradient
from chimerac.interpreter.pipeline.history import History
from chimerac.interpreter.pipeline.ranks import check_equal
from chimerac.interpreter.pipeline.sharded import Ownership, Parameters, ShardedOptimizer
from chimerac.interpreter.pipeline.stages import local_stages
from chimerac.interpreter.pipeline.weights import Weights
from chimerac.interpreter.runtime.allocator import keep_freed_memory
from chimerac.interpreter.runtime.batch import MicroBatches
from chimerac.interpreter.runtime.buffers import average_buffers, has_buffers
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.gathered import aligned_times, measured_timeline, write_timeline
from chimerac.interpreter.runtime.measured import Figures, MeasuredTimes
from chimerac.interpreter.runtime.messages import Boundary, table_digest
from chimerac.interpreter.runtime.model import Objective, Stage
from chimerac.interpreter.runtime.parameters import holders_by_group
from chimerac.interpreter.runtime.times import IterationTimes, Times
from chimerac.interpreter.runtime.trace import write_trace
from chimerac.interpreter.transport import Transport


class StagedModel(Protocol):
    """A model that is cut into stages."""

    @property
    def name(self) -> str:
        """Return the name of the model, for messages."""

    @property
    def boundary_table(self) -> tuple[Boundary, ...]:
        """Return the tensors that each stage passes to the next one; for the last stage, those that the loss takes."""

    @property
    def objective(self) -> Objective:
        """Return the loss, and the precision in which stages compute."""

    def build(self, stage: int, seed: int) -> Stage:
        """Return a stage that this rank holds, with its initial weights."""


class BoundPipeline:
    """One rank of a pipeline: a verified program, a model and a transport. All ranks create it together.

    Args:
        seed: of the initial weights.
        evaluation: the program of evaluations; None: the compiler derives it.
        compile_stages, profile_ranges: as in `Pipeline`.

    Attributes:
        iteration: how many times `Pipeline.step` has run; loading a checkpoint sets it to the number that was saved.

    A step is one call of `run`, which `Pipeline.step` makes. The last step is measured: `times` has the start and the end of
    each instruction of this rank. `figures` has how long this rank computed and waited, and its peak memory. `measured` returns
    the figures of all ranks. `predicted` returns what the simulator predicts for a step.

    Raises ChimeraError on all ranks if two of them differ: E806 in the program, E807 in the boundary values, E810 in the copies
    of a parameter. Raises ValueError if the copies of a tied parameter differ within a rank, and for `compile_stages` with a
    program that has split backwards.
    """

    def __init__(
        self,
        program: Program,
        model: StagedModel,
        transport: Transport,
        seed: int = 0,
        *,
        evaluation: Program | None = None,
        compile_stages: bool | Mapping[str, Any] = False,
        profile_ranges: bool = False,
    ) -> None:
        self.program, self.name = program, model.name
        self.objective, self.boundary_table = model.objective, model.boundary_table
        self.transport, self._profile_ranges, header = transport, profile_ranges, program.header
        if transport.device.type == "cpu":
            keep_freed_memory()
        check_equal(transport, "program", "E806", program.digest)
        check_equal(transport, "table of boundary values", "E807", table_digest(self.boundary_table))
        transport.connect(program)
        self.stages = {s: model.build(s, seed).to(transport.device) for s in local_stages(header, transport.rank)}
        self.executor = self._new_executor(program)
        self.weights = Weights(header, self.stages, transport)
        self.gradient = ModelGradient(self.executor, holders_by_group(header), transport)
        self._history = History(self.executor)
        self._has_buffers = has_buffers(self.stages, transport)
        if compile_stages:
            _compile(program, self.stages, {} if compile_stages is True else compile_stages)
        self._evaluation_program = evaluation
        self._evaluation: Executor | None = None
        self.iteration = 0

    def _new_executor(self, program: Program) -> Executor:
        return Executor(program, self.objective, self.stages, self.boundary_table, self.transport, self._profile_ranges)

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
        """Return whether a step needs the inputs on this rank: it has the first stage."""
        return 0 in self.stages

    @property
    def reads_targets(self) -> bool:
        """Return whether a step needs the targets on this rank: it has the last stage."""
        return self.program.header.stages - 1 in self.stages

    @property
    def reads_fields(self) -> tuple[str, ...]:
        """Return the names of the fields that a step needs on this rank: its stages read them."""
        return tuple(dict.fromkeys(name for stage in self.stages.values() for name in stage.reads))

    def run(self, batch: MicroBatches, sync: bool = True) -> float:
        """Run a batch and return this rank's share of the loss; called by all ranks together.

        Args:
            sync: as in `Pipeline.step`.
        """
        return self._history.run(batch, sync)

    def evaluate_batch(self, batch: MicroBatches) -> float:
        """Return this rank's share of the loss of a batch, without gradients and with all modules in evaluation mode.

        Called by all ranks together. `average_buffers` is called first.
        """
        self.average_buffers()
        if self._evaluation is None:
            program = self._evaluation_program
            if program is None:
                # The import takes 0.2 s, and a compiled program without evaluations also runs where no compiler is installed.
                from chimerac.interpreter.pipeline.programs import evaluation_of

                program = evaluation_of(self.program)
            self.transport.connect(program)
            self._evaluation = self._new_executor(program)
        with _evaluation_mode(self.stages.values()):
            return self._evaluation.run(batch)

    @property
    def correct(self) -> int:
        """Return how many targets of the last evaluated batch this rank predicted correctly.

        It is 0 if the model does not count them, and before the first evaluation.
        """
        return 0 if self._evaluation is None else self._evaluation.iteration.total_correct()

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters, each once.

        After a step with sync their gradients are complete, on every rank that has them.
        """
        return (p for _, p in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters, each once, with their names in the full model."""
        return self.weights.named_parameters()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and persistent buffers of this rank's stages, with their names in the full model."""
        return self.weights.state_dict()

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the parameters and persistent buffers of the whole model, on the CPU of every rank.

        Called by all ranks together.
        """
        self.average_buffers()
        return self.weights.full_state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the parameters and persistent buffers of this rank's stages.

        Args:
            state: by their names in the full model; it may also have those of other stages.

        Raises KeyError for a missing name and ValueError for another shape; nothing is loaded then.
        """
        self.weights.load_state_dict(state)

    def average_buffers(self) -> None:
        """Set each floating-point buffer that differs between copies of its stage to their mean; called by all ranks together.

        Such buffers are, for instance, the running statistics of batch normalization. `evaluate_batch`, `full_state_dict` and
        `save_checkpoint` call this.
        """
        if self._has_buffers:
            average_buffers(self.stages, self.transport)

    def check_copies(self) -> None:
        """Raise ChimeraError E810 on all ranks if copies of a parameter differ in any bit; called by all ranks together."""
        self.executor.check_copies()

    def grad_norm(self) -> float:
        """Return the norm of the gradient of the whole model. Each parameter counts once. Called by all ranks together.

        Raises RuntimeError after a step without sync, when each rank has the gradients of its own tasks only.
        """
        return self.gradient.norm()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the gradient of the whole model to the norm max_norm if its norm is larger; called by all ranks together.

        Return its norm before the scaling. torch.nn.utils.clip_grad_norm_ would compute the norm from one rank's parameters
        only. Raises RuntimeError as `grad_norm`.
        """
        norm = self.gradient.norm()
        self.gradient.clip(norm, max_norm)
        return norm

    def check_finite(self) -> None:
        """Raise ChimeraError E812 on all ranks if the last loss or a gradient is not finite; called by all ranks together.

        Call it after a step, before the weights change. The error names the first cause, if it can be found: rank, instruction,
        micro-batch and, for a gradient, the parameter. To find it, the batches of the current weight update are run again.
        """
        is_finite = math.isfinite(self._history.loss) and self.gradient.is_finite()
        nonfinite_ranks = self._sum_of_ranks(0.0 if is_finite else 1.0)
        if nonfinite_ranks:
            raise self.nonfinite_error(f"step {self.iteration} has a loss or a gradient that is not finite")

    def nonfinite_error(self, message: str, help: str = "") -> ChimeraError:
        """Find the first cause, and return the error E812 that names it; called by all ranks together, and the same on all.

        Args:
            message: what is not finite. The error adds the cause, or a note that none was found.
            help: of the error.
        """
        cause = self._history.first_cause({id(p): name for name, p in self.named_parameters()})
        if cause is None:
            reason = "either the earlier gradients were not finite, or a layer is not deterministic"
            note = f"run again without the gradients of earlier steps, every value is finite: {reason}"
            return refuse("E812", message, notes=(note,), help=help)
        return refuse("E812", f"{message}; first on {cause}", notes=(cause.note,), help=help)

    def sharded_optimizer(
        self, optimizer_class: Callable[..., Optimizer], parameters: Parameters | None = None, **defaults: Any
    ) -> ShardedOptimizer:
        """Return an optimizer whose state is sharded over the ranks that hold each parameter; called by all ranks together.

            optimizer = pipe.sharded_optimizer(torch.optim.AdamW, lr=1e-3)

        Each rank has the state of the parameters that it owns. The optimizer's `step` copies the updated values to all ranks
        that hold them. So the values have the same bits as with an optimizer that is not sharded, unless the class updates
        parameters together, as torch's LBFGS does.

        Args:
            parameters: of this rank, or groups of them with their own options, as for any optimizer of torch; by default all.
            defaults: further arguments of the class.
        """
        ownership = Ownership(self.executor.groups, holders_by_group(self.program.header), self.transport)
        chosen = self.parameters() if parameters is None else parameters
        return ShardedOptimizer(optimizer_class, chosen, ownership, self.gradient.check_summed, defaults)

    @property
    def times(self) -> Times:
        """Return when this rank's instructions ran in the last step."""
        return self.executor.times

    @property
    def figures(self) -> Figures:
        """Return the computation and the waits of this rank in the last step, and its peak memory so far."""
        return Figures.of(self.times, self.transport.device)

    def measured(self) -> MeasuredTimes:
        """Return the figures of all ranks for the last step; called by all ranks together.

        They are the time until the last task ended, in seconds, and for each rank the share of this time in which it was idle,
        the time of its recomputation, its waits for communication, and its peak memory so far.
        """
        row = self.figures.row()
        rows = torch.zeros(self.transport.world, len(row), dtype=torch.float64)
        rows[self.rank] = torch.tensor(row, dtype=torch.float64)
        self.transport.all_reduce(rows)
        return MeasuredTimes.of(rows.tolist())

    def predicted(self) -> IterationTimes:
        """Return the predicted duration of a step, in units of the program's costs, and the idle share of each rank."""
        from chimerac.interpreter.pipeline.programs import predicted_times  # with the compiler, whose import takes 0.2 s

        return predicted_times(self.program)

    def predicted_timeline(self) -> Timeline:
        """Return the predicted times of the instructions of all ranks, in units of the program's costs.

        It has the form of `timeline`, so both can be drawn or written in the same way.
        """
        from chimerac.interpreter.pipeline.programs import predicted_timeline  # with the compiler, 0.2 s

        return predicted_timeline(self.program)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write the times of the last step on all ranks to a file that Perfetto opens; called by all ranks together.

        Rank 0 writes the file. Raises ValueError before the first step, and ChimeraError E811 on all ranks if the file cannot
        be written.
        """
        self._check_has_run("trace")
        write_trace(self.program, self.times, self.transport, path)

    def timeline(self) -> Timeline:
        """Return when the instructions of all ranks ran in the last step; called by all ranks together, the same on all.

        Times are in milliseconds after the earliest instruction of all ranks began. `chimerac.compiler.beside` compares them
        with the simulator's. Raises ValueError before the first step.
        """
        self._check_has_run("measure")
        return measured_timeline(self.program, aligned_times(self.times, self.transport))

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Write `timeline` to a file for `chimerac PROGRAM --measured PATH`; called by all ranks together.

        Rank 0 writes the file. Raises ValueError before the first step, and ChimeraError E811 on all ranks if the file cannot
        be written.
        """
        self._check_has_run("measure")
        write_timeline(self.program, self.times, self.transport, path)

    def _check_has_run(self, verb: str) -> None:
        if not self._history.has_run:
            raise ValueError(f"there is nothing to {verb} before the first step")

    def _sum_of_ranks(self, value: float) -> float:
        """Return the sum of the values of all ranks; called by all ranks together."""
        total = torch.tensor([value], dtype=torch.float64)
        self.transport.all_reduce(total)
        return float(total[0])


def _compile(program: Program, stages: Mapping[int, Stage], options: Mapping[str, Any]) -> None:
    """Compile stages with torch.compile. Raises ValueError for a program with split backwards."""
    if bool((program.table.op == Op.BWD_INPUT).any()):
        raise ValueError(
            f"{program.header.schedule} has split backwards, for which stages cannot be compiled: every function that "
            "defers a weight gradient would be compiled apart; leave out compile_stages or take a schedule without I and W"
        )
    for stage in stages.values():
        stage.compile(**options)


@contextmanager
def _evaluation_mode(stages: Iterable[Stage]) -> Iterator[None]:
    """Put all modules of the stages into evaluation mode inside the context. Afterwards each has its previous mode."""
    training = [m for stage in stages for m in stage.modules() if m.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
