"""A model with its description and its partition: all that a rank needs to build its stages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain, count

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.model import ModelDescription, TiedLayers
from chimerac.chimera_ir.partition import Partition, partition_for
from chimerac.chimera_ir.program import Header, Program, Tied
from chimerac.interpreter.runtime.messages import Boundary, boundary_table
from chimerac.interpreter.runtime.model import Model, Stage


@dataclass(frozen=True)
class PartitionedModel:
    """A model, its description, and the layers of each stage.

    Attributes:
        tie_names: by the name of a set of tied parameters in the model, its name in the program, or for a set on one stage a
            name that the program does not have. Empty if the names are the model's.
    """

    model: Model
    description: ModelDescription
    partition: Partition
    tie_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the model."""
        return self.model.name

    @property
    def objective(self) -> Model:
        """Return the model as the `Objective` of its stages."""
        return self.model

    @property
    def boundary_table(self) -> tuple[Boundary, ...]:
        """Return the tensors that each stage passes to the next one; for the last stage, those that the loss takes."""
        return boundary_table(self.description, self.partition)

    def build(self, stage: int, seed: int) -> Stage:
        """Build a stage with its initial weights."""
        built = self.model.build_stage(self.partition.layers[stage], seed)
        built.ties = [{self.tie_names.get(name, name): path for name, path in ties.items()} for ties in built.ties]
        return built


def partitioned(program: Program, model: Model, description: ModelDescription, ties_by_stage: bool = False) -> PartitionedModel:
    """Return the model with the program's partition, or with the balanced one if the program has none.

    Args:
        ties_by_stage: match the model's sets of tied parameters to the program's sets by their stages, and give them the
            program's names. Otherwise they are matched by name.

    Raises ChimeraError: E705 and E706 as `partition_for`, E805 if the program ties other parameters than the model.
    """
    partition = partition_for(program.partition, description, program.header.stages)
    names: dict[str, str] = {}
    if ties_by_stage:
        names, missing = _names_in_program(program.header, description, partition)
        if missing:
            model_stages = set(map(partition.stage_of, missing[0].layers))
            raise _other_ties(missing[0].name, set(), description.name, model_stages, ties_by_stage)
        description = replace(description, tied=tuple(replace(tied, name=names[tied.name]) for tied in description.tied))
    _check_ties(program.header, description, partition, ties_by_stage)
    return PartitionedModel(model, description, partition, names)


def missing_ties(program: Program, description: ModelDescription) -> tuple[Tied, ...]:
    """Return the sets of parameters that stages of the model share and the program does not tie.

    The names that they get are not used in the program. Raises ChimeraError E705 and E706 as `partition_for`.
    """
    partition = partition_for(program.partition, description, program.header.stages)
    _, missing = _names_in_program(program.header, description, partition)
    used_names = {tied.name for tied in program.header.tied}
    result = []
    for tied in missing:
        # A name has at most 64 characters. "tied_" before these 56, and a number such as "_99" after them, take the other 8.
        base = re.sub(r"\W", "_", tied.name, flags=re.ASCII)[-56:]
        base = base if base.isidentifier() else f"tied_{base}"
        name = _unused(base, used_names)
        used_names.add(name)
        result.append(Tied(name, tuple(map(partition.stage_of, tied.layers))))
    return tuple(result)


def _unused(name: str, used_names: Set[str]) -> str:
    """Return the name, with the first number that makes it a new one if it is used."""
    return next(new for new in chain([name], (f"{name}_{n}" for n in count(2))) if new not in used_names)


def _names_in_program(
    header: Header, description: ModelDescription, partition: Partition
) -> tuple[dict[str, str], list[TiedLayers]]:
    """Return the names of the model's sets of tied parameters in the program, and the sets that the program does not tie.

    A set of the model is a set of the program if both are on the same stages. Of several such sets of the program, the one with
    the same name is preferred, otherwise the first one. A set of the model that is on one stage keeps its name, or gets a new
    one if a set of the program has it.
    """
    sets = {tied.name: tuple(sorted(set(map(partition.stage_of, tied.layers)))) for tied in description.tied}
    unassigned = {tied.name: tied.stages for tied in header.tied}
    names = {name: name for name, stages in sets.items() if unassigned.get(name) == stages}
    for name in names:
        del unassigned[name]
    missing = []
    for tied in description.tied:
        stages = sets[tied.name]
        if tied.name in names or len(stages) == 1:  # within one stage no all-reduce is needed
            continue
        candidate = next((name for name, tied_stages in unassigned.items() if tied_stages == stages), None)
        if candidate is None:
            missing.append(tied)
        else:
            names[tied.name] = candidate
            del unassigned[candidate]
    in_program = {tied.name for tied in header.tied}
    for name, stages in sets.items():
        if len(stages) == 1:
            names[name] = _unused(name, in_program | (sets.keys() - {name}))
    return names, missing


def _check_ties(header: Header, description: ModelDescription, partition: Partition, by_stage: bool) -> None:
    """Raise ChimeraError E805 unless the program ties exactly the parameters that stages of the model share.

    Args:
        by_stage: whether the sets of tied parameters were matched by their stages, and not by their names.
    """
    in_program = {tied.name: set(tied.stages) for tied in header.tied}
    in_model = {tied.name: set(map(partition.stage_of, tied.layers)) for tied in description.tied}
    across_stages = {name for name, stages in in_model.items() if len(stages) > 1}
    for name in sorted(in_program.keys() | across_stages):
        program_stages, model_stages = in_program.get(name, set()), in_model.get(name, set())
        if program_stages != model_stages:
            raise _other_ties(name, program_stages, description.name, model_stages, by_stage)


def _other_ties(name: str, program_stages: set[int], model: str, model_stages: set[int], by_stage: bool) -> ChimeraError:
    """Return the error E805 for a set of tied parameters that the program and the model have on different stages."""
    message = f"the program ties {name} on {_stages(program_stages)}, but {model} on {_stages(model_stages)}"
    help = "give another model, or change 'tied' in the schedule"
    if by_stage:
        help = "give the schedule instead of its compiled program, without any 'tied': shared parameters are then tied"
    elif not name.isidentifier():
        help = "name the shared parameter in the 'tied' of its layers, and tie that name in the schedule"
    return refuse("E805", message, help=help)


def _stages(numbers: Iterable[int]) -> str:
    return "stages " + ", ".join(map(str, sorted(numbers))) if numbers else "no stage"
