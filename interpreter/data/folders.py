"""Data sets in a local folder: one that the library datasets has saved, or files of Parquet, Arrow or JSON lines.

Nothing is ever downloaded.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError, did_you_mean, refuse
from chimerac.chimera_ir.files import reason, short_path
from chimerac.interpreter.data.documents import Documents, Piece, key_of_files

ENDINGS = ".parquet", ".arrow", ".jsonl", ".jsonl.gz"
# Names of held-out splits, in two groups. The splits of the first group are held out; if there are none, those of the second.
# With splits of both groups, those of the second are not read.
HELD_OUT = ("validation", "valid", "val", "dev"), ("test",)
ROWS = 256  # read at a time

Rows = Callable[[], Iterator[str]]  # a function that reads the texts of a file or a split, one for each row that has a text


def folder_documents(folder: Path, column: str) -> Documents:
    """Return the documents of a data set in a local folder. Each row that has a text is one.

    Args:
        column: the one that has the texts.

    Splits of HELD_OUT are held out, if there are any.

    Raises ChimeraError E802 for a folder that is not there or cannot be read, for a column that is not there or holds no texts,
    for a folder without a split to train on, and if a library is missing. Damaged rows, and JSON lines without the column or
    with neither a text nor null in it, are found only when the documents are read: E802 is raised then.
    """
    if not os.path.isdir(folder):
        what = f"the data set hf:{folder} cannot be read: there is no folder {short_path(folder)}"
        help = f"where there is a network: datasets.load_dataset(NAME).save_to_disk('{folder.name}'); then copy the folder"
        raise refuse("E802", what, help=help)
    try:
        is_saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))
        files = _files(folder)
        splits = _saved(folder, column) if is_saved else _plain(folder, files, column)
        train, held_out, unread = _chosen(folder, splits)
        key = f"{column} {key_of_files(folder, files)}"
    except OSError as error:
        raise _refused(folder, reason(error)) from None
    note = f"{', '.join(unread)} not read" if unread else ""
    return Documents(f"hf:{folder}", key, partial(_pieces, train), partial(_pieces, held_out) if held_out else None, note)


def _files(folder: Path) -> list[Path]:
    found = (p for p in folder.rglob("*") if p.name.endswith(ENDINGS) and p.is_file())
    visible = [p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    return sorted(visible, key=lambda p: p.relative_to(folder).parts)


def _chosen(folder: Path, splits: Mapping[str, list[Rows]]) -> tuple[list[Rows], list[Rows], list[str]]:
    """Return the rows to train on, those held out, and the names of splits that are not read."""
    groups = [[name for name in splits if name in names] for names in HELD_OUT]
    held_out = next((group for group in groups if group), [])
    train = [name for name in splits if not any(name in group for group in groups)]
    if not train:
        raise _refused(folder, f"it has nothing to train with, only {', '.join(splits) or 'an empty DatasetDict'}")
    unread = [name for group in groups for name in group if name not in held_out]
    return [rows for name in train for rows in splits[name]], [rows for name in held_out for rows in splits[name]], unread


def _pieces(sources: Sequence[Rows]) -> Iterator[Piece]:
    return (Piece(text, ends=True) for rows in sources for text in rows())


def _saved(folder: Path, column: str) -> dict[str, list[Rows]]:
    """Return the splits of a folder that `save_to_disk` has written."""
    datasets = _library("datasets")
    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises many kinds
        raise _refused(folder, _first_line(error)) from None
    splits = dict(found) if isinstance(found, datasets.DatasetDict) else {"train": found}
    for name, split in splits.items():
        kinds = {key: getattr(feature, "dtype", "") for key, feature in split.features.items()}
        _check_column(folder, name, column, {key: kind in ("string", "large_string") for key, kind in kinds.items()})

    def rows(split: Any) -> Iterator[str]:
        for batch in split.select_columns([column]).iter(ROWS):
            yield from (text for text in batch[column] if text is not None)

    return {name: [partial(_rows, folder, f"its split {name}", partial(rows, split))] for name, split in splits.items()}


def _rows(folder: Path, where: str, read: Rows) -> Iterator[str]:
    """Yield rows.

    Args:
        where: the split or the file that they are in.

    Raises ChimeraError E802 where they cannot be read.
    """
    try:
        yield from read()
    except ChimeraError:
        raise
    except Exception as error:  # of the file system, of the compression, of the coding of texts, and of pyarrow
        why = reason(error) if isinstance(error, OSError) else _first_line(error)
        raise _refused(folder, f"{where}: {why}") from None


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind where it has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _plain(folder: Path, files: Sequence[Path], column: str) -> dict[str, list[Rows]]:
    """Return the splits of plain files.

    The first word of the name of a file, or of a folder between `folder` and the file, may be a name of HELD_OUT. Then the file
    belongs to this split, otherwise to `train`.
    """
    if not files:
        raise _refused(folder, f"it has no file that ends in {', '.join(ENDINGS)}, and datasets has not saved it")
    splits: dict[str, list[Rows]] = {}
    for file in files:
        names = (file.name, *reversed(file.relative_to(folder).parent.parts))
        words = [re.split("[^a-z]", name.lower())[0] for name in names]
        known = {name for group in HELD_OUT for name in group}
        split = next((word for word in words if word in known), "train")
        read = partial(_json_lines, folder, file, column)
        if not file.name.endswith((".jsonl", ".jsonl.gz")):
            _library("pyarrow")
            with _arrow(folder, file) as (columns, _):
                _check_column(folder, file.name, column, columns)
            read = partial(_arrow_rows, folder, file, column)
        splits.setdefault(split, []).append(partial(_rows, folder, short_path(file), read))
    return splits


def _json_lines(folder: Path, file: Path, column: str) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8") if file.name.endswith(".gz") else file.open(encoding="utf-8") as opened:
        for number, line in enumerate(opened, 1):
            if not line.strip():
                continue
            place = f"{short_path(file)}, line {number}"
            try:
                row = json.loads(line)
            except RecursionError:
                raise _refused(folder, f"{place} is nested too deeply") from None
            except ValueError as error:
                raise _refused(folder, f"{place} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise _refused(folder, f"{place} is no JSON object")
            if column in row and row[column] is None:
                continue
            _check_column(folder, place, column, {str(key): isinstance(value, str) for key, value in row.items()})
            yield row[column].encode("utf-8", "replace").decode()  # JSON may have lone surrogates, which UTF-8 lacks


@contextmanager
def _arrow(folder: Path, file: Path) -> Iterator[tuple[dict[str, bool], Callable[[str], Iterator[Any]]]]:
    """Open a file of Parquet or Arrow. Yield whether each column holds texts, and a function that reads a column in batches."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        try:
            if file.name.endswith(".parquet"):
                parquet = stack.enter_context(pq.ParquetFile(file, memory_map=True))
                schema = parquet.schema_arrow

                def read(column: str) -> Iterator[Any]:
                    return (batch.column(0) for batch in parquet.iter_batches(ROWS, columns=[column]))
            else:
                source = stack.enter_context(pa.memory_map(str(file)))
                batches, schema = _arrow_batches(source)

                def read(column: str) -> Iterator[Any]:
                    return (batch.column(column) for batch in batches)
        except pa.ArrowException as error:
            raise _refused(folder, f"{short_path(file)}: {_first_line(error)}") from None
        yield {f.name: pa.types.is_string(f.type) or pa.types.is_large_string(f.type) for f in schema}, read


def _arrow_batches(source: Any) -> tuple[Iterable[Any], Any]:
    """Return the batches and the schema of an Arrow file, in the streaming or in the random access format."""
    import pyarrow as pa

    try:
        stream = pa.ipc.open_stream(source)
        return stream, stream.schema
    except pa.ArrowInvalid:
        file = pa.ipc.open_file(source)
        return (file.get_batch(k) for k in range(file.num_record_batches)), file.schema


def _arrow_rows(folder: Path, file: Path, column: str) -> Iterator[str]:
    with _arrow(folder, file) as (_, read):
        for values in read(column):
            yield from (text for text in values.to_pylist() if text is not None)


def _check_column(folder: Path, where: str, column: str, columns: Mapping[str, bool]) -> None:
    """Raise ChimeraError E802 unless there is such a column, and it has texts.

    Args:
        columns: by name, whether a column has texts.
    """
    texts = [name for name, has_texts in columns.items() if has_texts]
    if column not in columns:
        near = did_you_mean(column, texts) if texts else ""
        help = f"give --text-column the name of one; {near}" if near else "give another folder"
        raise refuse("E802", f"{where} of hf:{folder} has no column '{column}', only {', '.join(columns) or 'none'}", help=help)
    if not columns[column]:
        what = f"the column '{column}' of {where} of hf:{folder} holds no texts"
        help = f"columns with texts: {', '.join(texts)}; give one as --text-column" if texts else "give another folder"
        raise refuse("E802", what, help=help)


def _library(name: str) -> Any:
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")  # read when datasets is imported
    try:
        if name == "pyarrow":
            import pyarrow

            return pyarrow
        import datasets  # optional: an extra of this project

        datasets.disable_progress_bars()
        return datasets
    except ImportError:
        what = f"this data set is read with {name}, which is not installed"
        raise refuse("E802", what, help="pip install 'chimerac[hf]'") from None


def _refused(folder: Path, why: str) -> ChimeraError:
    help = f"give as hf:FOLDER a folder that save_to_disk of datasets has written, or one with {', '.join(ENDINGS)} files"
    return refuse("E802", f"the data set hf:{folder} cannot be read: {why}", help=help)
