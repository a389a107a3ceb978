"""Tensors of all ranks in one folder, in the format of torch.distributed.checkpoint (DCP).

DCP's planner and its writer do the work. Ranks tell each other over the transport of the pipeline what they have, so that the
loopback writes the same files as real ranks. A tensor that several ranks have is written by one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter  # type: ignore[attr-defined]
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult

# A value that was written: its name, its offset in a tensor that was cut, and its file with the place and the length there.
Written = tuple[str, list[int] | None, str, int, int]
Place = tuple[str, ...]  # where a value is in the nested mapping, such as ("model", "head.weight")


class _Planner(DefaultSavePlanner):
    """The planner of one rank's save. copies: of the values that this rank writes, where they may change meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[str, Any] = {}

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return a value of the state."""
        return self.copies[index.fqn] if index.fqn in self.copies else super().lookup_object(index)


class TensorWriter:
    """One rank's part in writing. state: this rank's values, as nested mappings; folder: exists, and all ranks see it."""

    def __init__(self, state: Mapping[str, Any], folder: Path, rank: int) -> None:
        self._folder, self._rank, self._state = folder, rank, dict(state)
        self._planner, self._storage = _Planner(), FileSystemWriter(folder, sync_files=True)
        self._planner.set_up_planner(self._state, self._storage.storage_meta(), rank == 0)
        self._storage.set_up_storage_writer(rank == 0)

    def description(self) -> str:
        """Return the places of this rank's values, with the shape and dtype of each tensor."""
        return json.dumps([[place, *_spec(value)] for place, value in _leaves(self._state)])

    def plan(self, descriptions: Sequence[str]) -> str:
        """Decide which rank writes which values, and return how many this one does. All ranks come to the same result.

        descriptions: of the values of all ranks.
        """
        plans = [self._planner_of(json.loads(text)).create_local_plan() for text in descriptions]
        found, self._metadata = self._planner.create_global_plan(plans)
        self._plan = self._planner.finish_plan(self._storage.prepare_global_plan(found)[self._rank])
        return str(len(self._plan.items))

    def copy(self) -> None:
        """Copy the values that this rank writes to the host, so that they may change while they are written."""
        for item in self._plan.items:
            value = self._planner.lookup_object(item.index)
            self._planner.copies[item.index.fqn] = value.to("cpu", copy=True) if isinstance(value, Tensor) else value

    def write(self) -> list[Written]:
        """Write this rank's values, and return where each of them is."""
        found = self._storage.write_data(self._plan, self._planner).value()
        return [_written(result) for result in found]

    def finish(self, by_rank: Sequence[Sequence[Written]]) -> None:
        """Write the file `.metadata`, by which readers find the values; called by rank 0 with what all ranks have written."""
        for name in {name for written in by_rank for _, _, name, _, _ in written}:
            if not (self._folder / name).exists():
                raise FileNotFoundError(f"rank 0 does not see the file {name} that another rank has written")
        self._storage.finish(self._metadata, [[_result(written) for written in found] for found in by_rank])

    def _planner_of(self, description: Sequence[Sequence[Any]]) -> DefaultSavePlanner:
        """Return a planner of a rank with these values. Its tensors have no memory."""
        state: dict[str, Any] = {}
        for place, shape, dtype in description:
            *outer, last = place
            inner = state
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = None if dtype is None else torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        planner = DefaultSavePlanner()
        planner.set_up_planner(state, self._storage.storage_meta(), is_coordinator=False)
        return planner


class TensorReader:
    """The tensors of a folder. Raises the errors of DCP, of pickle and of the file system if it is damaged."""

    def __init__(self, folder: Path) -> None:
        self._storage = FileSystemReader(folder)
        self._metadata: Metadata = self._storage.read_metadata()
        self._names: dict[Place, str] = {tuple(place): name for name, place in self._metadata.planner_data.items()}

    def places(self, *start: str) -> list[Place]:
        """Return the places of the values that are below this one."""
        return [place for place in self._names if place[: len(start)] == start]

    def shape(self, place: Place) -> list[int] | None:
        """Return the shape of a tensor; None for another value."""
        found = self._metadata.state_dict_metadata[self._names[place]]
        return list(found.size) if isinstance(found, TensorStorageMetadata) else None

    def read(self, places: Sequence[Place]) -> dict[Place, Any]:
        """Return these values, tensors on the CPU."""
        values: dict[str, Any] = {}
        for place in places:
            found = self._metadata.state_dict_metadata[self._names[place]]
            value = torch.empty(found.size, dtype=found.properties.dtype) if isinstance(found, TensorStorageMetadata) else None
            values[self._names[place]] = value
        # The steps of dcp.load for one process, without its warning that there are no others.
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner(values, self._metadata, is_coordinator=True)
        self._storage.set_up_storage_reader(self._metadata, is_coordinator=True)
        local = self._storage.prepare_local_plan(planner.create_local_plan())
        plan = self._storage.prepare_global_plan(planner.create_global_plan([local]))[0]
        self._storage.read_data(planner.finish_plan(plan), planner).wait()
        return {place: values[self._names[place]] for place in places}


def _leaves(state: Mapping[str, Any], place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield the values of nested mappings with their places."""
    for key, value in state.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*place, key))
        else:
            yield (*place, key), value


def _spec(value: Any) -> tuple[list[int] | None, str | None]:
    """Return the shape and the name of the dtype of a tensor; None for another value."""
    return (list(value.shape), str(value.dtype).removeprefix("torch.")) if isinstance(value, Tensor) else (None, None)


def _written(result: WriteResult) -> Written:
    index, info = result.index, result.storage_data
    offset = None if index.offset is None else list(index.offset)
    return index.fqn, offset, info.relative_path, info.offset, info.length


def _result(written: Written) -> WriteResult:
    name, offset, path, start, length = written
    index = MetadataIndex(name, None if offset is None else torch.Size(offset))
    return WriteResult(index, length, _StorageInfo(path, start, length))
