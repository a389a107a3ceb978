"""Checkpoints of a pipeline and its optimizer, which any other schedule, depth and width can load.

    save_checkpoint("run/last", pipe, optimizer, iteration=100, scheduler=scheduler)
    state = load_checkpoint("run/last", pipe, optimizer, scheduler=scheduler)
    start = state["iteration"]

Tensors are in the format of torch.distributed.checkpoint, under the names of the full model. docs/checkpoints.md is the guide.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.pipeline import checkpoint_files as files
from chimerac.interpreter.pipeline.background import Background, RanksFailedError
from chimerac.interpreter.pipeline.checkpoint_state import (
    MisfitError,
    Names,
    merged_settings,
    optimizer_settings,
    places,
    restoration,
    restore_random,
    shapes,
    state_of,
)
from chimerac.interpreter.pipeline.checkpoint_tensors import TensorReader, TensorWriter
from chimerac.interpreter.pipeline.pipeline import Pipeline
from chimerac.interpreter.transport import Transport

PathLike = str | os.PathLike[str]


def save_checkpoint(path: PathLike, pipeline: Pipeline, optimizer: Optimizer | None = None, **state: Any) -> None:
    """Write a checkpoint to the folder `path`; called by all ranks together, between two iterations.

    optimizer: of this rank's parameters, with a state for each of them, as AdamW and SGD have; None on ranks without
    parameters, or if none is to be saved. state: what else to save, the same on all ranks: objects with a `state_dict`, such
    as a scheduler, and numbers, texts, tensors, lists and dicts of them.

    A checkpoint that is there already is replaced when the new one is complete. Raises ChimeraError E830 on all ranks where
    that fails, and TypeError for a state that cannot be saved.
    """
    start_save(path, pipeline, optimizer, state).finish()


def load_checkpoint(path: PathLike, pipeline: Pipeline, optimizer: Optimizer | None = None, **state: Any) -> dict[str, Any]:
    """Load a checkpoint into the pipeline and the optimizer, and return the other state; called by all ranks together.

    state: objects with a `load_state_dict`, by the names with which they were saved; they are not in the result. The optimizer
    gets the state and the settings that it had, such as the learning rate. Random numbers of torch go on where they were if the
    program is the same.

    Raises ChimeraError on all ranks: E831 a checkpoint of another model or optimizer, E832 one that cannot be read. Nothing is
    loaded then.
    """
    opened = open_checkpoint(path, pipeline)
    loaded = opened.load(pipeline, optimizer)
    if missing := [name for name in state if name not in loaded]:
        raise KeyError(f"the checkpoint {short_path(path)} has no state {missing[0]}; it has {', '.join(loaded) or 'none'}")
    for name, item in state.items():
        item.load_state_dict(loaded.pop(name))
    return loaded


class PendingSave:
    """A save that has been started; `finish` completes it. path: of the checkpoint."""

    def __init__(self, path: Path, pipeline: Pipeline, writer: TensorWriter, info: Mapping[str, Any], work: Background) -> None:
        self.path = path
        self._pipeline, self._writer, self._info, self._work = pipeline, writer, info, work

    def is_written(self) -> bool:
        """Return whether `finish` would not have to wait; called by all ranks together."""
        return self._work.has_ended(self._pipeline.transport)

    def finish(self) -> None:
        """Wait until all ranks have written, and complete the checkpoint; called by all ranks together.

        Raises ChimeraError E830 on all ranks if it could not be written.
        """
        transport = self._pipeline.transport
        try:
            by_rank = [json.loads(text) for text in self._work.results(transport)]

            def commit() -> str:
                if transport.rank == 0:
                    self._writer.finish([written for written, _ in by_rank])
                    checksums = {name: found for _, sums in by_rank for name, found in sums.items()}
                    files.commit(self.path, self._info, checksums)
                return ""

            Background(commit).results(transport)
        except RanksFailedError as error:
            raise _not_written(self.path, error, transport) from None


def start_save(
    path: PathLike,
    pipeline: Pipeline,
    optimizer: Optimizer | None,
    state: Mapping[str, Any],
    info: Mapping[str, Any] | None = None,
    copied: bool = False,
) -> PendingSave:
    """Start a save, which a thread goes on with; called by all ranks together.

    info: goes into checkpoint.json. copied: the values are copied first, so that training may go on before `finish`.
    """
    path, rank, transport = Path(os.path.abspath(path)), pipeline.rank, pipeline.transport
    packed = _packed(state)
    pipeline.average_buffers()
    names = Names(pipeline)
    tensors, settings = state_of(pipeline, optimizer, names), optimizer_settings(optimizer, names)
    folder = files.partial(path)
    try:

        def prepare() -> str:
            if rank == 0:
                files.prepare(path)
            return ""

        Background(prepare).results(transport)
        writer = TensorWriter(tensors, folder, rank)
        own = {"values": writer.description(), "settings": settings}
        by_rank = Background(lambda: json.dumps(own)).results(transport)
        values = [json.loads(text)["values"] for text in by_rank]
        Background(lambda: writer.plan(values)).results(transport)
    except RanksFailedError as error:
        raise _not_written(path, error, transport) from None
    if copied:
        writer.copy()

    def write() -> str:
        if rank == 0:
            files.write(folder / files.STATE, packed)
        written = writer.write()
        return json.dumps([written, {name: files.checksum(folder / name) for name in {file for _, _, file, _, _ in written}}])

    header = pipeline.program.header
    found = {
        "model": pipeline.model.name,
        "parameters": _parameters(pipeline),
        "schedule": header.schedule,
        "schedule_parameters": dict(header.parameters),
        "depth": header.ranks,
        "width": header.width,
        "program": pipeline.program.digest,
        "iteration": pipeline.iteration,
        "torch": torch.__version__,
        "optimizer": merged_settings(json.loads(text)["settings"] for text in by_rank),
        **(info or {}),
    }
    return PendingSave(path, pipeline, writer, found, Background(write))


class OpenedCheckpoint:
    """A checkpoint whose files are complete. path: of its folder; info: what checkpoint.json says."""

    def __init__(self, path: Path, info: dict[str, Any], reader: TensorReader) -> None:
        self.path, self.info = path, info
        self._reader = reader

    def load(self, pipeline: Pipeline, optimizer: Optimizer | None, with_settings: bool = True) -> dict[str, Any]:
        """Load it, and return the state that was saved besides; called by all ranks together.

        with_settings: whether the optimizer gets its settings, such as the learning rate, too.
        """
        transport, info, program = pipeline.transport, self.info, pipeline.program
        self._check_model(pipeline)
        names, state, found = Names(pipeline), {}, {}

        def read() -> str:
            found.update(self._reader.read(places(self._reader, pipeline, optimizer, names)))
            state.update(torch.load(self.path / files.STATE, weights_only=True))
            return ""

        _read(self.path, Background(read), pipeline)
        same_program = (info["program"], info["depth"] * info["width"]) == (program.digest, program.world)
        misfit, restore = "", None
        try:
            restore = restoration(found, pipeline, optimizer, names, info["optimizer"], with_settings)
        except MisfitError as error:
            misfit = str(error)
        other = next(filter(None, transport.all_gather(misfit)), None)
        if other is not None or restore is None:
            raise misfits(self.path, other or misfit)
        restore()
        if same_program:
            restore_random(found, pipeline)
        pipeline.iteration = info["iteration"]
        return state

    def _check_model(self, pipeline: Pipeline) -> None:
        """Raise ChimeraError E831 on all ranks unless the names and shapes are those of the whole model."""
        expected: dict[str, list[int]] = {}
        for text in pipeline.transport.all_gather(json.dumps(shapes(pipeline))):
            expected |= json.loads(text)
        saved = {place[1]: self._reader.shape(place) for place in self._reader.places("model")}
        if saved == expected:
            return
        notes = [f"{name} has the shape {saved[name]}, and here {s}" for name, s in expected.items() if saved.get(name, s) != s]
        notes += [f"it has no {name}" for name in expected if name not in saved]
        notes += [f"this model has no {name}" for name in saved if name not in expected]
        here = f"{pipeline.model.name} with {_parameters(pipeline):,} parameters"
        raise misfits(
            self.path,
            f"it has the model {self.info['model']} with {self.info['parameters']:,} parameters, and this run {here}",
            notes=(*notes[:3], *([f"{len(notes) - 3} names more differ"] if len(notes) > 3 else [])),
        )


def open_checkpoint(path: PathLike, pipeline: Pipeline) -> OpenedCheckpoint:
    """Return a checkpoint; called by all ranks together. Raises ChimeraError E832 on all ranks if it cannot be read."""
    folder = files.complete(Path(os.path.abspath(path)))
    found: list[OpenedCheckpoint] = []

    def read() -> str:
        info = files.read_info(folder)
        files.verify(folder, info, pipeline.rank, pipeline.transport.world)
        found.append(OpenedCheckpoint(folder, info, TensorReader(folder)))
        return ""

    _read(folder, Background(read), pipeline)
    return found[0]


def misfits(path: Path, what: str, code: str = "E831", notes: tuple[str, ...] = (), help: str = "") -> ChimeraError:
    """Return the finding that a checkpoint belongs to another run."""
    help = help or "start with the options with which the checkpoint was written, or give another checkpoint"
    return refuse(code, f"the checkpoint {short_path(path)} does not fit this run: {what}", notes=notes, help=help)


def _read(path: Path, work: Background, pipeline: Pipeline) -> None:
    """Wait until all ranks have read. Raises ChimeraError E832 on all ranks if one could not."""
    try:
        work.results(pipeline.transport)
    except RanksFailedError as error:
        reason = error.reason.removeprefix(f"{files.UnreadableError.__name__}: ")
        raise refuse(
            "E832",
            f"rank {error.rank} cannot read the checkpoint {short_path(path)}: {reason}",
            help="give another checkpoint",
        ) from None


def _not_written(path: Path, error: RanksFailedError, transport: Transport) -> ChimeraError:
    """Return the finding, and remove what was written, which may have filled the disk; called by all ranks together."""

    def remove() -> str:
        if transport.rank == 0:
            with suppress(OSError):
                files.remove(files.partial(path))
        return ""

    Background(remove).results(transport)
    return refuse(
        "E830",
        f"rank {error.rank} cannot write the checkpoint {short_path(path)}: {error.reason}",
        help="give a folder that all machines see and may write to, on a disk with enough space",
    )


def _parameters(pipeline: Pipeline) -> int:
    """Return the number of parameters of the whole model, each once; called by all ranks together."""
    count = torch.tensor([sum(p.numel() for p in pipeline.counted_parameters())])
    pipeline.transport.all_reduce(count)
    return int(count[0])


def _packed(state: Mapping[str, Any]) -> bytes:
    """Return the state that is saved besides, as a file of torch.save. Raises TypeError for what cannot be loaded again."""
    values = {name: item.state_dict() if hasattr(item, "state_dict") else item for name, item in state.items()}
    for name, value in values.items():
        stream = io.BytesIO()
        try:
            torch.save(value, stream)
            stream.seek(0)
            torch.load(stream, weights_only=True)
        except Exception as error:
            raise TypeError(
                f"the state {name}, a {type(value).__name__}, cannot be saved: objects with a state_dict, numbers, texts, "
                f"tensors, lists and dicts of them can ({str(error).splitlines()[0]})"
            ) from None
    stream = io.BytesIO()
    torch.save(values, stream)
    return stream.getvalue()
