"""Parameter groups: what is summed together, and whether its copies are equal.

Groups are the stages and the sets of tied parameters. A layer says what it ties by an attribute of its own:

    class Head(nn.Module):
        tied = {"embedding": "logits.weight"}      # set -> this layer's parameter of that set
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import stage_group
from chimerac.chimera_ir.program import Header
from chimerac.interpreter.runtime.model import Model, Stage
from chimerac.interpreter.transport import Transport

Groups = dict[str, list[nn.Parameter]]


class Gradients:
    """The gradients of a group, allocated once: they are summed where they lie.

    runs: for each dtype one run of memory, in which the gradients lie one after the other; one of no bytes for a group
    without any, whose ranks may still meet for its sum.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        trained = [p for p in parameters if p.requires_grad]
        self.runs: list[torch.Tensor] = []
        self._places: list[tuple[nn.Parameter, torch.Tensor]] = []
        for dtype in dict.fromkeys(p.dtype for p in trained):
            alike = [p for p in trained if p.dtype == dtype]
            self.runs.append(torch.zeros(sum(p.numel() for p in alike), dtype=dtype, device=device))
            parts = torch.split(self.runs[-1], [p.numel() for p in alike])
            self._places += [(p, part.view(p.shape)) for p, part in zip(alike, parts, strict=True)]
        self.runs = self.runs or [torch.zeros(0, device=device)]

    def begin(self) -> None:
        """Let the parameters' gradients lie here: zeros for those that have none, the others as they are."""
        if all(p.grad is None for p, _ in self._places):
            for run in self.runs:
                run.zero_()
        for p, place in self._places:
            if p.grad is not place:
                place.zero_() if p.grad is None else place.copy_(p.grad)
                p.grad = place


def parameter_groups(header: Header, stages: Mapping[int, Stage]) -> Groups:
    """Return this rank's parameters by group, each once.

    Several layers' copies of a tied parameter become one Parameter, so that its gradients add up.
    """
    shared: Groups = {}
    for tied in header.tied:
        owners = [owner for s in tied.stages if s in stages for owner in _ties(stages[s]).get(tied.name, [])]
        if owners:
            shared[tied.name] = [_one(owners)]
    for stage in stages.values():
        for owners in _ties(stage).values():  # inside one stage a tie needs no sum
            _one(owners)
    elsewhere = {id(p) for parameters in shared.values() for p in parameters}
    groups = {stage_group(s): [p for p in stage.parameters() if id(p) not in elsewhere] for s, stage in stages.items()}
    return groups | shared


def check_copies(transport: Transport, header: Header, model: Model, stages: Mapping[int, Stage], groups: Groups) -> None:
    """Compare the copies of every group bit by bit; called by all ranks together.

    Raises ChimeraError on all ranks: E805 where program and model do not tie the same, E810 where copies differ.
    """
    ties = {name: sorted(s for s, stage in stages.items() if name in _ties(stage)) for name in _tied_names(stages.values())}
    digests = {name: _digest(parameters) for name, parameters in groups.items() if parameters}
    heard = [json.loads(words) for words in transport.tell_all(json.dumps([ties, digests]))]
    _check_ties(header, model, [ties for ties, _ in heard])
    for name in sorted({name for _, all_of in heard for name in all_of}):
        holders = [(rank, all_of[name]) for rank, (_, all_of) in enumerate(heard) if name in all_of]
        first, wanted = holders[0]
        other = next((rank for rank, found in holders if found != wanted), None)
        if other is not None:
            raise refuse(
                "E810",
                f"the copies of {name} on rank {first} and rank {other} have different weights",
                notes=(f"{name} is on ranks {', '.join(str(rank) for rank, _ in holders)}",),
                help="start every rank with the same files, options and versions; on one machine this is an error of ours",
            )


def _check_ties(header: Header, model: Model, heard: Sequence[Mapping[str, Sequence[int]]]) -> None:
    found: dict[str, set[int]] = {}
    for ties in heard:
        for name, on in ties.items():
            found.setdefault(name, set()).update(on)
    said = {tied.name: set(tied.stages) for tied in header.tied}
    for name in sorted({*said, *(name for name, on in found.items() if len(on) > 1)}):
        program, layers = said.get(name, set()), found.get(name, set())
        if program != layers:
            message = f"the program ties {name} on {_stages(program)}, but {model.name} on {_stages(layers)}"
            raise refuse("E805", message, help="take another model, or change 'tied' in the schedule")


def _stages(numbers: Iterable[int]) -> str:
    return "stages " + ", ".join(map(str, sorted(numbers))) if numbers else "no stage"


def _tied_names(stages: Iterable[Stage]) -> list[str]:
    return sorted({name for stage in stages for name in _ties(stage)})


def _ties(stage: Stage) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return the tied sets of a stage: the modules that own a parameter of each, and its name there."""
    found: dict[str, list[tuple[nn.Module, str]]] = {}
    for layer in stage.layers:
        declared: Mapping[str, str] = getattr(layer, "tied", {})
        for name, path in declared.items():
            parent, _, leaf = path.rpartition(".")
            found.setdefault(name, []).append((layer.get_submodule(parent), leaf))
    return found


def _one(owners: Sequence[tuple[nn.Module, str]]) -> nn.Parameter:
    """Let these modules have one parameter, the first's."""
    module, name = owners[0]
    parameter = module.get_parameter(name)
    for module, name in owners[1:]:
        if module.get_parameter(name) is not parameter:
            if not module.get_parameter(name).equal(parameter):
                raise ValueError(f"two layers of one rank start with different copies of a tied parameter, {name}")
            module.register_parameter(name, parameter)
    return parameter


def _digest(parameters: Iterable[nn.Parameter]) -> str:
    """Return a digest of the bits of these parameters."""
    found = hashlib.sha256()
    for p in parameters:
        found.update(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
