"""Sources: from the name of a data set, as `--data` gives it, to its text or its images. Only images need torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chimerac.interpreter.data.documents import Documents, text_documents, tokenized
from chimerac.interpreter.data.folders import folder_documents
from chimerac.interpreter.data.names import FOLDER, SIZES, TEXT, TEXT_AT
from chimerac.interpreter.data.text import Text, load_text
from chimerac.interpreter.data.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from chimerac.interpreter.data.images import ImageSet

PREPARED = "prepared"  # folder of prepared files, in the working folder


@dataclass(frozen=True)
class Source:
    """Where data comes from.

    Attributes:
        name: `text` is Python's standard library; `text:PATH`, or PATH alone, is a text file or a folder of text files;
            names.py lists the other names.
        data_dir: the folder of the CIFAR-10 files.
        prepared_dir: where prepared files are written.
        tokenizer: its path, None for bytes.
        column: of a data set `hf:FOLDER`, the one that has the texts.
        limit_s: as in `prepared` (prepared.py).
    """

    name: str
    data_dir: Path
    prepared_dir: Path
    tokenizer: Path | None = None
    column: str = "text"
    limit_s: float = 300.0

    @property
    def has_images(self) -> bool:
        """Return whether it is a data set of images."""
        return self.name in SIZES

    def load_tokenizer(self) -> Tokenizer | None:
        """Return the tokenizer, None for bytes. Raises ChimeraError E861 if it cannot be loaded."""
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)

    def text(self) -> Text:
        """Return the text. Raises ChimeraError: E802 if it cannot be read, E860 as `prepared`, E861 as `load_tokenizer`."""
        tokenizer = self.load_tokenizer()
        if tokenizer is None and not self.name.startswith(FOLDER):
            return load_text(self._path)
        return tokenized(self.documents(), tokenizer, self.prepared_dir, self.limit_s)

    def documents(self) -> Documents:
        """Return the documents of the text. Raises ChimeraError E802 if they cannot be read."""
        if self.name.startswith(FOLDER):
            return folder_documents(Path(self.name.removeprefix(FOLDER)), self.column)
        return text_documents(self._path)

    @property
    def _path(self) -> Path | None:
        """Return the path of a text; None for that of Python's standard library."""
        return None if self.name == TEXT else Path(self.name.removeprefix(TEXT_AT))

    def images(self) -> ImageSet:
        """Return the images. Raises ChimeraError: E802 if they cannot be read, E860 as `prepared` does."""
        if self.name == "digits":
            from chimerac.interpreter.data.digits import digits  # imports torch: 2.6 s

            return digits()
        from chimerac.interpreter.data.cifar import cifar10  # imports torch: 2.6 s

        return cifar10(self.data_dir, self.prepared_dir, self.limit_s)
