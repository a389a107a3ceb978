"""The parameters and buffers of a rank's stages, under their names in the full model.

The extra state of a module (`get_extra_state` of torch) counts as a buffer, if it is a tensor that `set_extra_state` can load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _EXTRA_STATE_KEY_SUFFIX as _EXTRA_STATE

from chimerac.chimera_ir.program import Header
from chimerac.interpreter.runtime.model import Stage
from chimerac.interpreter.transport import Transport


def full_name(layer: str, path: str) -> str:
    """Return the name in the full model of a parameter or buffer that has the name `path` in a layer.

    Args:
        layer: the name of the layer; empty if `path` is already the name in the full model.
    """
    return f"{layer}.{path}" if layer else path


class Weights:
    """Names and values of a rank's parameters and buffers.

    Args:
        stages: of this rank, by number.

    All ranks create it together.
    """

    def __init__(self, header: Header, stages: Mapping[int, Stage], transport: Transport) -> None:
        self._header, self._stages, self._transport = header, stages, transport
        self._first_names = self._first_names_of_tied() if header.tied else {}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter once, with its first name in the full model, which is the same on all ranks."""
        seen: set[int] = set()
        for layer_name, layer in self._layers():
            for name, p in layer.named_parameters(layer_name):
                if id(p) not in seen:
                    seen.add(id(p))
                    yield self._first_names.get(id(p), name), p

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters and persistent buffers. One that has several names on this rank is in it under each of them."""
        return _state_of(self._layers())

    def shapes(self) -> dict[str, list[int] | None]:
        """Return the shapes of parameters and persistent buffers by name; None for extra state, whose shape may change."""
        extra = _extra_states(self._layers())
        return {name: None if name in extra else list(t.shape) for name, t in self.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load parameters and persistent buffers.

        Raises KeyError for missing names and ValueError for other shapes. Nothing is loaded then.
        """
        own, extra = self.state_dict(), _extra_states(self._layers())
        if missing := [name for name in own if name not in state]:
            shown = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
            raise KeyError(f"{len(missing)} of {len(own)} names are missing: {shown}")
        for name, t in own.items():
            if name not in extra and state[name].shape != t.shape:
                raise ValueError(f"{name} has the shape {list(state[name].shape)}, and in this model {list(t.shape)}")
        with torch.no_grad():
            for name, t in own.items():
                if name in extra:  # a module may make its extra state anew for each call: a copy into it would be lost
                    extra[name].set_extra_state(state[name].to(t.device, copy=True))
                else:
                    t.copy_(state[name])

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole model on the CPU of every rank, stage after stage; called by all ranks together."""
        state: dict[str, Tensor] = {}
        for s in range(self._header.stages):
            state |= self._stage_from(self._header.holders([s])[0], s)
        return state

    def _first_names_of_tied(self) -> dict[int, str]:
        """Return the first names of this rank's tied parameters, by id; called by all ranks together.

        The first name is the one in the first layer of the whole model that has the parameter.
        """
        uses: dict[str, list[tuple[int, int, str]]] = {}  # by set of tied parameters: stage, layer of the stage, name
        parameters: dict[str, int] = {}  # by set of tied parameters: the id of this rank's parameter
        for s, stage in self._stages.items():
            for k, (name, layer, ties) in enumerate(zip(stage.names, stage.layers, stage.ties, strict=True)):
                for tied, path in ties.items():
                    uses.setdefault(tied, []).append((s, k, full_name(name, path)))
                    parameters[tied] = id(layer.get_parameter(path))
        by_rank = [json.loads(text) for text in self._transport.all_gather(json.dumps(uses))]
        first_uses = {tied: min(use for of_rank in by_rank for use in of_rank.get(tied, [])) for tied in parameters}
        return {parameters[tied]: name for tied, (_, _, name) in first_uses.items()}

    def _stage_from(self, holder: int, stage: int) -> dict[str, Tensor]:
        """Return the parameters and buffers of a stage, copied from the rank `holder`; called by all ranks together."""
        own = _state_of(self._layers(stage)) if self._transport.rank == holder else {}
        shapes_and_dtypes = {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in own.items()}
        state = {}
        for name, (shape, dtype) in json.loads(self._transport.all_gather(json.dumps(shapes_and_dtypes))[holder]).items():
            t = torch.zeros(shape, dtype=getattr(torch, dtype))
            if name in own:
                t.copy_(own[name])
            if t.numel():
                # All ranks but `holder` add zeros, byte by byte, so the result has the bits of `holder`.
                self._transport.all_reduce(t.view(-1).view(torch.uint8))
            state[name] = t
        return state

    def _layers(self, only: int | None = None) -> Iterator[tuple[str, nn.Module]]:
        """Yield the name and the module of each layer of this rank's stages.

        Args:
            only: the number of one stage; None: all.
        """
        for s, stage in self._stages.items():
            if only is None or s == only:
                yield from zip(stage.names, stage.layers, strict=True)


def _state_of(layers: Iterator[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of these layers, and extra state that is a tensor and can be loaded."""
    state: dict[str, Tensor] = {}
    known = list(layers)
    for name, layer in known:
        layer.state_dict(destination=state, prefix=full_name(name, ""))
    extra = _extra_states(known)
    return {n: t for n, t in state.items() if isinstance(t, Tensor) and (n in extra or n.rpartition(".")[2] != _EXTRA_STATE)}


def _extra_states(layers: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    """Return the modules of these layers that can load extra state, by the name that this state has in a state dict."""
    return {
        full_name(path, _EXTRA_STATE): module
        for name, layer in layers
        for path, module in layer.named_modules(prefix=name, remove_duplicate=False)
        if type(module).set_extra_state is not nn.Module.set_extra_state
    }
