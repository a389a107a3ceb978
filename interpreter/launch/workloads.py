"""The model and the data of a run. No other module of the interpreter names a model or a data set.

What needs torch is imported when it is called: torch takes 2 s to import, and a wrong option is reported before that.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.data.names import SIZES
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.models.presets import Cnn, check_sequence, default_for, is_known, sizes_of, table

if TYPE_CHECKING:
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

    Raises ChimeraError: E801 an unknown one, E821 samples that are too long for it, E861 a tokenizer that does not fit.
    """
    from chimerac.models.families import preset  # with torch, 2 s

    name = _name(settings, program)
    return preset(name, settings.seq_len, settings.dropout, vocabulary_of(settings, sizes_of(name).data))


def data_of(settings: RunSettings, program: Program) -> Data:
    """Return the data that the model of a run needs.

    Raises ChimeraError: E802 the data cannot be read or is not what the model is trained on, E803 a text that is too short,
    E860 a prepared file that cannot be written, E861 a tokenizer that does not fit.
    """
    sizes = sizes_of(_name(settings, program))
    source = _checked(settings, _name(settings, program))
    if isinstance(sizes, Cnn):
        from chimerac.interpreter.data.images import image_data  # with torch, 2 s

        return image_data(source.images(), settings.seed, settings.augment)
    if sizes.data == "pairs":
        from chimerac.interpreter.data.pairs import pair_data  # with torch, 2 s

        return pair_data(_text(source), settings.seq_len, settings.seed)
    from chimerac.interpreter.data.windows import text_data  # with torch, 2 s

    return text_data(_text(source), settings.seq_len, settings.seed)


def check_options(settings: RunSettings) -> None:
    """Check, without torch, the options that choose model and data. Raises ChimeraError: E801 to E803, E821, E860, E861.

    Prepared files are written here, so that a launcher writes them before it starts ranks.
    """
    if settings.model is not None:
        check_sequence(settings.model, settings.seq_len)
    if settings.timed is not None:
        return
    if settings.model is not None:
        kind = sizes_of(settings.model).data
        source = _checked(settings, settings.model)
        sizes_of(settings.model, vocabulary_of(settings, kind))
        if source.has_images:
            source.images()
    if settings.data is not None and not source_of(settings, "text").has_images:
        from chimerac.interpreter.data.text import split_text  # with numpy, 0.1 s that --help does not need

        split_text(_text(source_of(settings, "text")), settings.seq_len)


def vocabulary_of(settings: RunSettings, kind: Kind) -> int | None:
    """Return how many tokens the tokenizer of a run has for this kind of data; None without a tokenizer."""
    if settings.tokenizer is None or kind == "images":
        return None
    from chimerac.interpreter.data.tokenizer import load_tokenizer  # with numpy, 0.1 s that --help does not need

    encoding = load_tokenizer(settings.tokenizer).encoding
    return encoding.all_tokens if kind == "pairs" else encoding.vocabulary


def source_of(settings: RunSettings, default: str) -> Source:
    """Return where the data of a run comes from. default: the name of the source without --data."""
    from chimerac.interpreter.data.sources import PREPARED, Source  # with numpy, 0.1 s that --help does not need

    return Source(
        settings.data or default,
        settings.data_dir or Path(),
        (settings.work_dir or Path()) / PREPARED,
        settings.tokenizer,
        settings.text_column,
        settings.timeout,
    )


def _checked(settings: RunSettings, model: str) -> Source:
    """Return the source of the data of a model. Raises ChimeraError E802 if it is not what the model is trained on."""
    sizes = sizes_of(model)
    wanted = (sizes.side, sizes.channels) if isinstance(sizes, Cnn) else None
    fitting = next((name for name, size in SIZES.items() if size == wanted), "text")
    source = source_of(settings, fitting)
    if SIZES.get(source.name) != wanted:
        needs = "text" if wanted is None else "images of {0} x {0} x {1}".format(*wanted)
        message = f"--data {settings.data} does not fit: {model} is trained on {needs}"
        raise refuse("E802", message, help="leave out --data, or take a model that is trained on it (--help lists them)")
    return source


def check_depth(settings: RunSettings, program: Program) -> None:
    """Check, without torch, that the model has a layer for each stage. Raises ChimeraError E705."""
    # It imports pydantic, which takes 0.1 s that --help does not need.
    from chimerac.chimera_ir.partition import check_layers

    name, stages = _name(settings, program), program.header.stages
    if settings.timed is None:
        check_layers(name, sizes_of(name).layers, stages, f"--model {default_for(stages)}")


def _name(settings: RunSettings, program: Program) -> str:
    """Return the name of the model: the one chosen, the one that the program is cut for, or the default for its stages."""
    if settings.model is not None:
        return settings.model
    if program.partition is not None and is_known(program.partition.model):
        return program.partition.model
    return default_for(program.header.stages)


@lru_cache(maxsize=1)  # it is checked early, and used when torch is imported
def _text(source: Source) -> Text:
    return source.text()
