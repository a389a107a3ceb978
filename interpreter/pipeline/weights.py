"""The parameters and buffers of a rank's stages, under their names in the full model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from chimerac.chimera_ir.program import Header
from chimerac.interpreter.runtime.model import Stage
from chimerac.interpreter.transport import Transport


class Weights:
    """Names and values of a rank's weights."""

    def __init__(self, header: Header, stages: Mapping[int, Stage], transport: Transport) -> None:
        self._header, self._stages, self._transport = header, stages, transport
        self._first_names = self._names_of_tied() if header.tied else {}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters, each once and under its first name in the full model, on all ranks the same."""
        seen: set[int] = set()
        for name, layer in self._layers():
            for path, p in layer.named_parameters(name):
                if id(p) not in seen:
                    seen.add(id(p))
                    yield self._first_names.get(id(p), path), p

    def _names_of_tied(self) -> dict[int, str]:
        """Return the first names of the parameters that stages share, by id; called by all ranks together."""
        uses: dict[str, list[tuple[int, int, str]]] = {}
        shared: dict[str, int] = {}
        for s, stage in self._stages.items():
            for k, (name, layer, ties) in enumerate(zip(stage.names, stage.layers, stage.ties, strict=True)):
                for set_name, path in ties.items():
                    uses.setdefault(set_name, []).append((s, k, f"{_prefix(name)}{path}"))
                    shared[set_name] = id(layer.get_parameter(path))
        by_rank = [json.loads(text) for text in self._transport.all_gather(json.dumps(uses))]
        first = {name: min(use for found in by_rank for use in found.get(name, [])) for name in shared}
        return {shared[name]: use[2] for name, use in first.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters and persistent buffers. A parameter that several layers share is in it under each name."""
        found: dict[str, Tensor] = {}
        for name, layer in self._layers():
            layer.state_dict(destination=found, prefix=_prefix(name))
        return {name: t for name, t in found.items() if isinstance(t, Tensor)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load parameters and buffers. Raises KeyError for missing names and ValueError for other shapes, before loading."""
        own = self.state_dict()
        if missing := [name for name in own if name not in state]:
            shown = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
            raise KeyError(f"{len(missing)} of {len(own)} names are missing: {shown}")
        for name, t in own.items():
            if state[name].shape != t.shape:
                raise ValueError(f"{name} has the shape {list(state[name].shape)}, and in this model {list(t.shape)}")
        with torch.no_grad():
            for name, t in own.items():
                t.copy_(state[name])

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole model on the CPU of every rank, stage after stage; called by all ranks together."""
        found: dict[str, Tensor] = {}
        for s in range(self._header.stages):
            found |= self._stage_from(self._header.holders([s])[0], s)
        return found

    def _stage_from(self, holder: int, stage: int) -> dict[str, Tensor]:
        """Return the weights of a stage, of which `holder` has a copy."""
        own: dict[str, Tensor] = {}
        if self._transport.rank == holder:
            for name, layer in self._layers(stage):
                layer.state_dict(destination=own, prefix=_prefix(name))
        specs = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in own.items()}
        found = {}
        for name, (shape, dtype) in json.loads(self._transport.all_gather(json.dumps(specs))[holder]).items():
            t = torch.zeros(shape, dtype=getattr(torch, dtype))
            if name in own:
                t.copy_(own[name])
            if t.numel():
                self._transport.all_reduce(t.view(-1).view(torch.uint8))  # a sum with zeros, byte by byte: exact
            found[name] = t
        return found

    def _layers(self, only: int | None = None) -> Iterator[tuple[str, nn.Module]]:
        for s, stage in self._stages.items():
            if only is None or s == only:
                yield from zip(stage.names, stage.layers, strict=True)


def _prefix(name: str) -> str:
    """Return what comes before the names of a module's tensors. The whole model itself has no name."""
    return f"{name}." if name else ""
