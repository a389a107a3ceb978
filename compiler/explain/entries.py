"""The texts about error codes, read from one .toml file for each hundred codes.

`title` of a file says what its findings are about. For every code the file has a table:

    title      what is wrong, in one line
    why        its causes, and the reason for the rule
    base       a file of examples/, which has no mistake; left out if the example is only a command
    right      changes of this file that make the corrected example: [old, new] or [old, new, times], where `new` is repeated
    wrong      changes of the corrected example that make the wrong one, in the same form
    run        the command of the wrong example; if it is left out, `chimerac BASE`
    rerun      the command of the corrected example; if it is left out, that of `run`
    corrected  in words, what is right in the corrected example
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

Change = Sequence[Any]  # [old, new] or [old, new, times]


@dataclass(frozen=True, slots=True)
class Entry:
    """The texts about one code: code, title, why, run, rerun and corrected as in the .toml file.

    Attributes:
        file: `base`, '' if it is left out.
        changes: those that make the corrected example from this file, and those that make the wrong example from the corrected
            one.
    """

    code: str
    title: str
    why: str
    file: str
    changes: tuple[Sequence[Change], Sequence[Change]]
    run: str
    rerun: str
    corrected: str

    @property
    def right(self) -> str:
        """Return the text of the corrected example; '' if the example is only a command."""
        text = _here().joinpath("examples", self.file).read_text(encoding="utf-8") if self.file else ""
        return changed(text, self.changes[0])

    @property
    def wrong(self) -> str:
        """Return the text of the wrong example; '' if the example is only a command."""
        return changed(self.right, self.changes[1])


@dataclass(frozen=True, slots=True)
class Hundred:
    """The codes with the same first digit, and their common subject."""

    title: str
    entries: tuple[Entry, ...]


@cache
def hundreds() -> tuple[Hundred, ...]:
    """Return the texts of all codes, in their order."""
    files = (f for f in _here().iterdir() if f.name.endswith(".toml"))
    return tuple(_hundred(tomllib.loads(f.read_text(encoding="utf-8"))) for f in sorted(files, key=lambda f: f.name))


@cache
def entries() -> Mapping[str, Entry]:
    """Return the texts, indexed by code."""
    return {e.code: e for hundred in hundreds() for e in hundred.entries}


def _here() -> Traversable:
    """Return the folder of the .toml files."""
    return resources.files("chimerac.compiler.explain")


def _hundred(read: dict[str, Any]) -> Hundred:
    """Return the texts of one file.

    Args:
        read: what tomllib has read from it.
    """
    title = read.pop("title")
    return Hundred(title, tuple(_entry(code, **read[code]) for code in sorted(read)))


def _entry(
    code: str,
    *,
    title: str,
    why: str,
    corrected: str,
    base: str = "",
    right: Sequence[Change] = (),
    wrong: Sequence[Change] = (),
    run: str = "",
    rerun: str = "",
) -> Entry:
    run = (run or f"chimerac {base}").strip()
    return Entry(code, title, " ".join(why.split()), base, (right, wrong), run, rerun.strip() or run, corrected)


def changed(text: str, changes: Sequence[Change]) -> str:
    """Return the text after these changes, one after another.

    Each replaces the first `old`, which must be there, by `new`, or by `new` repeated `times` times.
    """
    for old, new, *times in changes:
        assert old in text, old
        text = text.replace(old, new * (times[0] if times else 1), 1)
    return text
