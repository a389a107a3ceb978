"""Data sets in local folders: those that the library datasets has saved, and files of Parquet, Arrow and JSON lines."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.documents import tokenized
from chimerac.interpreter.data.folders import folder_documents

pa = pytest.importorskip("pyarrow")

TRAIN, HELD_OUT = [f"row {k} of many\u00fc" for k in range(700)], [f"held out {k}" for k in range(5)]


@pytest.fixture(autouse=True)
def without_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network is used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield


def rows_of(folder: Path, prepared: Path, column: str = "text") -> tuple[list[str], list[str] | None]:
    """Return the rows to train on and those held out, read from the bytes of the prepared file.

    Args:
        prepared: the folder of this file.

    The second result is None if the data set holds out no rows itself.
    """
    text = tokenized(folder_documents(folder, column), tokenizer=None, folder=prepared, limit_s=5)
    border = len(text) if text.border is None else text.border
    parts = [bytes(text.read(a, b)).decode().splitlines() for a, b in ((0, border), (border, len(text)))]
    return parts[0], None if text.border is None else parts[1]


def table(rows: list[str]) -> Any:
    return pa.table({"id": range(len(rows)), "text": rows})


def write_parquet(path: Path, rows: list[str]) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table(rows), path, row_group_size=100)


def write_arrow_stream(path: Path, rows: list[str]) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table(rows).schema) as writer:
        writer.write_table(table(rows), max_chunksize=100)


def write_arrow_file(path: Path, rows: list[str]) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table(rows).schema) as writer:
        writer.write_table(table(rows), max_chunksize=100)


def write_lines(path: Path, rows: list[str]) -> None:
    """Write JSON lines, with an empty line after each row."""
    path.write_text("".join(json.dumps({"id": 1, "text": row}) + "\n\n" for row in rows))


def write_gzip(path: Path, rows: list[str]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps({"text": row}) + "\n" for row in rows).encode()))


FORMS = {
    ".parquet": write_parquet,
    ".stream.arrow": write_arrow_stream,
    ".file.arrow": write_arrow_file,
    ".jsonl": write_lines,
    ".jsonl.gz": write_gzip,
}


@pytest.mark.parametrize("ending", FORMS)
def test_plain_files_are_read_row_by_row_with_their_splits(ending: str, tmp_path: Path) -> None:
    folder, write = tmp_path / "data", FORMS[ending]
    (folder / "validation").mkdir(parents=True)
    write(folder / f"train-00000-of-00002{ending}", TRAIN[:400])
    write(folder / f"train-00001-of-00002{ending}", TRAIN[400:])
    assert rows_of(folder, tmp_path / "p") == (TRAIN, None)
    write(folder / "validation" / f"part{ending}", HELD_OUT)
    write(folder / f"test{ending}", ["not read"])
    assert rows_of(folder, tmp_path / "p") == (TRAIN, HELD_OUT)
    assert folder_documents(folder, "text").note == "test not read"


def test_what_datasets_has_saved_is_read_offline_with_its_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    train, test = (datasets.Dataset.from_dict({"id": [*range(len(r))], "text": r}) for r in (TRAIN, HELD_OUT))
    train.save_to_disk(tmp_path / "one", num_shards=3)
    assert rows_of(tmp_path / "one", tmp_path / "p") == (TRAIN, None)
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "several")
    assert rows_of(tmp_path / "several", tmp_path / "p") == (TRAIN, HELD_OUT)
    assert os.environ["HF_DATASETS_OFFLINE"] == os.environ["HF_HUB_OFFLINE"] == "1"
    for column, reason in (("txt", "has no column 'txt', only id, text"), ("id", "holds no texts")):
        with pytest.raises(ChimeraError, match=f"E802.*{reason}"):
            folder_documents(tmp_path / "one", column)


def test_only_a_lone_half_of_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00"}')
    assert [piece.text for piece in folder_documents(tmp_path, "text").train()] == ["a?b", "\U0001f600"]


def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    def refused(reason: str, column: str = "text", folder: Path = tmp_path) -> str:
        """Check that the folder is refused for this reason, and return the help."""
        with pytest.raises(ChimeraError, match=f"E802.*{reason}") as error:
            list(folder_documents(folder, column).train())
        return str(error.value.diagnostics[0].help)

    assert "save_to_disk" in refused("there is no folder", folder=tmp_path / "gone")
    refused("it has no file that ends in")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    refused(r"'text' of .*a.jsonl, line 2 .* holds no texts")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": \n')
    refused(r"a.jsonl, line 2 is not JSON")
    (tmp_path / "a.jsonl").write_text('["text"]\n')
    refused(r"a.jsonl, line 1 is no JSON object")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\xff"}')
    refused(r"a.jsonl: 'utf-8' codec can't decode byte 0xff")
    (tmp_path / "a.jsonl").write_text('{"text": ' + "[" * 10**5)
    refused(r"a.jsonl, line 1 is nested too deeply")
    (tmp_path / "a.jsonl").unlink()
    write_gzip(tmp_path / "a.jsonl.gz", TRAIN)
    (tmp_path / "a.jsonl.gz").write_bytes((tmp_path / "a.jsonl.gz").read_bytes()[:-9])
    refused(r"a.jsonl.gz: Compressed file ended before the end")
    (tmp_path / "a.jsonl.gz").unlink()
    write_parquet(tmp_path / "b.parquet", TRAIN)
    pages = bytearray((tmp_path / "b.parquet").read_bytes())
    pages[4:1000] = bytes([255]) * 996  # after the four bytes that mark a Parquet file
    (tmp_path / "b.parquet").write_bytes(pages)
    refused(r"b.parquet: ")
    write_parquet(tmp_path / "b.parquet", TRAIN[:3])
    assert "'text'" in refused("has no column 'tex', only id, text", "tex")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    refused(r"b.parquet: ")
    (tmp_path / "b.parquet").unlink()
    write_lines(tmp_path / "test.jsonl", HELD_OUT)
    refused("nothing to train with, only test")
