"""An optimizer whose state is sharded over the ranks that hold copies of a parameter (ZeRO, stage 1).

All holders of a parameter have its complete gradient after a step of the pipeline with sync. One of them owns the parameter:
only the owner has state for it and updates it. Then the owner broadcasts the new values to the other holders, bit for bit. So
the result equals that of an unsharded optimizer on every holder, and all ranks together hold one copy of the state instead of
one for each holder.

torch's ZeroRedundancyOptimizer does not fit. It shards one list of parameters over all ranks of one process group, but here
each stage has its own holders, and a rank may hold several stages. It communicates through torch.distributed itself, so the
loopback could not run it. Its state must be collected on one rank before it can be saved, and has
indices of parameters instead of their names.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chimerac.interpreter.runtime.parameters import Groups
from chimerac.interpreter.transport import Transport

# What optimizers of torch accept: parameters, parameters with their names, or groups of them with their own options.
Parameters = Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]] | Iterable[dict[str, Any]]


class Shard(NamedTuple):
    """Those parameters of a group of the program that one of its holders owns, all of one dtype.

    Attributes:
        holders: of the group, at least two, ascending.
        owner: one of them.
    """

    holders: tuple[int, ...]
    owner: int
    parameters: Sequence[nn.Parameter]


class Ownership:
    """Which rank owns each parameter; created by all ranks together.

    Args:
        groups: this rank's parameters, by group of the program.
        holders: for each group of the program, the ranks that hold it.

    The parameters that are trained are assigned in descending order of size, each to the holder that owns the fewest elements
    so far.
    """

    def __init__(self, groups: Groups, holders: Mapping[str, tuple[int, ...]], transport: Transport) -> None:
        self._transport = transport
        trained = {name: [p for p in parameters if p.requires_grad] for name, parameters in groups.items()}
        self.held = {id(p) for parameters in groups.values() for p in parameters}  # all parameters of this rank, by id
        own_sizes = json.dumps({name: [p.numel() for p in parameters] for name, parameters in trained.items()})
        sizes: dict[str, list[int]] = {}
        for text in transport.all_gather(own_sizes):
            sizes |= json.loads(text)
        owners = _owners(sizes, holders)
        self.owned: set[int] = set()  # the parameters that this rank owns, by id
        self.shards: list[Shard] = []  # what `broadcast` sends or receives, in the same order on all ranks
        for name in [name for name in holders if name in trained]:
            by_owner: dict[tuple[int, torch.dtype], list[nn.Parameter]] = {}
            for p, owner in zip(trained[name], owners[name], strict=True):
                by_owner.setdefault((owner, p.dtype), []).append(p)
                if owner == transport.rank:
                    self.owned.add(id(p))
            if len(holders[name]) > 1:
                # By owner, then by dtype.
                in_order = sorted(by_owner.items(), key=lambda item: (item[0][0], str(item[0][1])))
                self.shards += [Shard(holders[name], owner, parameters) for (owner, _), parameters in in_order]

    @torch.no_grad()
    def broadcast(self) -> None:
        """Give each trained parameter on all its holders the values that its owner has; called by all ranks together."""
        for holders, owner, parameters in self.shards:
            is_owner = owner == self._transport.rank
            flat = torch.cat([p.reshape(-1) for p in parameters]) if is_owner else _flat_like(parameters)
            if flat.numel():
                self._transport.broadcast(holders, owner, flat.view(torch.uint8)).wait()
            if not is_owner:
                for p, values in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
                    p.copy_(values.view(p.shape))


class ShardedOptimizer(Optimizer):
    """An optimizer that has state for the parameters that this rank owns, and updates them on all their holders.

    It is used like an `optimizer_class` of all parameters of this rank: its `param_groups` have the learning rates, also those
    that schedulers set, and `zero_grad` clears all gradients. `state` and `state_dict` have the state of owned parameters only.
    `load_state_dict` also accepts the state of an unsharded optimizer. The class must update each parameter independently of
    the others, as all optimizers of torch but LBFGS do. All ranks create the optimizer, and call `step`, together.

    Args:
        defaults: arguments of `optimizer_class`.
        check: called before each step without a closure; it raises if the gradients cannot be used.

    Raises ValueError for a parameter that is not in the pipeline.
    """

    def __init__(
        self,
        optimizer_class: Callable[..., Optimizer],
        parameters: Parameters,
        ownership: Ownership,
        check: Callable[[], None],
        defaults: Mapping[str, Any],
    ) -> None:
        given: Any = list(parameters) or [{"params": []}]  # a rank may have no stage, and torch accepts no empty list
        self._ownership, self._check = ownership, check
        self.local: Optimizer | None = None  # of the owned parameters; None until the base class has called `add_param_group`
        super().__init__(given, dict(defaults))
        if foreign := [p for group in self.param_groups for p in group["params"] if id(p) not in ownership.held]:
            raise ValueError(
                f"a parameter of shape {list(foreign[0].shape)} is not in this pipeline: give parameters that "
                "pipe.parameters() yields"
            )
        self.local = optimizer_class([self._owned(group) for group in self.param_groups], **defaults)
        self.defaults, self.state = self.local.defaults, self.local.state
        self._copy_local_options()

    def step(self, closure: Any = None) -> Any:
        """Update the parameters on all their holders; called by all ranks together.

        Args:
            closure: as for torch's optimizers.
        """
        assert self.local is not None
        if closure is None:
            self._check()
        for group, local_group in zip(self.param_groups, self.local.param_groups, strict=True):
            local_group.update(_options(group))
        loss = self.local.step(closure)
        self._copy_local_options()
        self._ownership.broadcast()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of this rank with their own options."""
        super().add_param_group(param_group)
        if self.local is not None:
            self.local.add_param_group(self._owned(self.param_groups[-1]))

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the options of all `param_groups`, and the state of the parameters that this rank owns."""
        super().load_state_dict(state_dict)
        assert self.local is not None
        owned = {p: state for p, state in self.state.items() if id(p) in self._ownership.owned}
        self.state = self.local.state = defaultdict(dict, owned)

    def _owned(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of one of `param_groups` with only the parameters that this rank owns."""
        return {**_options(group), "params": [p for p in group["params"] if id(p) in self._ownership.owned]}

    def _copy_local_options(self) -> None:
        """Copy the options of the local optimizer to `param_groups`: its defaults, and options that it changes itself."""
        assert self.local is not None
        for group, local_group in zip(self.param_groups, self.local.param_groups, strict=True):
            group.update(_options(local_group))


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one of an optimizer's `param_groups`, without the parameters and their names."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _flat_like(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return uninitialized memory for the values of these parameters, one after the other."""
    return torch.empty(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)


def _owners(sizes: Mapping[str, Sequence[int]], holders: Mapping[str, tuple[int, ...]]) -> dict[str, list[int]]:
    """Return, for each group of the program, the owner of each of its parameters that are trained.

    Args:
        sizes: for each group, the number of elements of each of these parameters.
        holders: for each group, the ranks that hold it.
    """
    owned: dict[int, int] = defaultdict(int)  # by rank, the number of elements that it owns
    owners = {name: [0] * len(of_group) for name, of_group in sizes.items()}
    parameters = [(name, k) for name in holders for k in range(len(sizes.get(name, ())))]
    for name, k in sorted(parameters, key=lambda parameter: -sizes[parameter[0]][parameter[1]]):
        owner = min(holders[name], key=lambda rank: (owned[rank], rank))
        owners[name][k] = owner
        owned[owner] += sizes[name][k]
    return owners
