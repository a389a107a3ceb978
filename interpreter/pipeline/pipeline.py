"""One rank of a pipeline, in the user's own training loop: `step` runs one iteration and leaves the gradients.

    pipe = Pipeline(layers, "chimera", {"N": 8}, loss=F.cross_entropy, inputs=images[:2])
    optimizer = torch.optim.AdamW(pipe.parameters())
    for inputs, targets in batches:
        loss = pipe.step(inputs, targets)
        optimizer.step()
        optimizer.zero_grad()

Every rank runs the same script. docs/runtime.md is the guide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from chimerac.interpreter.pipeline.arguments import (
    Divisor,
    Tensors,
    check_inputs,
    check_own_stages_arguments,
    checked_autocast,
    example_of,
    read_fields,
    refuse_arguments_of_model,
    tensors_of,
)
from chimerac.interpreter.pipeline.bound import BoundPipeline, StagedModel
from chimerac.interpreter.pipeline.layers import Layers, model_of, objective_of
from chimerac.interpreter.pipeline.ranks import Connection, join_ranks
from chimerac.interpreter.pipeline.stages import OwnStage, Ties
from chimerac.interpreter.runtime.batch import TensorBatch
from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.transport import Transport

if TYPE_CHECKING:
    from chimerac.chimera_ir.program import Program
    from chimerac.interpreter.pipeline.programs import Recompute, Schedule


class Pipeline(BoundPipeline):
    """One rank of a pipeline. All ranks create it together. Only `device`, `transport` and own stages may differ between them.

    Args:
        layers: the whole model as a list of modules, or of functions that build them; each may be (name, layer). A rank calls
            the functions of other ranks' layers only to measure the model, with fake tensors, which have no memory. The tensors
            that a layer returns are the arguments of the next one. Modules may share parameters: their gradients are summed
            over all stages that have them. layers may also be a Model, as interpreter/adapters makes one: it has its own loss
            and example, so loss, inputs, targets, fields and model are not given. Or layers are the stages of this rank alone:
            see below.
        schedule: a name in the library, a path, a text with a line break, or a compiled program.
        parameters: of the schedule, by name; if D is not given, it follows from the number of ranks.
        loss: called with the output of the last layer and the targets of one micro-batch; it returns one loss, or a tuple of
            several.
        inputs: those of one micro-batch; all micro-batches have their shapes and dtypes.
        targets: of one micro-batch; used only to measure what the loss keeps in memory and how much it computes.
        fields: of one micro-batch, by name: tensors that layers read directly from the batch, such as an attention mask. A
            layer reads those that are parameters of its `forward`.
        model: the module that contains the layers and gives them their names.
        width: the number of data-parallel replicas.
        split: how many layers each stage has; by default the program's own partition if it has one, otherwise stages of about
            equal computation.
        recompute: the stages that keep only their inputs and run their forwards again before their backwards: 'all', 'none', a
            list such as '0,2..5', or numbers; by default as the schedule says.
        tied: for own stages only, the parameters that stages share: see below.
        autocast: with torch.bfloat16, layers compute under torch.autocast; weights, gradients and the optimizer keep their
            dtypes.
        compile_stages: compile each stage with torch.compile: True, or its options; not for schedules that split backwards.
        device: of the stages.
        timeout_s: seconds that a rank waits for another one before it raises PeerLostError. A pipeline on the default process
            group that an earlier one has created has the timeout of that one.
        profile_ranges: make each instruction a range for torch.profiler, named by its text.
        process_group: the ranks of this pipeline, which have the same numbers as in the group; by default all ranks of the
            default process group, which is created from torchrun's environment if there is none.
        transport: carries the messages between the ranks; if it is given, `process_group`, `device` and `timeout_s` are unused.

    Own stages: layers may also be the stages of this rank alone, by number: each is a module or (prefix, module). `held_stages`
    (stages.py) returns their numbers. With them `model`, `split` and `targets` are not given. `tied` names each set of shared
    parameters as you like, and gives the path of the parameter in each of its stages, by stage. All ranks give all sets, and
    all fields.

    Raises ChimeraError for a schedule that is not found or does not compile, for arguments that a compiled program fixes, if
    the schedule does not fit the model, if it needs another number of ranks or another machine, and if the ranks have different
    programs, boundary values or copies of parameters. Raises PeerLostError if the ranks cannot connect, and TypeError and
    ValueError for other wrong arguments.
    """

    def __init__(
        self,
        layers: Layers | Model | Mapping[int, OwnStage],
        schedule: Schedule,
        parameters: Mapping[str, int] | None = None,
        *,
        loss: Any = None,
        inputs: Tensors = (),
        targets: Tensors | None = None,
        fields: Mapping[str, Tensor] | None = None,
        model: nn.Module | None = None,
        width: int = 1,
        split: Sequence[int] | None = None,
        recompute: Recompute = None,
        tied: Ties | None = None,
        autocast: torch.dtype | None = None,
        compile_stages: bool | Mapping[str, Any] = False,
        device: torch.device | str = "cpu",
        timeout_s: float = 300.0,
        profile_ranges: bool = False,
        process_group: ProcessGroup | None = None,
        transport: Transport | None = None,
    ) -> None:
        from chimerac.interpreter.pipeline.cut import cut_model, with_own_stages  # with the compiler, whose import takes 0.2 s

        dtype, sizes = checked_autocast(autocast), parameters or {}
        if isinstance(layers, Model):
            refuse_arguments_of_model(loss, inputs, targets, fields, model)
            self._example = layers.example(1)  # of one sample, except for models of adapters, which have one fixed example
        else:
            self._example = example_of(inputs, targets, fields)
        if isinstance(layers, Mapping):
            check_own_stages_arguments(model=model, split=split, targets=targets)
        elif tied is not None:
            raise ValueError("tied is only for own stages: leave it out; shared parameters of layers are found")

        self._connection: Connection | None = None
        if transport is None:
            self._connection = join_ranks(torch.device(device), timeout_s, process_group)
            transport = self._connection.transport
        program: Program
        staged: StagedModel
        try:
            if isinstance(layers, Mapping):
                objective = objective_of(loss, dtype)
                program, staged = with_own_stages(
                    layers, objective, self._example, schedule, sizes, width, tied or {}, transport, recompute
                )
            else:
                full_model = layers
                if not isinstance(full_model, Model):
                    full_model = model_of(full_model, loss, self._example, model, type(model or layers).__name__)
                full_model = replace(full_model, autocast=dtype or full_model.autocast)
                samples = self._example.samples
                program, staged = cut_model(full_model, samples, schedule, sizes, width, split, transport, recompute)
            super().__init__(program, staged, transport, compile_stages=compile_stages, profile_ranges=profile_ranges)
        except BaseException:
            if self._connection is not None:
                self._connection.abandon()
            raise

    @property
    def reads_inputs(self) -> bool:
        """Return whether `step` needs the inputs on this rank: it has the first stage, and the model has inputs."""
        return super().reads_inputs and bool(self._example.inputs)

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

        Args:
            inputs, targets, fields: of this rank's replica, all micro-batches one after the other along the first dimension; a
                rank that does not read them may leave them out.
            sync: False leaves the gradients of the ranks unsummed. A later step with sync sums those of all these steps, so a
                weight update over several batches all-reduces each gradient once.

        The loss is the sum of the losses of all micro-batches of all replicas, divided by `divisor`; by default by the number
        of these micro-batches, which gives the mean. If there are several losses, `divisor` may have one number for each. After
        a step with sync, every parameter has its complete gradient, added to the one that it had.

        Raises RankError, which names the instruction that failed, or the epilogue; PeerLostError if another rank is lost while
        the losses are summed; TypeError and ValueError for arguments that do not fit; RuntimeError inside torch.autocast.
        """
        own_loss = self.run(self._batch(inputs, targets, divisor, fields), sync)
        self.iteration += 1
        return self._sum_of_ranks(own_loss)

    def evaluate(
        self,
        inputs: Tensors | None = None,
        targets: Tensors | None = None,
        *,
        divisor: Divisor | None = None,
        **fields: Tensor,
    ) -> float:
        """Return the loss of a batch, as `step` does, without gradients and with all modules in evaluation mode.

        Called by all ranks together.
        """
        return self._sum_of_ranks(self.evaluate_batch(self._batch(inputs, targets, divisor, fields)))

    def close(self) -> None:
        """Close the connections to the other ranks, but not a transport that was given; called by all ranks together.

        The last pipeline that uses the default process group destroys it, if a pipeline has created it.
        """
        if self._connection is not None:
            self._connection.leave()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:  # after an error the other ranks may never call `close`
            self.close()

    def _batch(
        self, inputs: Tensors | None, targets: Tensors | None, divisor: Divisor | None, fields: Mapping[str, Tensor]
    ) -> TensorBatch:
        if torch.is_autocast_enabled(self.transport.device.type):
            raise RuntimeError("call this outside torch.autocast, and create the pipeline with autocast=torch.bfloat16")
        header = self.program.header
        micro_batches, own_name = header.micro_batches, self.transport.named([self.rank])
        if inputs is None and self.reads_inputs:
            raise ValueError(f"{own_name} has the first stage: give it the inputs of its replica")
        if targets is None and self.reads_targets:
            raise ValueError(f"{own_name} has the last stage: give it the targets of its replica")
        input_tensors = None if inputs is None else tensors_of(inputs)
        if input_tensors is not None:
            check_inputs(input_tensors, self._example.inputs, micro_batches)
        target_tensors = None if targets is None else tensors_of(targets)
        if uneven := next((len(t) for t in target_tensors or () if len(t) % micro_batches), None):
            raise ValueError(f"{uneven} targets cannot be cut into {micro_batches} micro-batches")
        own_fields = read_fields(fields, self._example.fields, self.reads_fields, micro_batches, own_name)
        size = self._example.samples
        # Micro-batches are numbered over all steps and replicas. This batch begins with the micro-batch `first`.
        first = (self.iteration * header.width + self.replica) * micro_batches
        samples = [tuple(range(n * size, (n + 1) * size)) for n in range(first, first + micro_batches)]
        draws = [Draws(seed=0, iteration=self.iteration, samples=numbers) for numbers in samples]
        divisors = divisor if isinstance(divisor, Sequence) else (micro_batches * header.width if divisor is None else divisor,)
        if 0 in divisors:
            raise ValueError(f"divisor is {divisor}: the loss is divided by it; is there no valid target in this batch?")
        return TensorBatch(input_tensors, target_tensors, own_fields, micro_batches, divisors, draws)
