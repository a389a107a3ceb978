"""Checkpoints of runs: written by one program and loaded by another, kept, removed, damaged and refused."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chimerac.interpreter.pipeline import checkpoint_files as files
from chimerac.interpreter.pipeline.background import BackgroundThread, RanksFailedError
from chimerac.interpreter.training.checkpoint_fit import fitting_values
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_checkpoints import SETTINGS, TOLERANCE, Trained, compiled, model, refused, train

# Programs, named by their numbers of ranks; TWO_WIDE has two replicas of two ranks. An iteration of each has 8 samples.
FOUR = compiled("chimera", width=1, D=4, N=4)
TWO = compiled("chimera", width=1, D=2, N=4)
TWO_WIDE = compiled("1f1b", width=2, D=2, N=2)
ONE = compiled("gpipe", width=1, D=1, N=4)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute in one thread: the tensors are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def uninterrupted() -> Trained:
    """A run of twenty iterations that starts without a checkpoint."""
    return train(FOUR)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of iteration 10, written under Chimera with four ranks. Beside it is that of iteration 5."""
    folder = tmp_path_factory.mktemp("checkpoints")
    assert train(FOUR, folder, until=10).messages == [f"saved {folder}/iteration_{k:08}" for k in (5, 10)]
    return folder / "iteration_00000010"


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A folder with copies of the checkpoints of iterations 5 and 10."""
    return Path(shutil.copytree(saved.parent, tmp_path / "run"))


def test_under_the_same_program_a_resumed_run_is_equal_bit_by_bit(uninterrupted: Trained, saved: Path) -> None:
    found = train(FOUR, source=str(saved))
    assert (found.start, found.losses) == (10, uninterrupted.losses[10:])
    assert found.tensors.keys() == uninterrupted.tensors.keys() and len(found.tensors) > 50
    assert all(t.equal(uninterrupted.tensors[name]) for name, t in found.tensors.items())
    assert "written under chimera, D = 4, W = 1" in found.messages[0]


@pytest.mark.parametrize("program", [TWO_WIDE, ONE, TWO], ids=["1f1b, width 2", "one process", "chimera, 2 ranks"])
def test_a_run_goes_on_under_another_program(program: Any, uninterrupted: Trained, saved: Path) -> None:
    found = train(program, source=str(saved))
    assert found.losses == pytest.approx(uninterrupted.losses[10:], rel=TOLERANCE)


def test_torch_alone_reads_a_checkpoint_and_its_tensors_are_those_of_one_process(saved: Path, tmp_path: Path) -> None:
    script = "\n".join(
        (
            "import sys",
            "from torch.distributed.checkpoint.format_utils import dcp_to_torch_save",
            "dcp_to_torch_save(sys.argv[1], sys.argv[2])",
            "print('chimerac' in sys.modules)",
        )
    )
    command = [sys.executable, "-c", script, saved, tmp_path / "whole.pt"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["False"]
    found = torch.load(tmp_path / "whole.pt")
    expected = train(ONE, until=10).tensors
    tensors = {f"model.{n}": t for n, t in found["model"].items()}
    tensors |= {f"optimizer.state.{n}.{k}": t for n, state in found["optimizer"]["state"].items() for k, t in state.items()}
    assert tensors.keys() == expected.keys()
    for name, t in tensors.items():
        torch.testing.assert_close(t, expected[name], rtol=1e-3, atol=1e-6)


def test_what_a_checkpoint_says_of_its_run(saved: Path) -> None:
    info = json.loads((saved / "checkpoint.json").read_text())
    parameters = sum(p.numel() for _, layer in model().layers for p in layer().parameters())
    assert (info["format"], info["iteration"], info["model"], info["parameters"]) == (1, 10, "gpt-nano", parameters)
    assert (info["schedule"], info["depth"], info["width"]) == ("chimera", 4, 1)
    assert (info["torch"], info["run"]["seed"], info["run"]["samples_per_iteration"]) == (torch.__version__, 5, 8)
    assert "bytes" in info["run"]["data"]


# --- which checkpoints are kept, and which one is loaded -----------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_last_checkpoints_are_kept_and_the_run_goes_on_from_the_last_one(asynchronous: bool, tmp_path: Path) -> None:
    full = train(TWO, tmp_path, until=13, every=3, keep=2, asynchronous=asynchronous)
    assert [m for m in full.messages if "error" in m] == []
    assert sorted(os.listdir(tmp_path)) == ["iteration_00000012", "iteration_00000013"]
    found = train(TWO, tmp_path, source="auto", until=13, every=3)
    assert (found.start, found.losses) == (13, [])
    shutil.rmtree(tmp_path / "iteration_00000013")
    found = train(TWO, tmp_path, source="auto", until=13, every=3)
    assert (found.start, found.losses) == (12, full.losses[12:])
    assert all(t.equal(full.tensors[name]) for name, t in found.tensors.items())


def test_the_next_run_removes_an_incomplete_save_and_loads_a_checkpoint_that_was_being_replaced(folder: Path) -> None:
    (folder / ".iteration_00000015.partial").mkdir()
    (folder / ".iteration_00000015.partial" / "__0_0.distcp").write_bytes(b"half")
    # A run that was killed between the two renames of `commit` leaves this.
    (folder / "iteration_00000010").rename(folder / ".iteration_00000010.replaced")
    assert train(FOUR, folder, source="auto", until=11).start == 10
    assert sorted(os.listdir(folder)) == [".iteration_00000010.replaced", "iteration_00000005", "iteration_00000011"]
    again = train(FOUR, folder, source=str(folder / "iteration_00000005"), until=6, restarts=1)
    assert again.start == 11, "a job that was started again goes on from its own last checkpoint"


def test_hidden_files_and_folders_that_are_no_leftovers_of_a_save_remain(tmp_path: Path) -> None:
    (tmp_path / ".weights.pt.partial").write_bytes(b"half")  # an export that was killed
    (tmp_path / ".notes.partial").mkdir()
    assert train(TWO, tmp_path, until=1).start == 0
    assert sorted(os.listdir(tmp_path)) == [".notes.partial", ".weights.pt.partial", "iteration_00000001"]


def test_a_new_run_does_not_mix_its_checkpoints_with_those_of_another(folder: Path, tmp_path: Path) -> None:
    with refused("E833", "iteration_00000010"):
        train(FOUR, folder, source="no", until=11)
    with refused("E833", "later iterations", "iteration_00000010"):
        train(FOUR, folder, source=str(folder / "iteration_00000005"), until=11)
    (tmp_path / "link").symlink_to(folder)
    assert train(FOUR, folder, source=str(tmp_path / "link" / "iteration_00000010"), until=10).start == 10
    assert train(FOUR, folder, source="no", until=11, restarts=1).start == 10
    assert train(FOUR, tmp_path / "new", source="auto", until=1).start == 0


# --- damage ----------------------------------------------------------------------------------------------------------------


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


# A file of a checkpoint, what damages it, and a part of the reason in the message.
DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("__1_0.distcp", truncate, "bytes, and"),
    ("__2_0.distcp", flip_a_bit, "the file __2_0.distcp is damaged"),
    ("__3_0.distcp", Path.unlink, "the file __3_0.distcp is missing"),
    (".metadata", Path.unlink, "the file .metadata is missing"),
    (".metadata", truncate, "bytes, and"),
    ("state.pt", flip_a_bit, "the file state.pt is damaged"),
    ("checkpoint.json", Path.unlink, "it has no checkpoint.json"),
    ("checkpoint.json", truncate, "checkpoint.json is damaged"),
]


@pytest.mark.parametrize(("name", "damage", "reason"), DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(
    name: str, damage: Callable[[Path], None], reason: str, folder: Path, uninterrupted: Trained
) -> None:
    last = folder / "iteration_00000010"
    damage(last / name)
    found = train(FOUR, folder, source="auto", until=10)
    assert found.start == 5 and found.losses == uninterrupted.losses[5:10]
    assert str(last) in found.messages[0] and reason in found.messages[0] and "E832" in found.messages[0]
    assert found.messages[1].endswith("5 iterations are lost")
    assert train(FOUR, folder, source="auto", until=10).start == 10, "the run has replaced the damaged checkpoint"


def test_if_no_checkpoint_can_be_read_the_run_does_not_start(folder: Path) -> None:
    for path in folder.iterdir():
        truncate(path / "__0_0.distcp")
    with refused("E832", "iteration_00000010"):
        train(FOUR, folder, source="auto")
    with refused("E832", "no such folder"):
        train(FOUR, source=str(folder / "gone"))


def test_a_checkpoint_of_a_later_version_is_not_read(folder: Path) -> None:
    path = folder / "iteration_00000010" / "checkpoint.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with refused("E832", "its format is version 2"):
        train(FOUR, source=str(path.parent))


# --- another run -----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_run_is_refused_with_both_values(saved: Path) -> None:
    with refused("E831", "the seed 5, and this run has 6"):
        train(FOUR, source=str(saved), settings=replace(SETTINGS, seed=6))
    with refused("E831", "gpt-nano with 41,632 parameters, and this run gpt-micro with"):
        train(FOUR, source=str(saved), model=model("gpt-micro"))


def test_another_number_of_samples_is_refused_with_values_that_fit(saved: Path) -> None:
    for program, message, suggestion in (
        (compiled("chimera", width=1, D=2, N=8), "8 samples an iteration, and this run has 16: 8 micro-batches of 2", "-p N=4"),
        (compiled("1f1b", width=3, D=1, N=4), "8 samples an iteration, and this run has 24", "--width 1"),
    ):
        with refused("E834", message) as error:
            train(program, source=str(saved))
        help = error.value.diagnostics[0].help
        assert suggestion in help and "--micro-batch" in help


def test_the_number_of_samples_counts_accumulated_batches(saved: Path) -> None:
    with refused("E834", "this run has 16: 4 micro-batches of 2, in each of 2 accumulated batches") as error:
        train(FOUR, source=str(saved), settings=replace(SETTINGS, accumulate=2))
    assert "--accumulate 1" in error.value.diagnostics[0].help


def test_values_that_fit_give_the_target_and_begin_with_those_that_change_least() -> None:
    now = {"-p N=": 6, "--micro-batch": 4, "--width": 2}
    found = fitting_values(now, samples=48, target=32)
    assert found[0] == {"-p N=": 4, "--micro-batch": 4, "--width": 2}
    assert all(f["-p N="] * f["--micro-batch"] * f["--width"] == 32 for f in found)
    # The number of samples is 3/2 of the product of the values, so no integers give 4 samples.
    assert fitting_values({"--micro-batch": 2, "--width": 1}, samples=3, target=4) == []


# --- failing writes --------------------------------------------------------------------------------------------------------


ENOUGH_BYTES = 10**6  # more than any file of a checkpoint has
TOO_FEW_BYTES = 30_000  # less than the tensors of a rank have


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let every write fail that makes a file larger than `size` bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_training_goes_on_after_a_failed_save_unless_it_is_the_one_at_the_end(
    asynchronous: bool, folder: Path, uninterrupted: Trained
) -> None:
    def attempt(until: int, fails: Callable[[int], bool]) -> Trained:
        """Train until `until` iterations are done. A save after k iterations fails if `fails(k)`."""
        with file_size_limit(ENOUGH_BYTES):

            def after(transport: Transport, done: int, loss: float) -> None:
                """Set the limit for the save after the next iteration."""
                limit = TOO_FEW_BYTES if fails(done + 1) else ENOUGH_BYTES
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

            return train(FOUR, folder, source="auto", until=until, every=2, asynchronous=asynchronous, after=after)

    # The saves after 12 and 14 iterations fail. An asynchronous one may still write during the next iteration.
    found = attempt(16, lambda done: 12 <= done <= 15)
    assert found.losses == uninterrupted.losses[10:16]
    errors = [m for m in found.messages if "E830" in m]
    assert len(errors) == 2 and all(
        "file too large; training continues, the last checkpoint is of iteration 10" in m for m in errors
    )
    assert "iteration_00000016" in found.messages[-1]
    with refused("E830", "iteration_00000018", "file too large"):
        attempt(18, lambda done: done >= 18)
    assert sorted(os.listdir(folder)) == [f"iteration_{k:08}" for k in (5, 10, 16)]
    assert train(FOUR, folder, source="auto", until=17).start == 16, "the older checkpoint is intact"


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with refused("E830", str(path)):
            train(TWO, path)


@pytest.mark.root
def test_on_a_full_disk_the_save_fails_and_the_older_checkpoint_stays_intact(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", tmp_path], check=True)
    try:
        with refused("E830", "iteration_00000010", "no space left on device"):
            train(TWO, tmp_path / "run", until=10)
        assert os.listdir(tmp_path / "run") == ["iteration_00000005"]
        assert train(TWO, source=str(tmp_path / "run" / "iteration_00000005"), until=6).start == 5
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_folder_that_is_no_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        files.prepare(tmp_path / "notes")


def test_work_in_a_background_thread_that_fails_on_one_rank_is_an_error_on_all() -> None:
    def rank(transport: Transport) -> str:
        def work() -> str:
            if transport.rank == 1:
                raise OSError(errno.ENOSPC, "No space left on device", "f")
            return "done"

        try:
            return str(BackgroundThread(work).results(transport))
        except RanksFailedError as error:
            return str(error)

    assert run_in_loopback(TWO, rank) == ["rank 1: no space left on device: f"] * 2
