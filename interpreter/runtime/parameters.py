"""Parameter groups: which gradients are all-reduced together, and the check that copies of parameters are equal.

Each stage has a group, and so has each set of parameters that several stages share. On one rank all tied copies become one
Parameter, so autograd adds their gradients. Across ranks the group's all-reduce adds them. A layer names the parameters that it
shares with others:

    class Head(nn.Module):
        tied = {"embedding": "logits.weight"}  # name of the set of tied parameters: path of this layer's parameter
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import stage_group
from chimerac.chimera_ir.program import Header
from chimerac.interpreter.runtime.memory import bits_digest
from chimerac.interpreter.runtime.model import Stage
from chimerac.interpreter.transport import Transport

Groups = dict[str, list[nn.Parameter]]


class Gradients:
    """The gradients of a group. They are allocated once, and an ALLREDUCE sums them in place.

    Args:
        is_first: whether this rank is the first holder of the group.

    Attributes:
        flat: for each dtype one tensor that holds the gradients one after the other. A group without gradients has one empty
            tensor, because its ranks may still run its ALLREDUCE.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device, is_first: bool = True) -> None:
        trained = [p for p in parameters if p.requires_grad]
        self.flat: list[torch.Tensor] = []
        self._views: list[tuple[nn.Parameter, torch.Tensor]] = []
        for dtype in dict.fromkeys(p.dtype for p in trained):
            of_dtype = [p for p in trained if p.dtype == dtype]
            self.flat.append(torch.zeros(sum(p.numel() for p in of_dtype), dtype=dtype, device=device))
            parts = torch.split(self.flat[-1], [p.numel() for p in of_dtype])
            self._views += [(p, part.view(p.shape)) for p, part in zip(of_dtype, parts, strict=True)]
        self.flat = self.flat or [torch.zeros(0, device=device)]
        self._is_first = is_first

    def begin(self, are_complete: bool = True) -> None:
        """Make the parameters' gradients views of the flat tensors, so that a run of the stream adds to these.

        A parameter without a gradient gets zeros. Complete gradients are the same on all holders. The first holder keeps them
        and the others set theirs to zero, so the next ALLREDUCE adds them once.

        Args:
            are_complete: whether the gradients that the parameters have are summed over all holders.
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
        if are_complete and not self._is_first:
            for tensor in self.flat:
                tensor.zero_()


def holders_by_group(header: Header) -> dict[str, tuple[int, ...]]:
    """Return the ranks that hold each group, ascending."""
    stages_of = {stage_group(s): (s,) for s in range(header.stages)} | {tied.name: tied.stages for tied in header.tied}
    return {name: header.holders(stages) for name, stages in stages_of.items()}


def parameter_groups(header: Header, stages: Mapping[int, Stage]) -> Groups:
    """Return this rank's parameters by group, each once.

    In the stages, the copies of a tied parameter in several layers are replaced by one Parameter, so that autograd adds their
    gradients. The group of a tied set is empty if this rank has a stage of the set, but no layer with a parameter of it, as
    with timed stages (interpreter/training/timed.py). Raises ValueError if copies on this rank differ.
    """
    shared: Groups = {}
    for tied in header.tied:
        held = [stages[s] for s in tied.stages if s in stages]
        owners = [owner for stage in held for owner in _ties(stage).get(tied.name, [])]
        if held:
            shared[tied.name] = [_merge(owners)] if owners else []
    for stage in stages.values():
        for owners in _ties(stage).values():  # those tied only within one stage stay in the group of this stage
            _merge(owners)
    in_shared = {id(p) for parameters in shared.values() for p in parameters}
    groups = {stage_group(s): [p for p in stage.parameters() if id(p) not in in_shared] for s, stage in stages.items()}
    return groups | shared


def check_copies(transport: Transport, groups: Groups) -> None:
    """Compare the copies of every group on all ranks, bit by bit; called by all ranks together.

    Raises ChimeraError E810 on all ranks if copies differ.
    """
    digests = {name: bits_digest(parameters) for name, parameters in groups.items() if parameters}
    by_rank: list[dict[str, str]] = [json.loads(text) for text in transport.all_gather(json.dumps(digests))]
    for name in sorted({name for of_rank in by_rank for name in of_rank}):
        holders = [(rank, of_rank[name]) for rank, of_rank in enumerate(by_rank) if name in of_rank]
        first, expected = holders[0]
        differing = next((rank for rank, digest in holders if digest != expected), None)
        if differing is not None:
            raise refuse(
                "E810",
                f"the copies of {name} on {transport.named([first])} and {transport.named([differing])} have different weights",
                notes=(f"{name} is on ranks {', '.join(str(rank) for rank, _ in holders)}",),
                help="start every rank with the same files, options and versions; in a loop of your own, with the same weights",
            )


def _ties(stage: Stage) -> dict[str, list[tuple[nn.Module, str]]]:
    """Return, by set of tied parameters, a stage's modules that own a parameter of the set, each with the attribute's name."""
    owners: dict[str, list[tuple[nn.Module, str]]] = {}
    for layer, ties in zip(stage.layers, stage.ties, strict=True):
        for name, path in ties.items():
            module, _, attribute = path.rpartition(".")
            owners.setdefault(name, []).append((layer.get_submodule(module), attribute))
    return owners


def _merge(owners: Sequence[tuple[nn.Module, str]]) -> nn.Parameter:
    """Register the first module's parameter in all of these modules, and return it.

    Args:
        owners: modules, each with the name of the attribute that is the parameter.

    Raises ValueError if their parameters differ.
    """
    module, name = owners[0]
    parameter = module.get_parameter(name)
    for module, name in owners[1:]:
        if module.get_parameter(name) is not parameter:
            if not module.get_parameter(name).equal(parameter):
                raise ValueError(f"two layers of one rank start with different copies of a tied parameter, {name}")
            module.register_parameter(name, parameter)
    return parameter
