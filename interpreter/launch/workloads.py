"""The model and the data of a run. The one module of the interpreter that knows which models and data there are."""

from __future__ import annotations

from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.training.data import Data, text_data
from chimerac.models.gpt import gpt


def model_of(settings: RunSettings) -> Model:
    """Return the model of a run. Raises ChimeraError E801 for an unknown one."""
    return gpt(settings.model, settings.seq_len, settings.dropout)


def data_of(settings: RunSettings) -> Data:
    """Return the data of a run. Raises ChimeraError: E802 no text, E803 too short a text."""
    return text_data(settings.data, settings.seq_len, settings.seed)
