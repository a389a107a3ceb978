"""Models that torch's tracer has cut: a Pipe of torch.distributed.pipelining becomes a model for `Pipeline`.

    pipe = torch.distributed.pipelining.pipeline(module, (tokens,), split_spec={"blocks.2": SplitPoint.BEGINNING})
    model = traced(module, pipe, {"tokens": tokens}, loss=loss)

torch.export captures the whole computation as one graph, so a cut may be anywhere in it, also inside a module. The graph stays
in the mode that the module was in, usually training: then dropout stays on in an evaluation, and batch normalization uses the
statistics of the batch. Modules that torch.export cannot capture are cut with `cut`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.distributed.pipelining import Pipe

from chimerac.interpreter.adapters.model import CallModel, Loss, cut
from chimerac.interpreter.runtime.model import Fields, Values


def traced(
    module: nn.Module,
    pipe: Pipe,
    fields: Fields,
    *,
    loss: Loss,
    targets: Tensor | Sequence[Tensor] | None = None,
    select: Callable[[Any], Values] | None = None,
    name: str | None = None,
) -> CallModel:
    """Return the model of a Pipe. Its layers are the stages of the Pipe, of which a schedule's stage may have several.

    Args:
        module: the one that was traced; the stages have its parameters, under its names, and the ties between them.
        fields: the arguments of the module's forward by name, of one micro-batch, as they were given to the tracer.

    The other arguments are those of `cut`.

    Raises TypeError if `pipe` is no Pipe, and ChimeraError E852 as `cut` does, such as for fields that are not the arguments of
    the module.
    """
    if not isinstance(pipe, Pipe):
        raise TypeError(
            f"traced takes what torch.distributed.pipelining.pipeline returns, not a value of type {type(pipe).__name__}"
        )
    graph = _with_parameters(pipe.split_gm, module)
    stages = [path for path, _ in graph.named_children()]
    model = cut(graph, fields, loss=loss, targets=targets, layers=stages, select=select, name=name or type(module).__name__)
    return replace(model, names=dict.fromkeys(stages, ""))  # no prefix: parameters have the names of the module


def _with_parameters(stages: nn.Module, module: nn.Module) -> nn.Module:
    """Return a copy of the traced stages that has the parameters of the module.

    A traced stage has the parameters that it reads, under the names of the originals. If several stages read a parameter, the
    tracer has given each of them a copy of its own.
    """
    copied = copy.deepcopy(stages, {id(t): t for t in (*stages.parameters(), *stages.buffers())})  # shares the tensors
    for stage in copied.children():
        for name, _ in list(stage.named_parameters(remove_duplicate=False)):
            path, _, leaf = name.rpartition(".")
            stage.get_submodule(path).register_parameter(leaf, module.get_parameter(name))
    return copied
