"""Trains architectures of the library transformers that this project has no code for. Only their lists of layers are given.

    python -m tools.architectures whisper mamba    these; by default all, which takes 5 to 15 minutes
    python -m tools.architectures --write mamba    and records them in the table of docs/any_model.md; its other rows stay

Each model is built from a tiny configuration and trained for three iterations under Chimera on four ranks, which are threads of
this process. The same model is also trained in a plain loop, without a pipeline. `difference` is the largest relative
difference between the losses of both. The row of a model that is refused when it is cut has the finding instead. The exit
status is 1 if a difference is larger than TOLERANCE, or if an attempt ends with another error than such a finding.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.adapters.huggingface import class_of, configuration, example_fields, huggingface, logits_of
from chimerac.interpreter.runtime.model import Fields
from tests.helpers_adapters import MICRO_BATCHES, SAMPLES, train, train_plainly
from tests.proof.record import record, stamp, table
from tests.proof.record import rows as recorded_rows
from tools import ROOT

Config = Mapping[str, Any]
VOCABULARY, LENGTH, CLASSES, HIDDEN, SEED = 260, 16, 5, 32, 3  # LENGTH: tokens of a sample
FIRST_TOKEN = 3  # the least token in random samples: 0, 1 and 2 have special meanings
ITERATIONS, TOLERANCE = 3, 2e-5
PAGE = ROOT / "docs" / "any_model.md"
HEAD = ("architecture", "class", "`--layers`", "layers", "difference")

# Values of configurations; most are shared by several architectures. All models are tiny, and have no dropout.
TEXT: Config = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 66, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED_QUERY: Config = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
NO_DROPOUT: Config = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERT: Config = {**TEXT, **NO_DROPOUT}
GPT2: Config = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 4, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.0,
                 "resid_pdrop": 0.0, "embd_pdrop": 0.0}  # fmt: skip
ENCODER_DECODER: Config = {
    "vocab_size": VOCABULARY, "d_model": HIDDEN, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64, "dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
IMAGE: Config = {
    "hidden_size": HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8, "num_labels": CLASSES, **NO_DROPOUT,
}  # fmt: skip
PYRAMID: Config = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4,
                   "num_labels": CLASSES, "drop_path_rate": 0.0}  # fmt: skip
CONVOLUTIONS: Config = {"image_size": 32, "patch_size": 2, "hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2,
                        "num_labels": CLASSES, "drop_path_rate": 0.0}  # fmt: skip
STATE_SPACE: Config = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 4, "state_size": 8}
BOTH_STACKS = "model.encoder.layers model.decoder.layers"

# By model_type: the configuration, and the names of the lists of layers as --layers gives them.
ARCHITECTURES: Mapping[str, tuple[Config, str]] = {
    "opt": ({**TEXT, "ffn_dim": 64, "word_embed_proj_dim": HIDDEN, "dropout": 0.0}, "model.decoder.layers"),
    "gpt_neox": (TEXT, "gpt_neox.layers"),
    "gptj": ({**GPT2, "rotary_dim": 4}, "transformer.h"),
    "gpt_bigcode": (GPT2, "transformer.h"),
    "bloom": ({"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": 4, "n_head": 4, "hidden_dropout": 0.0,
               "attention_dropout": 0.0}, "transformer.h"),
    "falcon": ({**TEXT, "ffn_hidden_size": 64}, "transformer.h"),
    "mpt": ({"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_layers": 4, "n_heads": 4, "max_seq_len": 64},
            "transformer.blocks"),
    "mistral": (GROUPED_QUERY, "model.layers"),
    "mixtral": ({**GROUPED_QUERY, "num_local_experts": 2}, "model.layers"),
    "qwen2": (GROUPED_QUERY, "model.layers"),
    "qwen3": (GROUPED_QUERY, "model.layers"),
    "gemma": (GROUPED_QUERY, "model.layers"),
    "gemma2": (GROUPED_QUERY, "model.layers"),
    "phi": ({**TEXT, "resid_pdrop": 0.0}, "model.layers"),
    "phi3": (GROUPED_QUERY, "model.layers"),
    "glm": (GROUPED_QUERY, "model.layers"),
    "smollm3": (GROUPED_QUERY, "model.layers"),
    "mamba": (STATE_SPACE, "backbone.layers"),
    "rwkv": ({"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 4, "context_length": 64}, "rwkv.blocks"),
    "roberta": (BERT, "roberta.encoder.layer"),
    "distilbert": ({"vocab_size": VOCABULARY, "dim": HIDDEN, "n_layers": 4, "n_heads": 4, "hidden_dim": 64, "dropout": 0.0,
                    "max_position_embeddings": 64, "attention_dropout": 0.0}, "distilbert.transformer.layer"),
    "electra": ({**BERT, "embedding_size": HIDDEN}, "electra.encoder.layer"),
    "deberta": ({**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "deberta.encoder.layer"),
    "deberta-v2": ({**BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "deberta.encoder.layer"),
    "modernbert": ({**TEXT, "cls_token_id": 1, "sep_token_id": 2}, "model.layers"),
    "longformer": ({**BERT, "attention_window": [4] * 4}, "longformer.encoder.layer"),
    "bart": (ENCODER_DECODER, BOTH_STACKS),
    "pegasus": (ENCODER_DECODER, BOTH_STACKS),
    "m2m_100": (ENCODER_DECODER, BOTH_STACKS),
    "prophetnet": ({"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
                    "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
                    "num_decoder_attention_heads": 4, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
                    "max_position_embeddings": 64}, "prophetnet.encoder.layers prophetnet.decoder.layers"),
    "whisper": ({**ENCODER_DECODER, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32}, BOTH_STACKS),
    "vit": (IMAGE, "vit.layers"),
    "deit": (IMAGE, "deit.layers"),
    "dinov2": ({**IMAGE, "mlp_ratio": 2}, "dinov2.encoder.layer"),
    "swin": (PYRAMID, "swin.encoder.layers.*.blocks"),
    "swinv2": (PYRAMID, "swinv2.encoder.layers.*.blocks"),
    "convnext": (CONVOLUTIONS, "convnext.encoder.stages.*.layers"),
    "resnet": ({"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "layer_type": "basic", "num_labels": CLASSES},
               "resnet.encoder.stages.*.layers"),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What an attempt to train an architecture has found.

    Attributes:
        layers: the number of layers between which the model can be cut; 0 if it is refused.
        difference: as at the top of this file; None if the model is refused.
        finding: why it is refused; empty if it is not.
    """

    class_name: str
    layers: int = 0
    difference: float | None = None
    finding: str = ""

    @property
    def cell(self) -> str:
        """Return the last cell of the row: the difference or the finding."""
        return self.finding if self.difference is None else f"{self.difference:.1e}"


def attempt(kind: str) -> Outcome:
    """Train an architecture under Chimera and without a pipeline, unless it is refused.

    Args:
        kind: a key of ARCHITECTURES.
    """
    values, layers = ARCHITECTURES[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": kind, **values}), encoding="utf-8")
        config = configuration(path)
        model_class = class_of(config)
        name, fields = model_class.__name__, _fields(config, model_class)
        torch.manual_seed(SEED)
        batches = [_random(fields, SAMPLES * MICRO_BATCHES) for _ in range(ITERATIONS)]
        try:
            model = huggingface(path, fields, loss=_mean_loss, targets=batches[0][1][:SAMPLES], layers=layers.split())
        except ChimeraError as error:
            first = error.diagnostics[0]
            return Outcome(name, finding=f"{first.code}: {first.message}")
        ((start_weights, losses),) = train(lambda: model, ["chimera"], batches).values()
        plain = train_plainly(model_class(config).train(), start_weights, batches, _plain_loss)
    difference = max(abs(a - b) / abs(b) for a, b in zip(losses, plain, strict=True))
    return Outcome(name, len(model.layer_names), difference)


def _fields(config: Any, model_class: Any) -> Fields:
    """Return the fields that a model reads, for one micro-batch: tokens, images, or the spectra of sounds with tokens."""
    if model_class.main_input_name != "input_features":
        return example_fields(config, model_class, SAMPLES, LENGTH)
    spectra = torch.zeros(SAMPLES, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": spectra, "decoder_input_ids": torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)}


def _random(fields: Fields, count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return the fields of `count` random samples, and their targets: a class for each image, or a token for each position."""
    made = {}
    for name, t in fields.items():
        shape = (count, *t.shape[1:])
        made[name] = torch.rand(shape) if t.is_floating_point() else torch.randint(FIRST_TOKEN, VOCABULARY, shape)
    is_image = all(t.is_floating_point() for t in fields.values())
    return made, torch.randint(0, CLASSES, (count,)) if is_image else torch.randint(FIRST_TOKEN, VOCABULARY, (count, LENGTH))


def _mean_loss(logits: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
    first = logits if isinstance(logits, Tensor) else logits[0]
    return F.cross_entropy(first.flatten(0, -2), targets.flatten())


def _plain_loss(module: nn.Module, fields: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return _mean_loss(logits_of(module(**fields)), targets)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="ARCHITECTURE", help=f"any of {', '.join(ARCHITECTURES)}; by default all")
    parser.add_argument("--write", action="store_true", help="record the rows in docs/any_model.md")
    options = parser.parse_args(arguments)
    if unknown := set(options.kinds) - set(ARCHITECTURES):
        parser.error(f"unknown architecture {min(unknown)}: take one of {', '.join(ARCHITECTURES)}")
    torch.set_num_threads(1)
    start, rows, is_equal = time.monotonic(), dict[str, tuple[object, ...]](), True
    if options.write:
        rows |= {row[HEAD[0]]: tuple(row.values()) for part in recorded_rows("architectures", PAGE) for row in part}
    kinds = options.kinds or [*ARCHITECTURES]
    for number, kind in enumerate(kinds):
        outcome = attempt(kind)
        is_equal &= outcome.difference is None or outcome.difference <= TOLERANCE
        layers = " ".join(f"`{name}`" for name in ARCHITECTURES[kind][1].split())
        rows[kind] = (kind, outcome.class_name, layers, outcome.layers or "-", outcome.cell)
        print(*(f"{cell!s:<{width}}" for cell, width in zip(rows[kind], (14, 32, 56, 4, 8), strict=True)), flush=True)
        if options.write:
            text = stamp(time.monotonic() - start, SEED, ("torch", "transformers"))
            if len(rows) > number + 1:
                text += f"This was the run of {', '.join(kinds[: number + 1])}. The other rows are of earlier runs.\n\n"
            record("architectures", text + table(HEAD, [rows[name] for name in ARCHITECTURES if name in rows]), PAGE)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
