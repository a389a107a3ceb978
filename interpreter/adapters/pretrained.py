"""Pretrained weights in safetensors files: each stage reads only what its own tensors are made from.

When the model is made, the names and shapes of the tensors in the files are compared with those of the whole model, except the
shapes of tensors that are converted. So files that do not fit are refused on every rank, before any of them waits for another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason

Shapes = Mapping[str, tuple[int, ...]]  # by the names of tensors


@dataclass
class Entry:
    """Where the values of a tensor of a model are in files.

    Attributes:
        keys: the names of the tensors there.
        convert: a function from these tensors to tensors of the model by name; None where there is one key, whose tensor is
            that of the model.
    """

    keys: list[str]
    convert: Callable[[Sequence[Tensor]], Mapping[str, Tensor]] | None = None


class Folder:
    """The tensors of a folder with safetensors: model.safetensors, or shards and model.safetensors.index.json.

    Raises ChimeraError E855 if there are none, if the index or model.safetensors cannot be read, and if a shard is missing. The
    methods raise E855 for a file that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        index, single = path / "model.safetensors.index.json", path / "model.safetensors"
        self.path = path
        self._files: dict[str, Path] = {}
        if index.is_file():
            try:
                files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                self._files = {key: path / name for key, name in files.items()}
            except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise _unreadable(index, error) from None
        elif single.is_file():
            self._files = dict.fromkeys(self._keys_of(single), single)
        else:
            raise refuse(
                "E855",
                f"{path} has no model.safetensors and no model.safetensors.index.json",
                help="save the model with save_pretrained, which writes safetensors; without weights give its config.json",
            )
        if missing := next((file for file in self._files.values() if not file.is_file()), None):
            raise refuse("E855", f"{index} names {missing.name}, which is not there", help="copy all files of the model")

    @property
    def keys(self) -> list[str]:
        """Return the names of all tensors in the files, as the index has them if there is one."""
        return list(self._files)

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a tensor, from the header of its file."""
        with self._opened(self._files[key]) as file:
            return tuple(file.get_slice(key).get_shape())

    def read(self, key: str) -> Tensor:
        """Return a tensor, on the CPU."""
        with self._opened(self._files[key]) as file:
            tensor: Tensor = file.get_tensor(key)
            return tensor

    def _keys_of(self, path: Path) -> list[str]:
        with self._opened(path) as file:
            return list(file.keys())

    @staticmethod
    @contextmanager
    def _opened(path: Path) -> Iterator[Any]:
        from safetensors import SafetensorError, safe_open  # a package of the extra `huggingface`

        try:
            with safe_open(str(path), framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise _unreadable(path, error) from None


class Weights:
    """The weights of a model in a folder.

    Args:
        entries: by name in the model. A tensor with several names needs an entry for only one of them.
    """

    def __init__(self, folder: Folder, entries: Mapping[str, Entry]) -> None:
        self._folder, self._entries = folder, entries

    def check(
        self, shapes: Shapes, names: Mapping[str, Sequence[str]], new: Sequence[str] = (), unused: Sequence[str] = ()
    ) -> None:
        """Raise ChimeraError E855 unless the files have exactly the tensors of a model, with their shapes.

        The shapes of tensors that are converted are not checked.

        Args:
            shapes, names: by the first name of each tensor, its shape and all its names.
            new: the first names of tensors that may be missing and then have initial values.
            unused: the names of further tensors that the files may have.

        In `new` and `unused` a * matches any text.
        """
        known = {name for found in names.values() for name in found}
        missing = [first for first in shapes if self._entry(names[first]) is None and not _any_matches(first, new)]
        extra = [name for name in self._entries if name not in known and not _any_matches(name, unused)]
        if missing:
            raise self._refused(f"tensors of the model are missing, {len(missing)} in all: {_shown(missing)}", "new", missing)
        if extra:
            raise self._refused(f"tensors are not in the model, {len(extra)} in all: {_shown(extra)}", "unused", extra)
        for first, shape in shapes.items():
            entry = self._entry(names[first])
            if entry is not None and entry.convert is None and (found := self._folder.shape(entry.keys[0])) != shape:
                message = f"{self._folder.path}: {entry.keys[0]} has the shape {list(found)}, and in the model {list(shape)}"
                raise refuse("E855", message, help="give the config.json that belongs to these weights")

    def load(self, tensors: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]) -> None:
        """Set the values of these tensors of a model. A tensor without an entry keeps its value.

        Args:
            tensors, names: by the first name of each tensor, the tensor and all its names in the model.

        Raises ChimeraError E855 for a file that cannot be read.
        """
        # By the id of an entry, what its `convert` has returned. Only the last one is kept: tensors of experts are large.
        converted: dict[int, Mapping[str, Tensor]] = {}
        with torch.no_grad():
            for first, tensor in tensors.items():
                entry = self._entry(names[first])
                if entry is None:
                    continue
                if entry.convert is None:
                    tensor.copy_(self._folder.read(entry.keys[0]))
                    continue
                if id(entry) not in converted:
                    converted = {id(entry): entry.convert([self._folder.read(key) for key in entry.keys])}
                tensor.copy_(next(converted[id(entry)][name] for name in names[first] if name in converted[id(entry)]))

    def _entry(self, names: Sequence[str]) -> Entry | None:
        return next((self._entries[name] for name in names if name in self._entries), None)

    def _refused(self, what: str, argument: str, names: Sequence[str]) -> Exception:
        """Return the error E855.

        Args:
            argument: `new` or `unused`, which allows tensors with these names.
        """
        pattern = re.sub(r"\..*", ".*", names[0])
        means = "start with initial values" if argument == "new" else "are left out"
        help = f"give the class that was saved, or {argument}=['{pattern}'] in Python if these {means}"
        return refuse("E855", f"{self._folder.path}: {what}", help=help)


def _unreadable(path: Path, error: Exception) -> ChimeraError:
    message = f"the weights {path} cannot be read: {reason(error)}"
    return refuse("E855", message, help="copy the files of the model again, or save it again with save_pretrained")


def _any_matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
