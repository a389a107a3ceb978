"""The state of an optimizer, shared out over the ranks that hold copies of a parameter (ZeRO, stage 1).

All holders of a parameter have its complete gradient after a step. One of them owns it: only the owner has state for it and
updates it. Then it sends the new values to the other holders, bit for bit. So the result equals that of a whole optimizer on
every holder, and all ranks together hold one copy of the state instead of one for each holder.

torch's ZeroRedundancyOptimizer does not fit. It shares one list of parameters out over all ranks of one process group, but
here every stage has other holders, and a rank holds several stages. It communicates through torch.distributed itself, so the
loopback could not run it. Its state has to be collected on one rank before it can be saved, under numbers instead of names.
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

Parameters = Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]] | Iterable[dict[str, Any]]


class Share(NamedTuple):
    """The parameters of a group that one of its holders owns, all of one type. holders: at least two, ascending."""

    holders: tuple[int, ...]
    owner: int
    parameters: Sequence[nn.Parameter]


class Ownership:
    """Which rank owns each parameter; made by all ranks together.

    groups: this rank's parameters; holders: the ranks that hold each group of the program. A parameter goes to the holder
    that owns the fewest numbers so far, the largest parameter first.
    """

    def __init__(self, groups: Groups, holders: Mapping[str, tuple[int, ...]], transport: Transport) -> None:
        self._transport = transport
        trained = {name: [p for p in parameters if p.requires_grad] for name, parameters in groups.items()}
        self.known = {id(p) for parameters in groups.values() for p in parameters}
        mine = json.dumps({name: [p.numel() for p in parameters] for name, parameters in trained.items()})
        sizes: dict[str, list[int]] = {}
        for text in transport.all_gather(mine):
            sizes |= json.loads(text)
        owners = _owners(sizes, holders)
        self.owned: set[int] = set()  # the parameters of this rank, by id
        self.shares: list[Share] = []  # in one order on all ranks
        for name in [name for name in holders if name in trained]:
            by_owner: dict[tuple[int, torch.dtype], list[nn.Parameter]] = {}
            for p, owner in zip(trained[name], owners[name], strict=True):
                by_owner.setdefault((owner, p.dtype), []).append(p)
                if owner == transport.rank:
                    self.owned.add(id(p))
            if len(holders[name]) > 1:
                in_order = sorted(by_owner.items(), key=lambda item: (item[0][0], str(item[0][1])))
                self.shares += [Share(holders[name], owner, parameters) for (owner, _), parameters in in_order]

    @torch.no_grad()
    def send(self) -> None:
        """Give all holders the values that the owners have; called by all ranks together."""
        for holders, owner, parameters in self.shares:
            is_mine = owner == self._transport.rank
            flat = torch.cat([p.reshape(-1) for p in parameters]) if is_mine else _flat_like(parameters)
            if flat.numel():
                self._transport.broadcast(holders, owner, flat.view(torch.uint8)).wait()
            if not is_mine:
                for p, values in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
                    p.copy_(values.view(p.shape))


class ShardedOptimizer(Optimizer):
    """An optimizer that has state for the parameters that this rank owns, and updates them on all their holders.

    It looks like the optimizer of the class that it is given, with all parameters of this rank: rates are set in its
    `param_groups`, by schedulers too, and `zero_grad` clears all gradients. `state` and `state_dict` have the state of owned
    parameters only; `load_state_dict` also takes that of a whole optimizer. The class must update each parameter by itself,
    as all of torch do but LBFGS. All ranks make it, and call `step`, together.

    check: called before each step; raises if the gradients cannot be used.
    """

    def __init__(
        self,
        optimizer_class: Callable[..., Optimizer],
        parameters: Parameters,
        ownership: Ownership,
        check: Callable[[], None],
        defaults: Mapping[str, Any],
    ) -> None:
        given: Any = list(parameters) or [{"params": []}]  # a rank may have no stage, and torch takes no empty list
        self._ownership, self._check = ownership, check
        self.local: Optimizer | None = None  # of the owned parameters
        super().__init__(given, dict(defaults))
        if foreign := [p for group in self.param_groups for p in group["params"] if id(p) not in ownership.known]:
            raise ValueError(
                f"a parameter of shape {list(foreign[0].shape)} is none of this pipeline: give parameters that "
                "pipe.parameters() yields"
            )
        self.local = optimizer_class([self._owned(group) for group in self.param_groups], **defaults)
        self.defaults, self.state = self.local.defaults, self.local.state
        self._take_options()

    def step(self, closure: Any = None) -> Any:
        """Update the parameters on all their holders; called by all ranks together. closure: as for torch's optimizers."""
        assert self.local is not None
        if closure is None:
            self._check()
        for mine, local in zip(self.param_groups, self.local.param_groups, strict=True):
            local.update(_options(mine))
        loss = self.local.step(closure)
        self._take_options()
        self._ownership.send()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters of this rank with their own options."""
        super().add_param_group(param_group)
        if self.local is not None:
            self.local.add_param_group(self._owned(self.param_groups[-1]))

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the options, and the state of the parameters that this rank owns; the state of others is left out."""
        super().load_state_dict(state_dict)
        assert self.local is not None
        owned = {p: state for p, state in self.state.items() if id(p) in self._ownership.owned}
        self.state = self.local.state = defaultdict(dict, owned)

    def _owned(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return a group of parameters without those that other ranks own."""
        return {**_options(group), "params": [p for p in group["params"] if id(p) in self._ownership.owned]}

    def _take_options(self) -> None:
        """Take the options of the local optimizer, such as defaults and rates that it changes itself."""
        assert self.local is not None
        for mine, local in zip(self.param_groups, self.local.param_groups, strict=True):
            mine.update(_options(local))


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _flat_like(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return memory for the values of these parameters."""
    return torch.empty(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)


def _owners(sizes: Mapping[str, Sequence[int]], holders: Mapping[str, tuple[int, ...]]) -> dict[str, list[int]]:
    """Return the owner of each parameter of each group. sizes: numbers of elements."""
    load: dict[int, int] = defaultdict(int)
    found = {name: [0] * len(its) for name, its in sizes.items()}
    order = list(holders)
    for size, name, k in sorted(
        ((size, name, k) for name, its in sizes.items() for k, size in enumerate(its)),
        key=lambda x: (-x[0], order.index(x[1]), x[2]),
    ):
        owner = min(holders[name], key=lambda rank: (load[rank], rank))
        found[name][k] = owner
        load[owner] += size
    return found
