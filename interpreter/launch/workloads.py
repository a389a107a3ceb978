"""The model and the data of a run. No other module of the interpreter names a model or a data set."""

from __future__ import annotations

from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.training.data import Data, text_data
from chimerac.models.gpt import gpt


def model_of(settings: RunSettings) -> Model:
    """Return the model of a run. Raises ChimeraError E801 for an unknown one."""
    return gpt(settings.model, settings.seq_len, settings.dropout)


def data_of(settings: RunSettings) -> Data:
    """Return the data of a run. Raises ChimeraError: E802 no text, E803 a text that is too short."""
    return text_data(settings.data, settings.seq_len, settings.seed)
