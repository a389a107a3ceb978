"""Generating text: a language model with trained weights, in one process without a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, short_path
from chimerac.interpreter.data.text import BYTES
from chimerac.interpreter.data.tokenizer import Tokenizer, load_tokenizer
from chimerac.interpreter.runtime.model import Stage
from chimerac.interpreter.training.export_file import SAFETENSORS
from chimerac.models.families import preset
from chimerac.models.presets import sizes_of


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        count: how many tokens.
        seed: of the random numbers.
        temperature: the logits are divided by it; 0 takes the likeliest token.
        top_k: draw from this many of the likeliest tokens, and from any others that are as likely as the last of them; None
            draws from all.
    """

    count: int
    temperature: float
    top_k: int | None
    seed: int


class TextGenerator:
    """A language model.

    Args:
        whole: all its layers.
        length: the most tokens that it reads.
        tokenizer: None for bytes.
    """

    def __init__(self, whole: Stage, length: int, tokenizer: Tokenizer | None) -> None:
        self.whole, self.length, self.tokenizer = whole.eval(), length, tokenizer

    def continued(self, prompt: str, sampling: Sampling) -> str:
        """Return a text that continues the prompt, without the prompt.

        Raises ChimeraError E862 for a prompt that has no token or is not UTF-8, and if the model computes numbers that are not
        finite.
        """
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise refuse("E862", "the prompt is not UTF-8", help="give --prompt a text in UTF-8") from None
        tokens = list(prompt.encode()) if self.tokenizer is None else [int(t) for t in self.tokenizer.encode([prompt])[0]]
        if not tokens:
            raise refuse("E862", "the prompt has no token", help="give --prompt at least one character")
        draws, begin = torch.Generator().manual_seed(sampling.seed), len(tokens)
        with torch.no_grad():
            for _ in range(sampling.count):
                logits = self.whole(torch.tensor([tokens[-self.length :]]))[0][0, -1]  # for the next token
                if not bool(logits.isfinite().all()):
                    help = "train with --skip-nonfinite, or export the weights of an earlier checkpoint"
                    raise refuse("E862", "the model computes numbers that are not finite with these weights", help=help)
                tokens.append(_draw_token(logits.float(), sampling, draws))
        if self.tokenizer is None:  # the model may have further tokens, from 256 on, which stand for no text
            return bytes(token for token in tokens[begin:] if token < 256).decode("utf-8", "replace")
        # With some tokenizers the text of a token depends on the token before it. So all tokens are decoded together.
        return self.tokenizer.decode(tokens).removeprefix(self.tokenizer.decode(tokens[:begin]))


def _draw_token(logits: Tensor, sampling: Sampling, draws: torch.Generator) -> int:
    """Draw a token; take the likeliest one if the temperature is too small to divide by it.

    Args:
        logits: (vocabulary,).
    """
    if sampling.temperature < torch.finfo(logits.dtype).tiny:
        return int(logits.argmax())
    if sampling.top_k is not None and sampling.top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    logits = (logits - logits.max()) / sampling.temperature  # the largest is 0, also where the others become -inf
    return int(torch.multinomial(torch.softmax(logits, 0), 1, generator=draws))


def generator_of(path: Path, model: str | None, length: int | None, tokenizer: Path | None) -> TextGenerator:
    """Return the language model whose weights a file has.

    Args:
        model, length: as in the training; None where the file names them.
        tokenizer: that of the training; None for bytes. No file has the tokenizer itself. A .safetensors file can name it, so
            that another one is refused.

    Raises ChimeraError: E862 for a file that cannot be read, does not say enough or does not fit, E861 for a tokenizer that
    cannot be read or does not fit the model, E801 for an unknown model, E821 for a length that is too long for it.
    """
    weights, about = _read(path)
    named_length = about.get("sequence_length", "")
    if not length and named_length.isdecimal() and len(named_length) < 10:  # any program may have written the file
        length = int(named_length)
    name = model or about.get("model")
    if not name or not length:
        raise _refused(path, "the file does not say what was trained", "give --model and --seq-len of the training")
    if sizes_of(name).data != "text":
        raise _refused(path, f"{name} does not predict the next token", "export a model that does")
    loaded = None if tokenizer is None else load_tokenizer(tokenizer)
    trained, given = about.get("encoding", ""), BYTES.name if loaded is None else loaded.encoding.name
    if trained and trained != given:
        help = "leave out --tokenizer" if trained == BYTES.name else "give the tokenizer of the training with --tokenizer"
        raise _refused(path, f"it was trained on {trained}, not on {given}", help)
    vocabulary = None if loaded is None else loaded.encoding.vocabulary
    built = preset(name, length, vocabulary=vocabulary)
    whole = built.build_stage(range(len(built.layer_names)), seed=0)
    help = "give --model and --seq-len of the training"
    if others := [k for k in weights if not k.startswith(tuple(f"{layer_name}." for layer_name in whole.names))]:
        raise _refused(path, f"its weights are not those of {name}: {others[0]} is of no layer of the model", help)
    try:
        for layer_name, layer in zip(whole.names, whole.layers, strict=True):
            prefix = f"{layer_name}."
            layer.load_state_dict({k.removeprefix(prefix): t for k, t in weights.items() if k.startswith(prefix)})
    except RuntimeError as error:
        raise _refused(path, f"its weights are not those of {name}: {error}", help) from None
    return TextGenerator(whole, length, loaded)


def _read(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """Return the tensors of a file by name, and what it says about the training: nothing in a .pt file.

    Raises ChimeraError E862 if it cannot be read.
    """
    try:
        if path.suffix != SAFETENSORS:
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in found.items()):
                raise ValueError("it is no mapping from names to tensors")
            return found, {}
        from safetensors import safe_open  # optional: an extra of this project

        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except ImportError:
        raise _refused(path, "safetensors is not installed", "pip install 'chimerac[export]'") from None
    except OSError as error:
        raise _refused(path, reason(error), "give the path of a file that --export has written") from None
    except Exception as error:  # both libraries raise many kinds
        raise _refused(
            path, (str(error) or type(error).__name__).splitlines()[0], "give a file that --export has written"
        ) from None


def _refused(path: Path, why: str, help: str) -> ChimeraError:
    return refuse("E862", f"{short_path(path)} cannot generate text: {why}", help=help)
