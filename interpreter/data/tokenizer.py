"""Tokenizers: trained from texts, or loaded from a tokenizer.json, with the library tokenizers, which is optional."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, short_path
from chimerac.interpreter.data.text import SPECIAL_NAMES, Array, Encoding, SpecialTokens

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["bpe", "wordpiece"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SPECIAL: dict[Kind, tuple[str, ...]] = {  # the special tokens of each new tokenizer of this kind
    "bpe": ("<|endoftext|>",),
    "wordpiece": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
}
ENDS = "<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>"  # the first of these that a tokenizer has comes after each document
FILE = "tokenizer.json"


class Tokenizer:
    """A tokenizer that was read from a file.

    Attributes:
        encoding: of its tokens.
        end: the token after each document, None without one.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, digest: str) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        numbers = tokenizer.get_vocab(with_added_tokens=True)
        special_numbers = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        bert_numbers = [numbers.get(name) for name in SPECIAL_NAMES]
        self.end: int | None = next((numbers[name] for name in ENDS if name in numbers), None)
        self.encoding = Encoding(
            vocabulary=max(numbers.values()) + 1,
            unit="token",
            name=f"tokenizer {digest[:12]}",
            special=None if None in bert_numbers else SpecialTokens(*(n for n in bert_numbers if n is not None)),
            words=tuple(sorted(set(numbers.values()) - special_numbers)),
        )

    def encode(self, texts: Sequence[str]) -> list[Array]:
        """Return the tokens of each text. No special tokens are added around it."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.uint32) for one in encoded]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of these tokens, without special ones."""
        return self._tokenizer.decode([int(token) for token in tokens])


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, or of a folder with one, such as that of a Hugging Face model.

    Raises ChimeraError E861 if the file cannot be read or is no tokenizer, or if the library is not installed.
    """
    library = _library()
    file = path / FILE if os.path.isdir(path) else path
    try:
        text = file.read_text("utf-8")
        return Tokenizer(library.Tokenizer.from_str(text), hashlib.sha256(text.encode()).hexdigest())
    except OSError as error:
        help = f"give --tokenizer a {FILE}, or a folder with one; the command of docs/data.md trains one"
        raise _refused(f"the tokenizer {short_path(file)} cannot be read: {reason(error)}", help) from None
    except Exception as error:  # the library raises plain Exception
        what = f"the tokenizer {short_path(file)} is no file of the library tokenizers: {error}"
        raise _refused(what, f"give --tokenizer the {FILE} that the library has saved") from None


def train_tokenizer(
    texts: Iterator[str], kind: Kind, vocabulary: int, special: Sequence[str] = (), lowercase: bool = False
) -> str:
    """Return the tokenizer.json of a new tokenizer, trained on texts.

    Args:
        kind: bpe, on bytes as for GPT-2, or wordpiece, as for BERT.
        vocabulary: the largest number of tokens. But with wordpiece every character of the texts has a token, even if there are
            then more than that.
        special: special tokens besides those of SPECIAL.
        lowercase: with wordpiece, whether letters become lower-case and lose their accents.

    Raises ChimeraError E861 for a vocabulary that is too small, and if the library is not installed.
    """
    library = _library()
    names = [*dict.fromkeys((*SPECIAL[kind], *special))]
    least = len(names) + (256 if kind == "bpe" else 1)  # bpe has a token for each byte, wordpiece at least one word
    if vocabulary < least:
        what = f"a vocabulary of {vocabulary} tokens is too small for {kind} and {count_text(len(names), 'special token')}"
        raise _refused(what, f"give --vocabulary {least} or more")
    tokenizer: tokenizers.Tokenizer
    trainer: Any
    if kind == "bpe":
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=names,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lowercase)
        tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = library.decoders.WordPiece()
        trainer = library.trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def _library() -> Any:
    # Unless this is set, tokenizers warns when a process forks after threads of tokenizers have run. After the fork, a rank is
    # started by exec, so these threads do no harm.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        import tokenizers  # optional: an extra of this project
    except ImportError:
        help = "pip install 'chimerac[text]'; a run without --tokenizer does not need it"
        raise _refused("tokenizers is not installed", help) from None
    return tokenizers


def _refused(what: str, help: str) -> ChimeraError:
    return refuse("E861", what, help=help)
