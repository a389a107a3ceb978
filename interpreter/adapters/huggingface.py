"""Models of the transformers library, from a configuration or from a local folder with safetensors.

    model = huggingface("gpt2/config.json", {"input_ids": tokens}, loss=loss)
    pipe = Pipeline(model, "chimera", {"N": 8})

The code has no case for any architecture. By default a model's class is the one that its configuration names, and its layers
are those of its outermost lists of modules. Nothing is ever loaded from a network.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import did_you_mean, refuse
from chimerac.chimera_ir.files import reason
from chimerac.interpreter.adapters.model import CallModel, Loss, cut, tensors_in
from chimerac.interpreter.adapters.pretrained import Entry, Folder, Weights
from chimerac.interpreter.adapters.trace import line_of
from chimerac.interpreter.runtime.model import Fields, Values

# Kinds of classes of transformers. If a configuration names no class, the first kind here that its architecture has is used.
# Those with Seq2Seq are only for models with an encoder and a decoder.
_HEADS = ("Seq2SeqLM", "SpeechSeq2Seq", "MaskedLM", "CausalLM", "ImageClassification", "SequenceClassification", "PreTraining")

# Options of every class, unless the caller gives others. The other implementations of experts have shapes that change from
# batch to batch, or need bfloat16.
_OPTIONS = {"dtype": torch.float32, "experts_implementation": "batched_mm"}


def huggingface(
    source: str | Path,
    fields: Fields,
    *,
    loss: Loss,
    targets: Tensor | Sequence[Tensor] | None = None,
    head: str | None = None,
    layers: Sequence[str] = (),
    select: Callable[[Any], Values] | None = None,
    new: Sequence[str] = (),
    unused: Sequence[str] = (),
    **options: Any,
) -> CallModel:
    """Return a model of the transformers library, cut between the calls of its layers.

    Args:
        source: a config.json, or a folder with one; if the folder has safetensors too, every stage reads its own weights from
            them.
        fields, loss, targets, layers: as for `cut`.
        head: the name of a class of transformers, such as BertForMaskedLM; by default `class_of` chooses one.
        select: from what the model returns, the tensors for the loss; by default `logits_of`.
        new: names of tensors of the model that may be missing in the folder; these start with initial values.
        unused: names of tensors of the folder, as transformers renames them, that may be missing in the model.
        options: for the class, such as attn_implementation="eager".

    In `new` and `unused` a * matches any text.

    Raises ChimeraError: E850 without transformers, E851 where the layers are not found, E852 for a model that cannot be cut,
    E854 for a configuration that cannot be read or from which no model can be built, E855 for weights that cannot be read or do
    not fit.
    """
    config = configuration(source)
    model_class = class_of(config, head)
    build = _builder(model_class, config, options)
    name = f"{Path(source).name}:{model_class.__name__}"
    model = cut(build, fields, loss=loss, targets=targets, layers=layers, select=select or logits_of, name=name)
    folder = Path(source)
    if not folder.is_dir() or not any(folder.glob("*.safetensors")):
        _refuse_pickles(folder)
        return model
    return replace(model, pretrained=_weights(folder, model, build, new, unused))


def configuration(source: str | Path) -> Any:
    """Return the configuration of a config.json, or of a folder that has one.

    Raises ChimeraError: E850 without transformers, E854 where it cannot be read, is of an unknown architecture, or has a value
    that the architecture refuses.
    """
    transformers = _transformers()
    path = Path(source)
    path = path / "config.json" if os.path.isdir(path) else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise refuse(
            "E854",
            f"cannot read the configuration {path}: {reason(error)}",
            help="give the config.json of a model, or the folder that save_pretrained wrote; nothing is downloaded",
        ) from None
    kind = values.get("model_type") if isinstance(values, dict) else None
    known = transformers.CONFIG_MAPPING
    if not isinstance(kind, str) or kind not in known:
        what = f"has no model_type of transformers {transformers.__version__}" + (f": '{kind}' is unknown" if kind else "")
        raise refuse("E854", f"{path} {what}", help=did_you_mean(str(kind), list(known)) if kind else "")
    try:
        config = known[kind].from_dict(values)
    except Exception as error:  # a configuration checks its own values, each in its own way
        raise refuse("E854", f"{path}: {error}", help="correct this value of the configuration") from error
    return config


def class_of(config: Any, head: str | None = None) -> Any:
    """Return the class of a model.

    It is `head` if given, else the one that the configuration names, else that of the first kind in `_HEADS` that fits,
    else the architecture without a head.

    Raises ChimeraError E854 where transformers has no such class, or none for this architecture.
    """
    transformers = _transformers()
    name = head or next(iter(config.architectures or ()), None)
    if name is not None:
        found = getattr(transformers, name, None)
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise refuse(
                "E854",
                f"transformers {transformers.__version__} has no model {name}",
                help="name one of its classes, such as GPT2LMHeadModel, or install a version of transformers that has this one",
            )
        return found
    for kind in _HEADS:
        auto = getattr(transformers, f"AutoModelFor{kind}")
        if type(config) in auto._model_mapping and ("Seq2Seq" not in kind or config.is_encoder_decoder):
            return _first_class(auto._model_mapping[type(config)])
    if type(config) not in transformers.AutoModel._model_mapping:
        raise refuse(
            "E854",
            f"transformers {transformers.__version__} has no default class for the model_type {config.model_type}",
            help="name a class: with --head, with head=... in Python, or in 'architectures' of the configuration",
        )
    return _first_class(transformers.AutoModel._model_mapping[type(config)])


def _first_class(classes: Any) -> Any:
    return classes[0] if isinstance(classes, tuple) else classes


def example_fields(config: Any, model_class: Any, samples: int, length: int) -> Fields:
    """Return the fields without which a model cannot run, with the shapes of one micro-batch; all values are zero.

    Args:
        samples: of the micro-batch.
        length: tokens of a sample, for a model that reads text.

    Raises ChimeraError E854 for a model that reads neither tokens nor images.
    """
    name = model_class.main_input_name
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return {name: torch.zeros(samples, getattr(config, "num_channels", 3), height, width)}
    if name != "input_ids":
        message = f"{model_class.__name__} reads {name}, neither text nor images"
        raise refuse("E854", message, help="train it with Pipeline in a loop of your own, where you give its fields")
    tokens = torch.zeros(samples, length, dtype=torch.int64)
    return {name: tokens} | ({"decoder_input_ids": tokens.clone()} if config.is_encoder_decoder else {})


def logits_of(result: Any) -> Values:
    """Return the tensors of a model's result whose names end in `logits`; where it has none, its first tensor."""
    found = tuple(t for name, t in result.items() if name.endswith("logits")) if isinstance(result, Mapping) else ()
    return found or tensors_in(result)[:1]


def _builder(model_class: Any, config: Any, options: Mapping[str, Any]) -> Callable[[], nn.Module]:
    """Return the function that builds a model, without caches for generation, and with `_OPTIONS` unless others are given."""
    config = copy.deepcopy(config)
    for part in [config, *(getattr(config, name, None) for name in config.sub_configs)]:
        if hasattr(part, "use_cache"):
            part.use_cache = False

    def build() -> nn.Module:
        try:
            with _quiet():
                model: nn.Module = model_class._from_config(copy.deepcopy(config), **{**_OPTIONS, **options})
        except Exception as error:  # a constructor checks its values in its own way, or not at all
            message = f"{model_class.__name__} cannot be built from its configuration: {type(error).__name__}: {error}"
            help = "correct the configuration, or the head or the options that you gave"
            raise refuse("E854", message, notes=line_of(error), help=help) from error
        return model

    return build


def _weights(
    folder: Path, model: CallModel, build: Callable[[], nn.Module], new: Sequence[str], unused: Sequence[str]
) -> Weights:
    """Return the weights of a folder for this model. Names in the files are changed as transformers changes them."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    structure: Any = model.source.structure()
    files, entries = Folder(folder), dict[str, Entry]()
    transforms = get_model_conversion_mapping(structure)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    state, prefix = structure.state_dict(), structure.base_model_prefix
    collected: dict[str, list[tuple[str, str]]] = {}  # by name in the model: pattern and key of each tensor to be converted
    for key in sorted(files.keys):
        name, pattern = rename_source_key(key, renamings, converters, prefix, state)
        if pattern is None:
            entries[name] = Entry([key])
        else:
            collected.setdefault(name, []).append((pattern, key))
    for name, uses in collected.items():
        converter = next(c for c in converters if uses[0][0] in c.source_patterns)
        entry = Entry([key for _, key in uses], _conversion(converter, name, uses, structure))
        for target in converter.target_patterns:  # `name` is that of the first target
            entries[name.replace(converter.target_patterns[0], target)] = entry
    weights = Weights(files, entries)
    ignored = [*(structure._keys_to_ignore_on_load_unexpected or ())]
    ignored_names = [name for name in entries if any(re.search(pattern, name) for pattern in ignored)]
    shapes = {first: tuple(state[first].shape) for first in model.structure.names if first in state}
    weights.check(shapes, model.structure.names, new, [*unused, *ignored_names])
    return weights


def _conversion(converter: Any, name: str, uses: Sequence[tuple[str, str]], model: Any) -> Callable[..., Mapping[str, Tensor]]:
    """Return the function that makes tensors of the model, such as one of all experts, from tensors in the files.

    Args:
        name: in the model, of the first tensor that is made.
        uses: of each tensor in the files, the converter's pattern that its name matches, and the name.
        model: one of the class, without weights.
    """

    def convert(tensors: Sequence[Tensor]) -> Mapping[str, Tensor]:
        own = copy.deepcopy(converter)  # a converter keeps the tensors that it is given
        for (pattern, key), tensor in zip(uses, tensors, strict=True):
            own.add_tensor(name, key, pattern, tensor)
        converted: Mapping[str, Tensor] = own.convert(name, model=model, config=model.config)
        return converted

    return convert


def _refuse_pickles(folder: Path) -> None:
    """Raise ChimeraError E855 for a folder with weights in pickles (*.bin), which can run any code when they are read."""
    if folder.is_dir() and (found := next(iter(folder.glob("*.bin")), None)):
        help = "load the model with transformers and save it again with save_pretrained, which writes safetensors"
        raise refuse("E855", f"{found} is a pickle, which is not read", help=help)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let transformers write only errors: its warnings, such as those about generation, do not matter for training."""
    logging = _transformers().utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def _transformers() -> Any:
    try:
        import transformers  # of an extra; it takes seconds to import
    except ImportError as error:
        raise refuse(
            "E850",
            f"a Hugging Face model needs the package transformers: {error}",
            help="pip install 'chimerac[huggingface]'",
        ) from None
    return transformers
