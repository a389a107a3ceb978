"""A model with its description and its partition: all that a rank needs to build its stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import Partition, partition_for
from chimerac.chimera_ir.program import Header, Program
from chimerac.interpreter.runtime.messages import Specs, boundary_table
from chimerac.interpreter.runtime.model import Model, Stage, build_stage


@dataclass(frozen=True)
class PartitionedModel:
    """A model, and which of its layers make which stage."""

    model: Model
    description: ModelDescription
    partition: Partition

    @property
    def table(self) -> tuple[Specs, ...]:
        """Return the tensors that each stage passes to the next."""
        return boundary_table(self.description, self.partition)

    def build(self, stage: int, seed: int) -> Stage:
        """Build a stage with its initial weights."""
        return build_stage(self.model, self.partition.layers[stage], seed)


def partitioned(program: Program, model: Model, description: ModelDescription, ties_by_stage: bool = False) -> PartitionedModel:
    """Return the model with the program's partition, or with the balanced one where the program has none.

    ties_by_stage: a set of tied parameters has the name of the program's set on the same stages. Otherwise both name it alike.

    Raises ChimeraError: E705 more stages than layers, E706 a partition of another model, E805 other ties.
    """
    partition = partition_for(program.partition, description, program.header.stages)
    if ties_by_stage:
        model, description = _renamed_ties(program.header, model, description, partition)
    _check_ties(program.header, description, partition)
    return PartitionedModel(model, description, partition)


def _renamed_ties(
    header: Header, model: Model, description: ModelDescription, partition: Partition
) -> tuple[Model, ModelDescription]:
    """Return both with the program's names for the sets of tied parameters that are on the same stages as one of its sets."""
    free = {tied.name: tuple(sorted(tied.stages)) for tied in header.tied}
    names = {}
    for tied in description.tied:
        stages = tuple(sorted(set(map(partition.stage_of, tied.layers))))
        name = next((name for name, its in free.items() if its == stages), None)
        if name is not None:
            names[tied.name] = name
            del free[name]
    ties = {k: {names.get(name, name): path for name, path in paths.items()} for k, paths in model.ties.items()}
    tied_layers = tuple(replace(tied, name=names.get(tied.name, tied.name)) for tied in description.tied)
    return replace(model, ties=ties), replace(description, tied=tied_layers)


def _check_ties(header: Header, description: ModelDescription, partition: Partition) -> None:
    """Raise ChimeraError E805 where the program does not tie exactly the parameters that stages of the model share."""
    in_program = {tied.name: set(tied.stages) for tied in header.tied}
    in_model = {tied.name: set(map(partition.stage_of, tied.layers)) for tied in description.tied}
    across_stages = {name for name, stages in in_model.items() if len(stages) > 1}
    for name in sorted(in_program.keys() | across_stages):
        program, model = in_program.get(name, set()), in_model.get(name, set())
        if program != model:
            message = f"the program ties {name} on {_stages(program)}, but {description.name} on {_stages(model)}"
            help = "take another model, or change 'tied' in the schedule"
            if not name.isidentifier():
                help = "name the shared parameter in the 'tied' of its layers, and tie that name in the schedule"
            raise refuse("E805", message, help=help)


def _stages(numbers: Iterable[int]) -> str:
    return "stages " + ", ".join(map(str, sorted(numbers))) if numbers else "no stage"
