"""Tensors of all ranks in one folder, in the format of torch.distributed.checkpoint (DCP).

DCP's planners, its writer and its reader do the work. DCP alone would let the ranks exchange plans with collectives of
torch.distributed. Here they exchange descriptions of their values over the transport of the pipeline. So the loopback writes
the same files as real ranks. A tensor that several ranks have is written by one of them.
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

# A value that was written: its name, DCP's offset of it in the full tensor (None if it is not a tensor), its file, and its
# first byte and its length in this file.
WrittenValue = tuple[str, list[int] | None, str, int, int]
Place = tuple[str, ...]  # the keys that lead to a value in nested mappings, such as ("model", "head.weight")


class _Planner(DefaultSavePlanner):
    """The planner of one rank's save.

    Attributes:
        copies: of values that this rank writes, by name. They are written instead of the values, which may change meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[str, Any] = {}

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the value to write."""
        return self.copies[index.fqn] if index.fqn in self.copies else super().lookup_object(index)


class TensorWriter:
    """Writes the values of one rank.

    Args:
        state: the values of this rank, as nested mappings.
        folder: it exists, and all ranks see it.

    The methods are called in the order in which they are defined; `copy` may be left out, and only rank 0 calls `finish`.
    """

    def __init__(self, state: Mapping[str, Any], folder: Path, rank: int) -> None:
        self._folder, self._rank, self._state = folder, rank, dict(state)
        self._planner, self._storage = _Planner(), FileSystemWriter(folder, sync_files=True)
        self._planner.set_up_planner(self._state, self._storage.storage_meta(), rank == 0)
        self._storage.set_up_storage_writer(rank == 0)

    def description(self) -> str:
        """Return, as JSON, the places of this rank's values, and the shape and dtype of each tensor."""
        return json.dumps([[place, *_shape_and_dtype(value)] for place, value in _leaves(self._state)])

    def plan(self, descriptions: Sequence[str]) -> str:
        """Decide which rank writes which values, and return as text how many this rank writes. All ranks decide the same.

        Args:
            descriptions: of the values of all ranks, by rank.
        """
        plans = [self._planner_of(json.loads(text)).create_local_plan() for text in descriptions]
        global_plan, self._metadata = self._planner.create_global_plan(plans)
        self._plan = self._planner.finish_plan(self._storage.prepare_global_plan(global_plan)[self._rank])
        return str(len(self._plan.items))

    def copy(self) -> None:
        """Copy to the CPU the values that this rank writes, so that the originals may change while the copies are written."""
        for item in self._plan.items:
            value = self._planner.lookup_object(item.index)
            self._planner.copies[item.index.fqn] = value.to("cpu", copy=True) if isinstance(value, Tensor) else value

    def write(self) -> list[WrittenValue]:
        """Write the values that `plan` gave to this rank, and return where each of them is."""
        results = self._storage.write_data(self._plan, self._planner).value()
        return [_to_written(result) for result in results]

    def finish(self, by_rank: Sequence[Sequence[WrittenValue]]) -> None:
        """Write the file `.metadata`, which says where each value is; called on rank 0.

        Args:
            by_rank: what each rank has written.

        Raises FileNotFoundError if rank 0 does not see a file of another rank.
        """
        for file in {file for written in by_rank for _, _, file, _, _ in written}:
            if not (self._folder / file).exists():
                raise FileNotFoundError(f"rank 0 does not see the file {file} that another rank has written")
        self._storage.finish(self._metadata, [[_from_written(value) for value in written] for written in by_rank])

    def _planner_of(self, description: Sequence[Sequence[Any]]) -> DefaultSavePlanner:
        """Return the planner of a rank whose values have this description. Its tensors are on the meta device."""
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
    """Reads the values of a folder. Raises the errors of DCP, of pickle and of the file system if the folder is damaged."""

    def __init__(self, folder: Path) -> None:
        self._storage = FileSystemReader(folder)
        self._metadata: Metadata = self._storage.read_metadata()
        self._names: dict[Place, str] = {tuple(place): name for name, place in self._metadata.planner_data.items()}

    def places(self, *start: str) -> list[Place]:
        """Return the places that begin with these keys."""
        return [place for place in self._names if place[: len(start)] == start]

    def shape(self, place: Place) -> list[int] | None:
        """Return the shape of a tensor; None for another value."""
        metadata = self._metadata.state_dict_metadata[self._names[place]]
        return list(metadata.size) if isinstance(metadata, TensorStorageMetadata) else None

    def read(self, places: Sequence[Place]) -> dict[Place, Any]:
        """Return the values of these places, by place. Tensors are on the CPU."""
        values: dict[str, Any] = {}
        for place in places:
            metadata = self._metadata.state_dict_metadata[self._names[place]]
            if isinstance(metadata, TensorStorageMetadata):
                values[self._names[place]] = torch.empty(metadata.size, dtype=metadata.properties.dtype)
            else:
                values[self._names[place]] = None
        # These are the calls of dcp.load in one process. Without torch.distributed, dcp.load itself would print a warning. The
        # names are flat already. With either option the planner would put values other than tensors into a dict of its own.
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
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


def _shape_and_dtype(value: Any) -> tuple[list[int] | None, str | None]:
    """Return the shape and the name of the dtype of a tensor; for another value, return None for both."""
    return (list(value.shape), str(value.dtype).removeprefix("torch.")) if isinstance(value, Tensor) else (None, None)


def _to_written(result: WriteResult) -> WrittenValue:
    """Return a result of DCP as values that can be written as JSON."""
    index, info = result.index, result.storage_data
    offset = None if index.offset is None else list(index.offset)
    return index.fqn, offset, info.relative_path, info.offset, info.length


def _from_written(value: WrittenValue) -> WriteResult:
    """Return the result of DCP that `_to_written` made into this value."""
    name, offset, path, start, length = value
    index = MetadataIndex(name, None if offset is None else torch.Size(offset))
    return WriteResult(index, length, _StorageInfo(path, start, length))
