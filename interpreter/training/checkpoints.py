"""The checkpoints of a run, in one folder: when they are written, which are kept, and from which one a run resumes.

    iteration_00000100/             after 100 iterations
    iteration_00000200/
    .iteration_00000300.partial/    is being written, or was being written when the process was killed

interpreter/pipeline/checkpoint_files.py says what such a folder contains, and which other hidden names there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.pipeline import checkpoint_files as files
from chimerac.interpreter.pipeline.background import BackgroundThread, RanksFailedError
from chimerac.interpreter.training.checkpoint_fit import check_fit, run_facts
from chimerac.interpreter.training.trainer import Trainer

if TYPE_CHECKING:
    from chimerac.interpreter.pipeline.checkpoint import PendingSave

PREFIX = "iteration_"


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """When and where checkpoints are written.

    Attributes:
        folder: where they are written; None: none are written.
        every: iterations from one checkpoint to the next. The end of the run has a checkpoint too; None: only that one.
        keep: how many of the newest ones are kept; None: all.
        asynchronous: whether training continues while one is written.
    """

    folder: Path | None = None
    every: int | None = None
    keep: int | None = None
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run starts.

    Attributes:
        iteration: how many iterations are done already.
        path: of the checkpoint that was loaded; None for a new run.
        messages: for the user.
    """

    iteration: int = 0
    path: Path | None = None
    messages: tuple[str, ...] = ()


class Checkpoints:
    """The checkpoints of one rank's trainer. All ranks call each method together.

    Args:
        data: the identity of the data. A run may resume only from checkpoints with the same identity.
    """

    def __init__(self, trainer: Trainer, settings: CheckpointSettings, data: str) -> None:
        self.trainer, self.settings, self.data = trainer, settings, data
        self._pending: PendingSave | None = None
        self._last: int | None = None  # iteration of the last complete checkpoint

    def resume(self, source: str, restarts: int = 0) -> ResumePoint:
        """Load the checkpoint from which the run resumes, if there is one.

        Args:
            source: the path of a checkpoint; `auto` for the last one of the folder, or for a new run if the folder has none;
                `no` for a new run.
            restarts: how often torchrun has restarted this job. A restarted job resumes from the last checkpoint of the folder,
                whatever `source` is, unless the folder has none.

        With `auto` and in a restarted job, if the last checkpoint of the folder cannot be read, the one before it is loaded,
        and so on.

        Raises ChimeraError on all ranks: E830 if the folder cannot be written, E831 and E834 for a checkpoint that does not fit
        the run, E832 if the folder or all checkpoints from which the run may resume cannot be read, E833 if the folder has
        checkpoints that the run would mix with its own.
        """
        self._prepare_folder()
        in_folder = self._list_folder()
        if source == "auto" or (restarts and in_folder):
            return self._load_first_readable(in_folder)
        path = None if source == "no" else Path(os.path.realpath(source))
        # All checkpoints of the folder but `path` and the earlier ones beside it.
        others = [p for p in in_folder if path is None or p.parent != path.parent or _iteration(p) > _iteration(path)]
        if others and self.settings.folder is not None:
            raise refuse(
                "E833",
                f"{short_path(self.settings.folder)} has checkpoints of another run or of later iterations: "
                f"{', '.join(p.name for p in others[:3])}{', ...' if len(others) > 3 else ''}",
                help="resume from the last one with --resume auto, or give another --save-dir",
            )
        return ResumePoint() if path is None else self._load_first_readable([path])

    def save_if_due(self, done: int, last: bool = False) -> list[str]:
        """Save if a checkpoint is due after `done` iterations, and return messages for the user.

        Args:
            last: whether the run ends now.

        An earlier asynchronous save is completed first if it has been written, if a checkpoint is due, or if the run ends. If a
        save fails, a message says so, and training continues. But if the save at the end of the run fails, ChimeraError E830 is
        raised.
        """
        every = self.settings.every
        is_due = self.settings.folder is not None and (last or (every is not None and done % every == 0))
        messages: list[str] = []
        if self._pending is not None and (is_due or last or self._pending.is_written()):
            messages += self._report_failure(self._finish, last)
        if is_due and done != self._last:
            messages += self._save(done, last=True) if last else self._report_failure(lambda: self._save(done, last=False))
        return messages

    def _save(self, done: int, last: bool) -> list[str]:
        """Write a checkpoint. If checkpoints are asynchronous, only start to write it, unless the run ends now (`last`)."""
        self._start(done)
        return [] if self.settings.asynchronous and not last else self._finish()

    def _report_failure(self, save: Callable[[], list[str]], last: bool = False) -> list[str]:
        """Call a function that saves and return its messages. If it fails, return its findings as messages.

        Args:
            last: whether the run ends now.
        """
        try:
            return save()
        except ChimeraError as error:
            newest = "there is no checkpoint yet" if self._last is None else f"the last checkpoint is of iteration {self._last}"
            then = newest if last else f"training continues, {newest}"
            return [f"error[{d.code}]: {d.message}; {then}" for d in error.diagnostics]

    def _start(self, done: int) -> None:
        """Start to write the checkpoint after `done` iterations."""
        assert self.settings.folder is not None
        from chimerac.interpreter.pipeline.checkpoint import start_save  # 0.9 s, only with checkpoints

        folder, trainer = self.settings.folder, self.trainer
        self._on_rank_0(lambda: files.remove_leftovers(folder, PREFIX))  # a failure is ignored: the save may still succeed
        self._pending = start_save(
            folder / f"{PREFIX}{done:08}",
            trainer.pipeline,
            trainer.optimizer,
            state={"iteration": done},
            info={"iteration": done, "run": run_facts(trainer, self.data)},
            copy=self.settings.asynchronous,
        )

    def _finish(self) -> list[str]:
        """Complete the save that was started, and remove the checkpoints that are not kept any longer."""
        assert self._pending is not None
        pending, self._pending = self._pending, None
        pending.finish()
        self._last = _iteration(pending.path)
        return [f"saved {short_path(pending.path)}", *self._remove_older(pending.path)]

    def _remove_older(self, path: Path) -> list[str]:
        """Remove older checkpoints, so that `keep` remain, of which `path` is the newest. Return a message if that fails."""

        def remove() -> None:
            older = [p for p in _newest_first(path.parent) if _iteration(p) < _iteration(path)]
            for p in older[self.settings.keep - 1 :] if self.settings.keep else ():
                files.remove(files.existing_folder(p))

        reason = self._on_rank_0(remove)
        return [f"older checkpoints could not be removed: {reason}"] if reason else []

    def _on_rank_0(self, work: Callable[[], None]) -> str:
        """Call a function on rank 0. Return the reason for which it failed, or an empty text."""

        def work_of_this_rank() -> str:
            if self.trainer.transport.rank == 0:
                work()
            return ""

        try:
            BackgroundThread(work_of_this_rank).results(self.trainer.transport)
        except RanksFailedError as error:
            return error.reason
        return ""

    def _prepare_folder(self) -> None:
        """Create the folder if it does not exist, and remove from it the incomplete saves of processes that were killed.

        Raises ChimeraError E830 if that fails, or if no file can be written to it.
        """
        folder = self.settings.folder
        if folder is None:
            return

        def prepare() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                files.remove_leftovers(folder, PREFIX)

        if reason := self._on_rank_0(prepare):
            message = f"checkpoints cannot be written to {short_path(folder)}: {reason}"
            raise refuse("E830", message, help="give --save-dir a folder that all hosts see and may write to")

    def _list_folder(self) -> list[Path]:
        """Return the checkpoints of the folder as rank 0 sees them, the newest first; empty if no folder is given.

        Raises ChimeraError E832 if a rank cannot read the folder.
        """
        folder = self.settings.folder
        if folder is None:
            return []
        try:
            thread = BackgroundThread(lambda: "\n".join(p.name for p in _newest_first(folder)))
            names = thread.results(self.trainer.transport)[0]
        except RanksFailedError as error:
            message = f"rank {error.rank} cannot read the folder {short_path(folder)}: {error.reason}"
            raise refuse("E832", message, help="give another --save-dir") from None
        return [Path(os.path.realpath(folder), name) for name in names.split("\n") if name]

    def _load_first_readable(self, candidates: list[Path]) -> ResumePoint:
        """Load the first of these checkpoints that can be read, and return where the run starts; without candidates, a new run.

        Raises ChimeraError E831, E832 and E834 as `resume`.
        """
        if not candidates:
            return ResumePoint()
        from chimerac.interpreter.pipeline.checkpoint import open_checkpoint  # 0.9 s, only with checkpoints

        unreadable: list[ChimeraError] = []
        for path in candidates:
            try:
                opened = open_checkpoint(path, self.trainer.pipeline)
                check_fit(path, opened.info, self.trainer, self.data)
                opened.load(self.trainer.pipeline, self.trainer.optimizer, with_settings=False)
            except ChimeraError as error:
                if error.diagnostics[0].code != "E832":
                    raise
                unreadable.append(error)
                continue
            self._last = done = int(opened.info["iteration"])
            messages = [f"error[E832]: {error.diagnostics[0].message}" for error in unreadable]
            if unreadable:
                lost = _iteration(candidates[0]) - done
                are_lost = f"{count_text(lost, 'iteration')} {'is' if lost == 1 else 'are'} lost"
                these = "it" if len(unreadable) == 1 else "them"
                messages.append(f"so the run resumes from the checkpoint before {these}: {are_lost}")
            return ResumePoint(done, path, (*messages, _resume_message(opened.info, path)))
        raise unreadable[0] if len(unreadable) == 1 else ChimeraError(d for error in unreadable for d in error.diagnostics)


def _resume_message(info: dict[str, object], path: Path) -> str:
    return (
        f"resumed from {short_path(path)}, after iteration {info['iteration']}; "
        f"it was written under {info['schedule']}, D = {info['depth']}, W = {info['width']}"
    )


def _newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, the newest first; none if it does not exist. Raises OSError if it cannot be read.

    A checkpoint of which only the `.replaced` folder is left is among them, under its final name (`files.existing_folder`).
    """
    if not folder.exists():
        return []
    named = {files.final_name(p) if p.name.endswith(".replaced") else p for p in folder.iterdir()}
    return sorted((p for p in named if _iteration(p) >= 0), key=_iteration, reverse=True)


def _iteration(path: Path) -> int:
    """Return the iteration in the name of a checkpoint; -1 if it has none."""
    number = path.name.removeprefix(PREFIX)
    return int(number) if path.name.startswith(PREFIX) and number.isdecimal() else -1
