"""Parameter groups: which gradients are summed together, and the check that copies of parameters are equal.

Groups are the stages and the sets of tied parameters. Within a rank all tied copies become one Parameter, so autograd adds
their gradients. Across ranks the group's all-reduce adds them. A layer names the parameters that it shares with other layers:

    class Head(nn.Module):
        tied = {"embedding": "logits.weight"}      # name of the set -> path of this layer's parameter
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
    """The gradients of a group. They are allocated once, and an ALLREDUCE sums them in place.

    flat: for each dtype one tensor that holds the gradients one after the other. A group without gradients has one empty
    tensor, because its ranks may still run its ALLREDUCE. is_first: whether this rank is the first holder of the group.
    are_complete: whether the gradients that are there have been summed over all holders.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device, is_first: bool = True) -> None:
        trained = [p for p in parameters if p.requires_grad]
        self.flat: list[torch.Tensor] = []
        self._views: list[tuple[nn.Parameter, torch.Tensor]] = []
        for dtype in dict.fromkeys(p.dtype for p in trained):
            alike = [p for p in trained if p.dtype == dtype]
            self.flat.append(torch.zeros(sum(p.numel() for p in alike), dtype=dtype, device=device))
            parts = torch.split(self.flat[-1], [p.numel() for p in alike])
            self._views += [(p, part.view(p.shape)) for p, part in zip(alike, parts, strict=True)]
        self.flat = self.flat or [torch.zeros(0, device=device)]
        self._is_first, self.are_complete = is_first, True

    def begin(self) -> None:
        """Make the parameters' gradients views of the flat tensors, so that an iteration adds to them.

        A parameter without a gradient gets zeros. A gradient that is complete already is the same on all holders. The first
        one keeps it and the others set theirs to zero, so the ALLREDUCE of this iteration adds it once.
        """
        if all(p.grad is None for p, _ in self._views):
            for tensor in self.flat:
                tensor.zero_()
            for p, view in self._views:
                p.grad = view
            return
        for p, view in self._views:
            if p.grad is not view:
                view.zero_() if p.grad is None else view.copy_(p.grad)
                p.grad = view
        if self.are_complete and not self._is_first:
            for tensor in self.flat:
                tensor.zero_()

    def end(self, sync: bool) -> None:
        """End an iteration. sync: its ALLREDUCEs have run, so the gradients are complete."""
        self.are_complete = sync


def holders_by_group(header: Header) -> dict[str, tuple[int, ...]]:
    """Return the ranks that hold each group, ascending."""
    stages = {stage_group(s): (s,) for s in range(header.stages)} | {tied.name: tied.stages for tied in header.tied}
    return {name: header.holders(its) for name, its in stages.items()}


def parameter_groups(header: Header, stages: Mapping[int, Stage]) -> Groups:
    """Return this rank's parameters by group, each once.

    The copies of a tied parameter in several layers become one Parameter, so that autograd adds their gradients.
    """
    shared: Groups = {}
    for tied in header.tied:
        owners = [owner for s in tied.stages if s in stages for owner in _ties(stages[s]).get(tied.name, [])]
        if owners:
            shared[tied.name] = [_merge(owners)]
    for stage in stages.values():
        for owners in _ties(stage).values():  # parameters tied within one stage need no ALLREDUCE
            _merge(owners)
    in_shared = {id(p) for parameters in shared.values() for p in parameters}
    groups = {stage_group(s): [p for p in stage.parameters() if id(p) not in in_shared] for s, stage in stages.items()}
    return groups | shared


def check_copies(transport: Transport, groups: Groups) -> None:
    """Compare the copies of every group bit by bit; called by all ranks together.

    Raises ChimeraError E810 on all ranks where copies differ.
    """
    digests = {name: _digest(parameters) for name, parameters in groups.items() if parameters}
    by_rank: list[dict[str, str]] = [json.loads(text) for text in transport.all_gather(json.dumps(digests))]
    for name in sorted({name for held in by_rank for name in held}):
        holders = [(rank, held[name]) for rank, held in enumerate(by_rank) if name in held]
        first, expected = holders[0]
        other = next((rank for rank, found in holders if found != expected), None)
        if other is not None:
            raise refuse(
                "E810",
                f"the copies of {name} on {transport.named([first])} and {transport.named([other])} have different weights",
                notes=(f"{name} is on ranks {', '.join(str(rank) for rank, _ in holders)}",),
                help="start every rank with the same files, options and versions; on one machine this is an error of ours",
            )


def _ties(stage: Stage) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return, by name of a tied set, the modules of a stage that own a parameter of it, each with the attribute name."""
    found: dict[str, list[tuple[nn.Module, str]]] = {}
    for layer, ties in zip(stage.layers, stage.ties, strict=True):
        for name, path in ties.items():
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
