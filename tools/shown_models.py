"""The models of tables in the docs, with samples to train them on: presets, and small models of transformers."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.adapters.own import HUGGING_FACE, own_model
from chimerac.interpreter.data.digits import digits
from chimerac.interpreter.data.images import Images
from chimerac.interpreter.data.names import SIZES
from chimerac.interpreter.data.pairs import pair_data
from chimerac.interpreter.data.text import load_text
from chimerac.interpreter.data.windows import text_data
from chimerac.interpreter.launch.own_data import own_data
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.pipeline.programs import program_for
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.model import Model, Values
from chimerac.interpreter.runtime.partitioned import PartitionedModel, missing_ties, partitioned
from chimerac.interpreter.training.reference import whole_model
from chimerac.models.families import preset
from chimerac.models.presets import Cnn, sizes_of

SEED = 3
HIDDEN = 256
VOCABULARY = 260  # of a model on bytes: 256 bytes and 4 special tokens
# Parts of configurations, with the names that transformers has for the sizes of each kind of model.
BERT_AND_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 4 * HIDDEN,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 4, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
T5 = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": 64, "d_ff": 4 * HIDDEN, "num_layers": 3, "num_heads": 4}
# Dropout is off: a pipeline seeds torch's generator for each call, so a plain loop has other draws (docs/any_model.md).
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {**GPT2, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "bert": {**BERT_AND_LLAMA, **NO_DROPOUT, "architectures": ["BertForMaskedLM"]},
    "t5": {**T5, "dropout_rate": 0.0},
    "llama": {**BERT_AND_LLAMA, "num_key_value_heads": 2},
}
NAMES = tuple(f"{HUGGING_FACE}{kind}" for kind in CONFIGS)


@dataclass(frozen=True)
class RandomImages(Samples):
    """Images of random numbers for a CNN, in place of a data set."""

    sizes: Cnn

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return an image for each number: for equal numbers the same one."""
        shape = self.sizes.channels, self.sizes.side, self.sizes.side
        return (torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n in numbers]),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return a class for each number: for equal numbers the same one."""
        return (torch.tensor([n * n % self.sizes.classes for n in numbers]),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many images these are."""
        return (len(numbers),)


class Whole(nn.Module):
    """A model of transformers in one process, without the runtime.

    Args:
        reads: the names of the fields that it reads.
    """

    def __init__(self, module: nn.Module, reads: Sequence[str]) -> None:
        super().__init__()
        self.module, self.reads = module, tuple(reads)

    def forward(self, **fields: Tensor) -> Values:
        """Return the logits."""
        return (self.module(**fields).logits,)


@dataclass(frozen=True)
class Case:
    """A model with its samples.

    Attributes:
        whole: returns the model in one process, with the initial weights that the stages have.
    """

    model: Model
    samples: Samples
    whole: Callable[[], Any]

    def parted(
        self, schedule: str, parameters: Mapping[str, int], description: ModelDescription
    ) -> tuple[Program, PartitionedModel]:
        """Return the program of a schedule, with ties for what the stages share, and the model, partitioned for the program."""
        untied = program_for(schedule, parameters, width=1, world=None)
        program = program_for(schedule, parameters, width=1, world=None, tied=missing_ties(untied, description))
        return program, partitioned(program, self.model, description, ties_by_stage=bool(description.tied))


def case_of(name: str, micro_batch: int, length: int) -> Case:
    """Return the case of a preset, or of a model of CONFIGS by the name hf:KIND.

    Args:
        length: tokens of a sample of text.
    """
    if name in NAMES:
        return _of_transformers(name.removeprefix(HUGGING_FACE), micro_batch, length)
    model = preset(name, length)
    return Case(model, samples_for(name, length), lambda: whole_model(model, SEED))


def samples_for(name: str, length: int) -> Samples:
    """Return samples on which a preset can be trained.

    Args:
        length: tokens of a sample of text.

    A CNN gets the digits if it reads images of their size, otherwise random images.
    """
    sizes = sizes_of(name)
    if isinstance(sizes, Cnn):
        if (sizes.side, sizes.channels) != SIZES["digits"]:
            return RandomImages(sizes)
        data = digits()
        return Images(data, data.train, SEED)
    data_of = pair_data if sizes.data == "pairs" else text_data
    return data_of(load_text(None), length, SEED).train


def _of_transformers(kind: str, micro_batch: int, length: int) -> Case:
    # transformers is installed only with an extra, and takes seconds to import.
    from chimerac.interpreter.adapters.huggingface import class_of, configuration

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kind}.json"
        path.write_text(json.dumps({"model_type": kind, **CONFIGS[kind]}), encoding="utf-8")
        config = configuration(path)
        model = own_model(f"{HUGGING_FACE}{path}", micro_batch, length)
    settings = RunSettings(seq_len=length, seed=SEED)
    data = own_data(settings, model, text=lambda: load_text(None), images=lambda size: digits())

    def whole() -> Whole:
        stage, module = whole_model(model, SEED), class_of(config)(config).train()
        # Not strict: a state dict has every name of a shared parameter, and the stage may have only one of them.
        loaded = module.load_state_dict(stage.parameters_by_name(), strict=False)
        assert not loaded.unexpected_keys, f"transformers does not have {loaded.unexpected_keys}"
        return Whole(module, stage.reads)

    return Case(model, data.train, whole)
