"""Checkpoints of a pipeline and its optimizer. They can be loaded under any other schedule, depth and width.

    save_checkpoint("run/last", pipe, optimizer, iteration=100, scheduler=scheduler)
    state = load_checkpoint("run/last", pipe, optimizer, scheduler=scheduler)
    start = state["iteration"]

Tensors are in the format of torch.distributed.checkpoint, under the names of the full model. docs/checkpoints.md is the guide.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.pipeline import checkpoint_files as files
from chimerac.interpreter.pipeline.background import BackgroundThread, RanksFailedError
from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.pipeline.checkpoint_state import (
    MismatchError,
    Names,
    local_state,
    merged_settings,
    needed_places,
    optimizer_settings,
    restore_function,
    restore_generators,
)
from chimerac.interpreter.pipeline.checkpoint_tensors import Place, TensorReader, TensorWriter
from chimerac.interpreter.transport import Transport

PathLike = str | os.PathLike[str]
_SHOWN = 3  # how many differences between two models a message shows


def save_checkpoint(path: PathLike, pipeline: BoundPipeline, optimizer: Optimizer | None = None, **state: Any) -> None:
    """Write a checkpoint to the folder `path`; called by all ranks together, between two iterations.

    Args:
        optimizer: of parameters of this rank; it keeps its state per parameter, as AdamW and SGD do. None if this rank has no
            optimizer, or if none is to be saved.
        state: further state to save, the same on all ranks: objects with a `state_dict`, such as a scheduler, and numbers,
            texts, tensors, lists and dicts of them.

    A checkpoint at `path` is replaced when the new one is complete. Raises ChimeraError E830 on all ranks if the checkpoint
    cannot be written. Raises TypeError for a state, or a setting of the optimizer, that cannot be saved, and ValueError if the
    optimizer has a parameter that the pipeline does not have.
    """
    start_save(path, pipeline, optimizer, state).finish()


def load_checkpoint(
    path: PathLike, pipeline: BoundPipeline, optimizer: Optimizer | None = None, **state: Any
) -> dict[str, Any]:
    """Load a checkpoint into the pipeline and the optimizer, and return the further state that was saved in it.

    Called by all ranks together.

    Args:
        state: objects with a `load_state_dict`, by the names with which they were saved; they are not in the result.

    The optimizer gets its saved state and its saved settings, such as the learning rate. If the program and the type of device
    are the same, torch's random generators get their saved states too.

    Raises ChimeraError on all ranks: E831 for a checkpoint of another model or optimizer, E832 for one that cannot be read.
    Raises KeyError for a state that the checkpoint does not have, and for the optimizer TypeError and ValueError as
    `save_checkpoint`. In all these cases nothing is loaded.
    """
    loaded = open_checkpoint(path, pipeline).load(pipeline, optimizer, needed=state)
    for name, item in state.items():
        item.load_state_dict(loaded.pop(name))
    return loaded


class PendingSave:
    """A save that has been started; `finish` completes it.

    Args:
        path: of the checkpoint.
    """

    def __init__(
        self, path: Path, transport: Transport, writer: TensorWriter, info: Mapping[str, Any], thread: BackgroundThread
    ) -> None:
        self.path = path
        self._transport, self._writer, self._info, self._thread = transport, writer, info, thread

    def is_written(self) -> bool:
        """Return whether the writing has ended on all ranks, completely or with an error; called by all ranks together."""
        return self._thread.has_ended(self._transport)

    def finish(self) -> None:
        """Wait until all ranks have written, and complete the checkpoint; called by all ranks together.

        Raises ChimeraError E830 on all ranks if it could not be written.
        """
        try:
            by_rank = [json.loads(text) for text in self._thread.results(self._transport)]

            def commit() -> str:
                if self._transport.rank == 0:
                    self._writer.finish([written for written, _ in by_rank])
                    checksums = {name: checksum for _, by_file in by_rank for name, checksum in by_file.items()}
                    files.commit(self.path, self._info, checksums)
                return ""

            BackgroundThread(commit).results(self._transport)
        except RanksFailedError as error:
            raise _write_error(self.path, error, self._transport) from None


def start_save(
    path: PathLike,
    pipeline: BoundPipeline,
    optimizer: Optimizer | None,
    state: Mapping[str, Any],
    info: Mapping[str, Any] | None = None,
    copy: bool = False,
) -> PendingSave:
    """Start a save, which a thread of each rank continues; called by all ranks together.

    Args:
        info: further fields of checkpoint.json, if any.
        copy: copy the values first, so that they may change before `finish`.

    The other arguments and the errors are those of `save_checkpoint`.
    """
    path, rank, transport = Path(os.path.abspath(path)), pipeline.rank, pipeline.transport
    state_bytes = _serialized(state)
    pipeline.average_buffers()
    names = Names(pipeline)
    tensors, settings = local_state(pipeline, optimizer, names), optimizer_settings(optimizer, names)
    folder = files.partial_folder(path)
    try:

        def prepare() -> str:
            if rank == 0:
                files.prepare(path)
            return ""

        BackgroundThread(prepare).results(transport)
        writer = TensorWriter(tensors, folder, rank)
        by_rank = [json.loads(text) for text in transport.all_gather(json.dumps([writer.description(), settings]))]
        BackgroundThread(lambda: writer.plan([description for description, _ in by_rank])).results(transport)
    except RanksFailedError as error:
        raise _write_error(path, error, transport) from None
    if copy:
        writer.copy()

    def write() -> str:
        if rank == 0:
            files.write(folder / files.STATE, state_bytes)
        written = writer.write()
        file_names = {file for _, _, file, _, _ in written}
        checksums = {name: files.checksum(folder / name) for name in file_names}
        return json.dumps([written, checksums])

    header = pipeline.program.header
    all_info = {
        "model": pipeline.name,
        "parameters": _parameter_count(pipeline),
        "schedule": header.schedule,
        "schedule_parameters": dict(header.parameters),
        "depth": header.ranks,
        "width": header.width,
        "program": pipeline.program.digest,
        "iteration": pipeline.iteration,
        "torch": torch.__version__,
        "optimizer": merged_settings(settings_of_rank for _, settings_of_rank in by_rank),
        **(info or {}),
    }
    return PendingSave(path, transport, writer, all_info, BackgroundThread(write))


class OpenedCheckpoint:
    """A checkpoint whose files have been checked.

    Args:
        path: of its folder.
        info: the content of checkpoint.json.
    """

    def __init__(self, path: Path, info: dict[str, Any], reader: TensorReader) -> None:
        self.path, self.info = path, info
        self._reader = reader

    def load(
        self, pipeline: BoundPipeline, optimizer: Optimizer | None, with_settings: bool = True, needed: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Load the checkpoint, and return the further state that was saved in it; called by all ranks together.

        Args:
            with_settings: whether the optimizer also gets its saved settings, such as the learning rate.
            needed: names that the further state must have.

        Raises KeyError if it lacks one of them, and the other errors of `load_checkpoint`.
        """
        transport, info, program = pipeline.transport, self.info, pipeline.program
        self._check_model(pipeline)
        names = Names(pipeline)
        state: dict[str, Any] = {}
        places = needed_places(self._reader, pipeline, optimizer, names)
        values: dict[Place, Any] = {}

        def read() -> str:
            values.update(self._reader.read(places))
            state.update(torch.load(self.path / files.STATE, weights_only=True))
            return ""

        _wait_for_readers(self.path, BackgroundThread(read), transport)
        if missing := [name for name in needed if name not in state]:
            path = short_path(self.path)
            raise KeyError(f"the checkpoint {path} has no state {missing[0]}; it has {', '.join(state) or 'none'}")
        reason, restore, failure = "", None, None
        try:
            restore = restore_function(values, pipeline, optimizer, names, info["optimizer"], with_settings)
        except MismatchError as error:
            reason = str(error)
        except Exception as error:  # the other ranks would wait for this one
            reason, failure = str(error), error
        reasons = [text for text in transport.all_gather(reason) if text]
        if failure is not None:
            raise failure
        if reasons or restore is None:
            raise files.mismatch(self.path, reasons[0])
        restore()
        if (info["program"], info["depth"] * info["width"]) == (program.digest, program.world):
            restore_generators(values, pipeline)
        pipeline.iteration = info["iteration"]
        return state

    def _check_model(self, pipeline: BoundPipeline) -> None:
        """Raise ChimeraError E831 on all ranks if the saved model differs from the whole model of this run.

        The names and the shapes of parameters and buffers are compared. Of extra state only the names are compared.
        """
        expected: dict[str, list[int] | None] = {}
        for text in pipeline.transport.all_gather(json.dumps(pipeline.weights.shapes())):
            expected |= json.loads(text)
        saved = {place[1]: self._reader.shape(place) for place in self._reader.places("model")}
        saved |= dict.fromkeys(name for name, shape in expected.items() if shape is None and name in saved)
        if saved == expected:
            return
        notes = [
            f"{name} has the shape {saved[name]}, and here {shape}"
            for name, shape in expected.items()
            if name in saved and saved[name] != shape
        ]
        notes += [f"it has no {name}" for name in expected if name not in saved]
        notes += [f"this model has no {name}" for name in saved if name not in expected]
        if len(notes) > _SHOWN:
            hidden = len(notes) - _SHOWN
            notes[_SHOWN:] = ["1 more difference" if hidden == 1 else f"{hidden} more differences"]
        own = f"{pipeline.name} with {_parameter_count(pipeline):,} parameters"
        raise files.mismatch(
            self.path,
            f"it has the model {self.info['model']} with {self.info['parameters']:,} parameters, and this run {own}",
            notes=tuple(notes),
        )


def open_checkpoint(path: PathLike, pipeline: BoundPipeline) -> OpenedCheckpoint:
    """Check the files of a checkpoint, and return it; called by all ranks together.

    Raises ChimeraError E832 on all ranks if it cannot be read.
    """
    folder = files.existing_folder(Path(os.path.abspath(path)))
    opened: list[OpenedCheckpoint] = []

    def read() -> str:
        info = files.read_info(folder)
        files.verify(folder, info, pipeline.rank, pipeline.transport.world)
        opened.append(OpenedCheckpoint(folder, info, TensorReader(folder)))
        return ""

    _wait_for_readers(folder, BackgroundThread(read), pipeline.transport)
    return opened[0]


def _wait_for_readers(path: Path, thread: BackgroundThread, transport: Transport) -> None:
    """Wait until all ranks have read the checkpoint. Raises ChimeraError E832 on all ranks if one could not."""
    try:
        thread.results(transport)
    except RanksFailedError as error:
        reason = error.reason.removeprefix(f"{files.UnreadableError.__name__}: ")
        raise refuse(
            "E832",
            f"{transport.named([error.rank])} cannot read the checkpoint {short_path(path)}: {reason}",
            help="give another checkpoint",
        ) from None


def _write_error(path: Path, error: RanksFailedError, transport: Transport) -> ChimeraError:
    """Remove the files of a failed save, because they may fill the disk, and return the finding E830.

    Called by all ranks together.
    """

    def remove() -> str:
        if transport.rank == 0:
            with suppress(OSError):
                files.remove(files.partial_folder(path))
        return ""

    BackgroundThread(remove).results(transport)
    return refuse(
        "E830",
        f"{transport.named([error.rank])} cannot write the checkpoint {short_path(path)}: {error.reason}",
        help="give a folder that all hosts see and may write to, on a disk with enough space",
    )


def _parameter_count(pipeline: BoundPipeline) -> int:
    """Return the number of parameters of the whole model, each once; called by all ranks together."""
    count = torch.tensor([sum(p.numel() for p in pipeline.gradient.counted_parameters())])
    pipeline.transport.all_reduce(count)
    return int(count[0])


def _serialized(state: Mapping[str, Any]) -> bytes:
    """Return the bytes that torch.save writes for the further state.

    Raises TypeError for a value that cannot be saved, or could not be loaded again.
    """
    values = {name: item.state_dict() if hasattr(item, "state_dict") else item for name, item in state.items()}
    for name, value in values.items():
        stream = io.BytesIO()
        try:
            torch.save(value, stream)
            stream.seek(0)
            torch.load(stream, weights_only=True)
        except Exception as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise TypeError(
                f"the state {name}, of type {type(value).__name__}, cannot be saved: objects with a state_dict, numbers, "
                f"texts, tensors, lists and dicts of them can ({why})"
            ) from None
    stream = io.BytesIO()
    torch.save(values, stream)
    return stream.getvalue()
