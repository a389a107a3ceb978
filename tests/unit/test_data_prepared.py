"""Prepared files: written once, by one of several processes, under another name and then renamed; refused when damaged."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.prepared import HEADER_BYTES, Writer, prepared


def write_numbers(writer: Writer) -> dict[str, Any]:
    for start in range(0, 1000, 100):
        writer.append(np.arange(start, start + 100))
    return {"of": "a test"}


def test_a_file_is_written_once_and_mapped(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "numbers.tokens"
    found = prepared(path, "u2", write_numbers, limit_s=1)
    assert isinstance(found.array, np.memmap) and found.array.tolist() == list(range(1000)) and found.about == {"of": "a test"}
    # The file has the format that docs/data.md describes.
    header = json.loads(path.read_bytes()[:HEADER_BYTES])
    assert header["format"] == "chimera-data" and header["version"] == 1 and header["count"] == 1000
    assert np.fromfile(path, "<u2", offset=4096).tolist() == list(range(1000))

    def never(_: Writer) -> dict[str, Any]:
        raise AssertionError("the file is there")

    assert prepared(path, "u2", never, limit_s=1).digest == found.digest
    assert os.listdir(path.parent) == [path.name], "nothing is left beside it"


def write_slowly(writer: Writer) -> dict[str, Any]:
    for k in range(20):
        writer.append(np.array([k]))
        time.sleep(0.1)
    return {"process": os.getpid()}


def prepare_slowly(path: Path, start: Any, results: Any) -> None:
    start.wait()
    found = prepared(path, "u1", write_slowly, limit_s=1.5)  # less than the 2 s of the work, more than any of its pauses
    results.put((found.about["process"], found.array.tolist()))


def test_of_processes_that_start_at_once_one_prepares_and_the_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    processes = [context.Process(target=prepare_slowly, args=(tmp_path / "x", start, results)) for _ in range(3)]
    for process in processes:
        process.start()
    start.set()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert len({pid for pid, _ in found}) == 1 and all(array == list(range(20)) for _, array in found)


def test_a_process_that_hangs_is_named_and_one_that_was_killed_is_replaced(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    begun = context.Event()

    def hang(writer: Writer) -> dict[str, Any]:
        writer.append(np.arange(100))
        begun.set()
        time.sleep(1000)
        return {}

    process = context.Process(target=prepared, args=(tmp_path / "x", "u1", hang), kwargs={"limit_s": 1.0})
    process.start()
    begun.wait(60)
    with pytest.raises(ChimeraError, match=f"E860.*process {process.pid} on .* has made no progress for 0.3 s"):
        prepared(tmp_path / "x", "u1", write_numbers, limit_s=0.3)
    process.kill()
    process.join(60)
    assert len(prepared(tmp_path / "x", "u2", write_numbers, limit_s=5).array) == 1000
    assert os.listdir(tmp_path) == ["x"], "what the killed process has left is removed"


def test_an_error_while_writing_leaves_no_prepared_file(tmp_path: Path) -> None:
    def fail(writer: Writer) -> dict[str, Any]:
        writer.append(np.arange(10))
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        prepared(tmp_path / "x", "u1", fail, limit_s=1)
    assert not (tmp_path / "x").exists() and not list(tmp_path.glob("*.partial"))
    assert len(prepared(tmp_path / "x", "u2", write_numbers, limit_s=1).array) == 1000


@pytest.mark.parametrize("damage", ["cut", "header", "version", "empty"])
def test_a_damaged_file_is_refused_with_the_advice_to_delete_it(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    prepared(path, "u2", write_numbers, limit_s=1)
    content = path.read_bytes()
    changed = {
        "cut": content[:-1],
        "header": b"?" + content[1:],
        "version": content.replace(b'"version": 1', b'"version": 2'),
        "empty": b"",
    }
    path.write_bytes(changed[damage])
    with pytest.raises(ChimeraError, match=r"E860.*is damaged") as error:
        prepared(path, "u2", write_numbers, limit_s=1)
    assert "delete it" in error.value.diagnostics[0].help


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The path of the folder is that of a file."""
    (tmp_path / "file").touch()
    with pytest.raises(ChimeraError, match=r"E860.*cannot be written"):
        prepared(tmp_path / "file" / "x", "u1", write_numbers, limit_s=1)
