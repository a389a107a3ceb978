"""Models that a user brings by name: a function of a Python file, or a Hugging Face model of this host.

    FILE.py:function       the function returns a torch.nn.Module that reads tokens (b, L) and returns logits, or a Model
    hf:config.json         initial weights
    hf:FOLDER              the weights of its safetensors; initial weights if it has none (a folder with *.bin alone is refused)

torch is imported only by the functions that need it, when they are called.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

from chimerac.chimera_ir.diagnostics import did_you_mean, refuse
from chimerac.chimera_ir.sequences import check_positions

if TYPE_CHECKING:
    from chimerac.interpreter.runtime.model import Model

HUGGING_FACE = "hf:"
LossName = Literal["cross-entropy", "next-token", "squared-error"]  # the names in `LOSSES` of losses.py, which needs torch
LOSS_NAMES = get_args(LossName)
DEFAULT_LOSS = "cross-entropy"
BYTES = 256  # how many values a byte has: the tokens of a text without a tokenizer


def is_own(name: str | None) -> bool:
    """Return whether this is the name of a user's model, not of a preset."""
    return name is not None and (name.startswith(HUGGING_FACE) or ".py:" in name)


def may_have_own_loss(name: str | None) -> bool:
    """Return whether this model may bring a loss of the user's: a function of a file may return a Model."""
    return is_own(name) and not str(name).startswith(HUGGING_FACE)


def is_cross_entropy(name: str | None, loss: str | None) -> bool:
    """Return whether the loss of a run is known to be a cross-entropy, and so in nats.

    Args:
        name: of the model; None if none is given, which means a preset.
        loss: the value of --loss.
    """
    return loss in ("cross-entropy", "next-token") or (loss is None and not may_have_own_loss(name))


def unread_option(name: str | None, layers: str | None, head: str | None, loss: str | None) -> str:
    """Return what is wrong and what to do, if one of these options is not for models with such a name; otherwise ''.

    Args:
        name: of the model; None if none is given, which means a preset.
        layers, head, loss: the values of the options with these names, None if they are not given.
    """
    given = {"--layers": layers, "--head": head, "--loss": loss}
    unread = next((option for option, value in given.items() if value is not None), None)
    if unread is not None and not is_own(name):
        found = "the default model" if name is None else f"'{name}'"
        names = "hf:PATH" if unread == "--head" else "FILE.py:FUNCTION or hf:PATH"
        help = f"leave out {unread}, or give --model {names}"
        return f"{unread} is for a model of your own, and {found} is none: {help}"
    if head is not None and not str(name).startswith(HUGGING_FACE):
        return f"--head is for a Hugging Face model, and '{name}' is none: leave out --head, or give --model hf:PATH"
    return ""


def check_own(name: str) -> None:
    """Check, without torch, what a user's model is read from.

    Raises ChimeraError: E801 for a file that cannot be read, is not Python or lacks the function; for a Hugging Face model E850
    without transformers, E854 for a path that does not exist.
    """
    if name.startswith(HUGGING_FACE):
        if importlib.util.find_spec("transformers") is None:
            message = f"--model {name} needs the package transformers, which is not installed"
            raise refuse("E850", message, help="pip install 'chimerac[huggingface]'")
        path = Path(name.removeprefix(HUGGING_FACE))
        if not os.path.exists(path):  # unlike Path.exists, also False for a path that is too long or not permitted
            help = "give the config.json of a model, or a folder that save_pretrained wrote; nothing is downloaded"
            raise refuse("E854", f"--model {name}: {path} does not exist", help=help)
        return
    path, function = _file_of(name)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error) or "it is nested too deeply"
        raise refuse("E801", f"--model {name}: cannot read {path}: {reason}") from None
    known = list(_names(tree))
    if function not in known and "*" not in known:
        raise refuse("E801", f"--model {name}: {path} has no function {function}", help=did_you_mean(function, known))


def own_model(
    name: str,
    samples: int,
    length: int,
    tokens: int | None = None,
    *,
    loss: str | None = None,
    layers: str | None = None,
    head: str | None = None,
) -> Model:
    """Return a user's model.

    Args:
        samples: of a micro-batch.
        length: tokens of a sample, where the model reads text.
        tokens: how many the tokenizer has; None: texts are bytes.
        loss: a name of `LOSSES`, by default DEFAULT_LOSS.
        layers: paths as for `cut`, with commas or spaces between them.
        head: as for `huggingface`.

    If the function of a file returns a Model, this model is returned as it is.

    Raises ChimeraError: E801 for a name that is no function, for a function that returns neither a Model nor a module whose
    forward has an argument, and for `loss` or `layers` beside a function that returns a Model; E821 for samples that do not fit
    the positions of a Hugging Face model; E850, E851, E852, E854 and E855 as `huggingface` and `cut` do; E854 also for a
    Hugging Face model that reads neither text nor images and, if texts are bytes, for a vocabulary with fewer tokens than a
    byte has values; E861 for a tokenizer with too many tokens.
    """
    import torch  # takes 2 s

    from chimerac.interpreter.adapters.losses import LOSSES  # 2.6 s together with torch

    loss_function, paths = LOSSES[loss or DEFAULT_LOSS], tuple((layers or "").replace(",", " ").split())
    if not name.startswith(HUGGING_FACE):
        unread = "--loss" if loss is not None else "--layers" if layers is not None else ""  # by a Model
        return _from_file(name, samples, length, loss_function, paths, unread)
    # 2.6 s together with torch. transformers is imported only when a configuration is read.
    from chimerac.interpreter.adapters.huggingface import class_of, configuration, example_fields, huggingface

    source = name.removeprefix(HUGGING_FACE)
    config = configuration(source)
    model_class = class_of(config, head)
    fields = example_fields(config, model_class, samples, length)
    if "input_ids" in fields:
        _check_text(source, config.get_text_config(), length, tokens, halves="decoder_input_ids" in fields)
    if "decoder_input_ids" in fields:  # the encoder reads the first half of a sample, and the decoder predicts the second
        fields = {field: t[:, : length // 2] for field, t in fields.items()}
    targets = next(iter(fields.values())) if "input_ids" in fields else torch.zeros(samples, dtype=torch.int64)
    return huggingface(source, fields, loss=loss_function, targets=targets, head=head, layers=paths)


def files_of(name: str) -> list[Path]:
    """Return the paths of the files from which a model may be read."""
    if not name.startswith(HUGGING_FACE):
        return [_file_of(name)[0]]
    path = Path(name.removeprefix(HUGGING_FACE))
    return list(path.iterdir()) if path.is_dir() else [path]


def _check_text(source: str, config: Any, length: int, tokens: int | None, halves: bool) -> None:
    """Check that samples of `length` tokens fit a configuration.

    Args:
        tokens: how many the tokenizer has; None: texts are bytes.
        halves: whether the model reads a sample in two halves.

    Raises ChimeraError: E821 as `check_positions`; for a vocabulary of fewer tokens than the text has, E861 with a tokenizer,
    E854 if texts are bytes.
    """
    vocabulary, positions = getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None)
    check_positions(source, length, positions, "set more positions in the configuration", halves)
    if vocabulary is not None and tokens is not None and vocabulary < tokens:
        message = f"the tokenizer has {tokens} tokens, and {source} a vocabulary of {vocabulary}"
        raise refuse("E861", message, help="give --tokenizer one with fewer tokens, or set vocab_size in the configuration")
    if vocabulary is not None and tokens is None and vocabulary < BYTES:
        message = f"{source} has a vocabulary of {vocabulary} tokens, and the tokens of a text are its {BYTES} bytes"
        raise refuse("E854", message, help=f"set vocab_size in the configuration to {BYTES} or more")


def _from_file(name: str, samples: int, length: int, loss: Any, layers: Sequence[str], unread: str) -> Model:
    """Return the model that a function of a file builds. Raises ChimeraError: E801, and E851 and E852 as `cut` does.

    Args:
        unread: an option that was given, and that may not be given if the function returns a Model; '' if there is none.
    """
    import torch
    from torch import nn

    # 2.6 s together with torch
    from chimerac.interpreter.adapters.construction import returned
    from chimerac.interpreter.adapters.model import cut
    from chimerac.interpreter.runtime.model import Model

    path, function = _file_of(name)
    build = getattr(_imported(path), function, None)
    if not callable(build):
        raise refuse("E801", f"--model {name}: {function} is not a function", help="name a function that returns the model")
    built = returned(build)
    if isinstance(built, Model):
        if unread:
            message = f"--model {name}: {function}() returns a Model, which has its own layers and loss, and {unread} is given"
            raise refuse("E801", message, help=f"leave out {unread}, or return a module")
        return built
    if not isinstance(built, nn.Module):
        found = f"a value of type {type(built).__name__}"
        message = f"--model {name}: {function}() returns {found}, neither a torch.nn.Module nor a Model"
        raise refuse("E801", message, help="return the module, or what chimerac.interpreter.adapters.model.cut returns")
    field = next(iter(inspect.signature(built.forward).parameters), None)
    if field is None:
        message = f"--model {name}: the forward of {type(built).__name__} has no argument for the tokens"
        raise refuse("E801", message, help="give it one, or return what chimerac.interpreter.adapters.model.cut returns")
    tokens = torch.zeros(samples, length, dtype=torch.int64)
    return cut(build, {field: tokens}, loss=loss, targets=tokens, layers=layers, name=name)


def _imported(path: Path) -> ModuleType:
    """Import a file as a module of its own, and return it."""
    spec = importlib.util.spec_from_file_location(f"chimerac_model_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def _names(module: ast.Module) -> Iterator[str]:
    """Yield the names that a file may bind outside functions and classes; * for an import of all names."""
    remaining: list[ast.AST] = [module]
    while remaining:  # no recursion: an expression may be nested more deeply than Python's calls
        node = remaining.pop()
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
                continue
            case ast.Lambda():
                continue
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
        remaining += ast.iter_child_nodes(node)


def _file_of(name: str) -> tuple[Path, str]:
    file, _, function = name.rpartition(":")
    return Path(file), function
