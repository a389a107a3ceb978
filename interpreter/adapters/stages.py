"""A stage of a module that is cut between calls: the module's own forward, of which only the stage's calls run.

    calls before the stage     return what the stage before has sent, and placeholders for all other tensors
    calls of the stage         run
    after the last of them     the forward is ended, and the stage returns what later stages need; on the last stage
                               the forward ends by itself, and the stage returns what the loss is computed from

What the module computes between calls (masks, positions, residual sums) each stage computes itself: from the fields of the
batch, from what calls return, and from parameters and buffers. So a stage gets the fields that it needs with its micro-batch,
not from the stage before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.adapters.intercept import Forward, Intercepted
from chimerac.interpreter.adapters.trace import Field, Output, Shape, Trace, flatten
from chimerac.interpreter.runtime.draws import current_draws
from chimerac.interpreter.runtime.model import Stage, Values, seed_from

Select = Callable[[Any], Values]
_SAME_CALLS = "the calls of a forward must be the same for every batch: switch off what changes them in the model"
_IN_CALL, _AFTER_CALL = 0, 1  # where random numbers are drawn: in a call, or by what the module computes after it


class Own(nn.Module):
    """The parameters and buffers of a module, without those of its submodules.

    Both modules hold them in the same dictionaries. So a parameter that is replaced in one of them is replaced in the other.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        for table in ("_parameters", "_buffers", "_non_persistent_buffers_set"):
            vars(self)[table] = vars(module)[table]


class CallStage(Stage):
    """Consecutive calls of the units of a module.

    Args:
        intercepted: the module, with real parameters where these calls need them.
        calls: the numbers of the stage's calls.
        modules: by path, what has the parameters and buffers of the stage.
        ties: as in `Stage`.
        fields: examples of all fields of a micro-batch.
        select: from what the module returns, the tensors that the loss is computed from.
        absent: parameters that the module reads between calls and that only other stages have, as (module, name in it).

    A forward raises ChimeraError E853, which names the call, if its calls are not those of the traced forward, or if a call of
    the stage returns another structure.
    """

    def __init__(
        self,
        intercepted: Intercepted,
        trace: Trace,
        calls: range,
        modules: Mapping[str, nn.Module],
        ties: Sequence[Mapping[str, str]],
        fields: Mapping[str, Tensor],
        select: Select,
        absent: Sequence[tuple[nn.Module, str]] = (),
    ) -> None:
        super().__init__(list(modules.values()), list(modules), ties)
        self.trace, self.calls = trace, calls
        self.received, self.sent = trace.crossing(calls.start), trace.crossing(calls.stop)
        self._intercepted, self._select = intercepted, select
        read = {source.name for sources in trace.sources_of(calls) for source in sources if isinstance(source, Field)}
        self.reads = tuple(name for name in fields if name in read)
        self._unread = {name: _shape_of(t) for name, t in fields.items() if name not in read}
        self._absent = [(m, name, _shape_of(m.get_parameter(name))) for m, name in absent]
        self._placeholders: dict[tuple[Shape, torch.device], Tensor] = {}

    def forward(self, *values: Tensor, **fields: Tensor) -> Values:
        """Return the outputs of calls that later stages need; the last stage returns what the loss is computed from.

        Args:
            values: the outputs of calls that the stage before returns.
            fields: those of `reads`.

        The model gets copies of the values and fields that it changes in place.
        """
        device = next((t.device for t in (*values, *fields.values(), *self.parameters())), torch.device("cpu"))
        run = _StageRun(self, dict(zip(self.received, values, strict=True)), device)
        for module in self._intercepted.others.values():
            module.training = self.training
        written = {source.name for source in self.trace.written if isinstance(source, Field)}
        fields = {name: t.clone() if name in written else t for name, t in fields.items()}
        unread = {name: self.placeholder(shape, device, name in written) for name, shape in self._unread.items()}
        for owner, name, shape in self._absent:
            vars(owner)["_parameters"][name] = self.placeholder(shape, device)
        with run.drawing(), self._intercepted.running(run) as module:
            run.begin()
            try:
                result = module(**fields, **unread)
            except _StageEnd:
                return tuple(run.values[output].contiguous() for output in self.sent)
        run.check_end()
        return tuple(t.contiguous() for t in self._select(result))

    def placeholder(self, shape: Shape, device: torch.device, writable: bool = False) -> Tensor:
        """Return a tensor for a value that nothing of this stage needs.

        It has the memory of one number, unless it is writable because the model changes it in place. Floating-point numbers are
        NaN, which shows in the loss if the value was needed after all. Others are zero.
        """
        key = (shape, device)
        if writable or key not in self._placeholders:
            number = torch.full((), torch.nan if shape.dtype.is_floating_point else 0, dtype=shape.dtype, device=device)
            if writable:
                return number.repeat(shape.shape)
            self._placeholders[key] = number.expand(shape.shape)
        return self._placeholders[key]

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the units of this stage with torch.compile. What the model computes between them runs as it is."""
        forwards = self._intercepted.forwards
        for unit in dict.fromkeys(self.trace.calls[k].unit for k in self.calls):
            forwards[unit] = torch.compile(forwards[unit], *args, **kwargs)


def _shape_of(t: Tensor) -> Shape:
    return Shape(tuple(t.shape), t.dtype, gradient=False)


class _StageEnd(BaseException):
    """Ends the forward after the last call of a stage. No `except Exception` of a model catches it."""


class _StageRun:
    """A forward in which the calls of one stage run.

    Args:
        values: the outputs of calls that were received, and those that were computed so far and are to be sent.
    """

    def __init__(self, stage: CallStage, values: dict[Output, Tensor], device: torch.device) -> None:
        self.values = values
        self._stage, self._traced, self._device = stage, stage.trace.calls, device
        self._number, self._is_inside = 0, False
        self._draws = current_draws() if stage.trace.draws and stage.training else None

    def drawing(self) -> AbstractContextManager[None]:
        """Return a context that leaves torch's generators as they were before this forward, if the forward draws numbers."""
        if self._draws is None:
            return nullcontext()
        devices = [self._device] if self._device.type != "cpu" else []
        kind = self._device.type if devices else "cuda"  # without devices any type will do
        return torch.random.fork_rng(devices=devices, device_type=kind)

    def begin(self) -> None:
        """Seed torch's generators for what the module computes before its first call."""
        self._seed(-1, _AFTER_CALL)

    def call(self, unit: str, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the unit if the call belongs to the stage; otherwise return what the stage has in the place of the result.

        Raises _StageEnd after the last call of the stage, unless it is the last one of the model. Raises ChimeraError E853 if
        the traced forward calls another unit here, or none, or if this call returns another structure.
        """
        if self._is_inside:  # a unit that another one calls is part of it
            return forward(*args, **kwargs)
        number, calls = self._number, self._stage.calls
        if number == len(self._traced) or self._traced[number].unit != unit:
            raise self._unexpected(f"calls {unit}")
        self._number += 1
        if number < calls.start:
            return self._in_place_of(number)
        self._seed(number, _IN_CALL)
        self._is_inside = True
        result = forward(*args, **kwargs)
        self._is_inside = False
        leaves, structure = flatten(result)
        traced = self._traced[number]
        if structure != traced.structure:
            message = f"{traced.name} returns {structure}; when it was traced, it returned {traced.structure}"
            raise refuse("E853", message, help=_SAME_CALLS)
        for output in self._stage.sent:
            if output.call == number:
                self.values[output] = leaves[output.leaf]
        if number == calls.stop - 1 and calls.stop < len(self._traced):
            raise _StageEnd
        self._seed(number, _AFTER_CALL)
        # The model changes these leaves in place afterwards. It gets copies, because `values` must stay as they are.
        written = {s.leaf for s in self._stage.trace.written if isinstance(s, Output) and s.call == number}
        if not written:
            return result
        return pytree.tree_unflatten([t.clone() if k in written else t for k, t in enumerate(leaves)], structure)

    def check_end(self) -> None:
        """Raise ChimeraError E853 unless all calls of the traced forward were made."""
        if self._number < len(self._traced):
            raise self._unexpected("ends")

    def _in_place_of(self, number: int) -> Any:
        """Return in the place of an earlier stage's call what was received of its result, and placeholders for the rest."""
        call = self._traced[number]
        leaves = []
        for k, leaf in enumerate(call.leaves):
            output = Output(number, k)
            is_written = output in self._stage.trace.written
            if not isinstance(leaf, Shape):
                leaves.append(leaf)
            elif output not in self.values:
                leaves.append(self._stage.placeholder(leaf, self._device, is_written))
            else:
                leaves.append(self.values[output].clone() if is_written else self.values[output])
        self._seed(number, _AFTER_CALL)
        return pytree.tree_unflatten(leaves, call.structure)

    def _seed(self, call: int, place: int) -> None:
        """Seed torch's generators for a call, or for what the module computes after it.

        Args:
            call: the number of the call; -1, with _AFTER_CALL, for what is computed before the first one.
            place: _IN_CALL or _AFTER_CALL.
        """
        if self._draws is not None:
            draws = self._draws
            seed = seed_from(draws.seed, draws.iteration, *draws.samples, call, place)
            torch.default_generator.manual_seed(seed)
            if self._device.type != "cpu":
                torch.get_device_module(self._device).manual_seed(seed)

    def _unexpected(self, what: str) -> Exception:
        """Return the error E853 for a forward that does `what` where the traced one makes another call, or ends."""
        traced, number = self._traced, self._number
        expected = f"called {traced[number].name}" if number < len(traced) else "ended"
        after = f"after {traced[number - 1].name}" if number else "at first"
        return refuse(
            "E853",
            f"{after} the model {what}; when it was traced, it {expected}",
            help=_SAME_CALLS,
        )
