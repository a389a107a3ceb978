"""Parameter groups: which gradients are summed together, and the check that copies of parameters are equal.

Groups are the stages and the sets of tied parameters. A layer names the parameters that it shares with other layers:

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
from chimerac.interpreter.runtime.model import Stage
from chimerac.interpreter.transport import Transport

Groups = dict[str, list[nn.Parameter]]


class Gradients:
    """The gradients of a group. They are allocated once and summed in place.

    runs: for each dtype one run of memory that holds the gradients one after the other. A group without gradients has one
    run of no bytes, because its ranks may still run its ALLREDUCE.
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
        """Move the parameters' gradients into the runs. A parameter without a gradient gets zeros."""
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
            shared[tied.name] = [_merge(owners)]
    for stage in stages.values():
        for owners in _ties(stage).values():  # a tie inside one stage needs no ALLREDUCE
            _merge(owners)
    elsewhere = {id(p) for parameters in shared.values() for p in parameters}
    groups = {stage_group(s): [p for p in stage.parameters() if id(p) not in elsewhere] for s, stage in stages.items()}
    return groups | shared


def check_copies(transport: Transport, groups: Groups) -> None:
    """Compare the copies of every group bit by bit; called by all ranks together.

    Raises ChimeraError E810 on all ranks where copies differ.
    """
    digests = {name: _digest(parameters) for name, parameters in groups.items() if parameters}
    by_rank: list[dict[str, str]] = [json.loads(text) for text in transport.all_gather(json.dumps(digests))]
    for name in sorted({name for held in by_rank for name in held}):
        holders = [(rank, held[name]) for rank, held in enumerate(by_rank) if name in held]
        first, wanted = holders[0]
        other = next((rank for rank, found in holders if found != wanted), None)
        if other is not None:
            raise refuse(
                "E810",
                f"the copies of {name} on rank {first} and rank {other} have different weights",
                notes=(f"{name} is on ranks {', '.join(str(rank) for rank, _ in holders)}",),
                help="start every rank with the same files, options and versions; on one machine this is an error of ours",
            )


def _ties(stage: Stage) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return the tied sets of a stage: the modules that own a parameter of each, and its name there."""
    found: dict[str, list[tuple[nn.Module, str]]] = {}
    for layer in stage.layers:
        declared: Mapping[str, str] = getattr(layer, "tied", {})
        for name, path in declared.items():
            parent, _, leaf = path.rpartition(".")
            found.setdefault(name, []).append((layer.get_submodule(parent), leaf))
    return found


def _merge(owners: Sequence[tuple[nn.Module, str]]) -> nn.Parameter:
    """Register the first module's parameter in all of these modules, and return it."""
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
