"""Tensors of all ranks in one folder, in the format of torch.distributed.checkpoint (DCP).

DCP's planner and its writer do the work. Ranks exchange their plans over the transport of the pipeline, so that the loopback
writes the same files as real ranks. A tensor that several ranks have is written by one of them.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter  # type: ignore[attr-defined]
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

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
        self._folder, self._rank = folder, rank
        self._planner, self._storage = _Planner(), FileSystemWriter(folder, sync_files=True)
        self._planner.set_up_planner(dict(state), self._storage.storage_meta(), rank == 0)
        self._storage.set_up_storage_writer(rank == 0)

    def local_plan(self) -> str:
        """Return what this rank could write."""
        return _to_text(self._planner.create_local_plan())

    def global_plan(self, plans: Sequence[str]) -> str:
        """Return what each rank is to write; called by rank 0 with the local plans."""
        found, self._metadata = self._planner.create_global_plan([_from_text(plan) for plan in plans])
        return _to_text(self._storage.prepare_global_plan(found))

    def start(self, global_plan: str, copied: bool) -> None:
        """Take over the plan. copied: copy the values to the host, so that they may change while they are written."""
        self._plan = self._planner.finish_plan(_from_text(global_plan)[self._rank])
        for item in self._plan.items if copied else ():
            value = self._planner.lookup_object(item.index)
            self._planner.copies[item.index.fqn] = value.to("cpu", copy=True) if isinstance(value, Tensor) else value

    def write(self) -> tuple[str, list[str]]:
        """Write this rank's values. Return where each of them is, and the names of the files."""
        found = self._storage.write_data(self._plan, self._planner).value()
        return _to_text(found), sorted({result.storage_data.relative_path for result in found})

    def finish(self, written: Sequence[str]) -> None:
        """Write the file `.metadata`, by which readers find the values; called by rank 0 with what all ranks returned."""
        results = [_from_text(text) for text in written]
        for found in results:
            for name in {result.storage_data.relative_path for result in found}:
                if not (self._folder / name).exists():
                    raise FileNotFoundError(f"rank 0 does not see the file {name} that another rank has written")
        self._storage.finish(self._metadata, results)


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


def _to_text(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _from_text(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))
