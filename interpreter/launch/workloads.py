"""The model and the data of a run, chosen from its settings.

Importing torch takes 2 s. So modules that need it are imported inside functions. Most wrong options are reported before it
is imported.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import read
from chimerac.interpreter.adapters.own import check_own, is_own, own_model
from chimerac.interpreter.data.names import SIZES
from chimerac.interpreter.launch.own_data import own_data
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.training.settings import samples_per_micro_batch
from chimerac.models.presets import Cnn, check_sequence, default_for, is_known, sizes_of, table

if TYPE_CHECKING:
    from chimerac.chimera_ir.model import ModelDescription
    from chimerac.chimera_ir.program import Program
    from chimerac.interpreter.data.source import Data
    from chimerac.interpreter.data.sources import Source
    from chimerac.interpreter.data.text import Text
    from chimerac.interpreter.runtime.model import Model
    from chimerac.models.presets import Data as Kind


def model_table() -> str:
    """Return the models that can be chosen, and their sizes, as text."""
    return table()


def model_of(settings: RunSettings, program: Program) -> Model:
    """Return the model of a run.

    Raises ChimeraError: E801 for an unknown one, E821 for samples that are too long for it, E861 for a tokenizer that cannot
    be loaded or does not fit. A model of the user's own: also E850 to E852, E854 and E855.
    """
    if is_own(settings.model):
        return own_model(
            str(settings.model),
            samples_per_micro_batch(program, settings.micro_batch),
            settings.seq_len,
            vocabulary_of(settings, "text"),
            loss=settings.loss,
            layers=settings.layers,
            head=settings.head,
        )
    from chimerac.models.families import preset  # imports torch: 2.6 s

    name = _model_name(settings, program)
    return preset(name, settings.seq_len, settings.dropout, vocabulary_of(settings, sizes_of(name).data))


def data_of(settings: RunSettings, program: Program, model: Model) -> Data:
    """Return the data for the model of a run.

    Raises ChimeraError: E802 for data that cannot be read or is not what the model is trained on, E803 for a text or samples
    that are too short, E860 for a prepared file that cannot be written, E861 for a tokenizer that cannot be loaded or does not
    fit.
    """
    if is_own(settings.model):
        return own_data(
            settings,
            model,
            text=lambda: _text(_fitting_source(settings, model.name, None)),
            images=lambda size: _fitting_source(settings, model.name, size).images(),
        )
    name = _model_name(settings, program)
    sizes, source = sizes_of(name), _source_of_preset(settings, name)
    if isinstance(sizes, Cnn):
        from chimerac.interpreter.data.images import image_data  # imports torch: 2.6 s

        return image_data(source.images(), settings.seed, settings.augment)
    if sizes.data == "pairs":
        from chimerac.interpreter.data.pairs import pair_data  # imports torch: 2.6 s

        return pair_data(_text(source), settings.seq_len, settings.seed)
    from chimerac.interpreter.data.windows import text_data  # imports torch: 2.6 s

    return text_data(_text(source), settings.seq_len, settings.seed)


def check_options(settings: RunSettings) -> None:
    """Check the options that choose model and data; with --timed only the model. Only images need torch here.

    What --data names, or the images of a preset that --model names, is prepared here. So a launcher writes the prepared files
    before it starts ranks.

    Raises ChimeraError: E801 to E803, E821, E860, E861. A model of the user's own: also E850 and E854.
    """
    if is_own(settings.model):
        check_own(str(settings.model))
    elif settings.model is not None:
        check_sequence(settings.model, settings.seq_len)
    if settings.timed is not None:
        return
    if settings.model is None or is_own(settings.model):
        source = source_of(settings, "text")
    else:
        source = _source_of_preset(settings, settings.model)
        sizes_of(settings.model, vocabulary_of(settings, sizes_of(settings.model).data))  # raises E861
    if source.has_images:
        source.images()
    elif settings.data is not None:
        from chimerac.interpreter.data.text import split_text  # imports numpy: 0.1 s, not for --help

        split_text(_text(source), settings.seq_len)


def vocabulary_of(settings: RunSettings, kind: Kind) -> int | None:
    """Return how many tokens the tokenizer of a run has for this kind of data; None without a tokenizer, and for images.

    For pairs, the special tokens count too. Raises ChimeraError E861 for a tokenizer that cannot be loaded.
    """
    if settings.tokenizer is None or kind == "images":
        return None
    from chimerac.interpreter.data.tokenizer import load_tokenizer  # imports numpy: 0.1 s, not for --help

    encoding = load_tokenizer(settings.tokenizer).encoding
    return encoding.all_tokens if kind == "pairs" else encoding.vocabulary


def source_of(settings: RunSettings, default: str) -> Source:
    """Return where the data of a run comes from.

    Args:
        default: the name of the source without --data.
    """
    from chimerac.interpreter.data.sources import PREPARED, Source  # imports numpy: 0.1 s, not for --help

    return Source(
        settings.data or default,
        settings.data_dir or Path(),
        (settings.work_dir or Path()) / PREPARED,
        settings.tokenizer,
        settings.text_column,
        limit_s=settings.timeout,
    )


def _source_of_preset(settings: RunSettings, model: str) -> Source:
    """Return the source of the data of a preset. Raises ChimeraError: E801 for another name, E802 as `_fitting_source`."""
    sizes = sizes_of(model)
    return _fitting_source(settings, model, (sizes.side, sizes.channels) if isinstance(sizes, Cnn) else None)


def _fitting_source(settings: RunSettings, model: str, image_size: tuple[int, int] | None) -> Source:
    """Return the source of the data of a model.

    Args:
        image_size: side and number of channels of the images that the model reads; None if it reads text.

    Raises ChimeraError E802 if --data is something else, or there is no data set of such images.
    """
    needs = "text" if image_size is None else "images of {0} x {0} x {1}".format(*image_size)
    # Without --data: the data set of images of this size, else text. If the model reads images, text is refused below.
    source = source_of(settings, next((name for name, size in SIZES.items() if size == image_size), "text"))
    if SIZES.get(source.name) == image_size:  # both are None for a text
        return source
    if image_size is not None and image_size not in SIZES.values():  # with every --data, and without one
        known = ", ".join("{0} x {0} x {1} ({2})".format(*size, name) for name, size in SIZES.items())
        message = f"{model} reads {needs}, and there is no data set of them"
        raise refuse("E802", message, help=f"there are images of {known}; or train it with Pipeline in a loop of your own")
    message = f"--data {settings.data} does not fit: {model} is trained on {needs}"
    raise refuse("E802", message, help="leave out --data, or take a model that is trained on it (--help lists them)")


def check_depth(settings: RunSettings, program: Program) -> None:
    """Check, without torch, that a preset has a layer for each stage. Raises ChimeraError: E705, E801 for an unknown model.

    With --timed, and for a user's own model, nothing is checked.
    """
    # This imports pydantic: 0.1 s, which --help does not need.
    from chimerac.chimera_ir.partition import check_layers

    if is_own(settings.model):
        return  # the layers of such a model are known only when torch has built it
    name, stages = _model_name(settings, program), program.header.stages
    if settings.timed is None:
        check_layers(name, sizes_of(name).layers, stages, f"--model {default_for(stages)}")


def with_partition(settings: RunSettings, program: Program, model: ModelDescription | None = None) -> Program:
    """Return the program with the partition of --split or --partition, if one is given.

    Args:
        model: the description of a user's own model. None for a preset, and for an own model that is not known yet: then
            --split is left out and --partition is not checked.

    Raises ChimeraError: E001 for a file that cannot be read, E705 for a split into more stages than layers, E706 for a
    partition of another model or into another number of stages, E707 for a file that is no partition, E708 for a split that
    does not fit, E801 for an unknown model.
    """
    if settings.split is None and settings.partition is None:
        return program
    # This imports pydantic: 0.1 s, which --help does not need.
    from chimerac.chimera_ir.partition import check_fits, partition_from_json, split_by_counts

    stages = program.header.stages
    if settings.partition is not None:
        given = partition_from_json(read(settings.partition), str(settings.partition))
    if not is_own(settings.model):
        name = given.model if settings.model is None and settings.partition is not None else _model_name(settings, program)
        layers = sizes_of(name).layers
    elif model is not None:
        name, layers = model.name, len(model.layers)
    else:
        return program if settings.partition is None else program.with_partition(given)
    if settings.split is not None:
        given = split_by_counts(name, layers, settings.split, stages)
    check_fits(given, name, layers, stages)
    return program.with_partition(given)


def _model_name(settings: RunSettings, program: Program) -> str:
    """Return the name of the model: that of --model, else that of the program's partition, else the default for its stages.

    The partition counts only if its model is a preset.
    """
    if settings.model is not None:
        return settings.model
    if program.partition is not None and is_known(program.partition.model):
        return program.partition.model
    return default_for(program.header.stages)


@lru_cache(maxsize=1)  # check_options reads the text, and data_of needs it again
def _text(source: Source) -> Text:
    return source.text()
