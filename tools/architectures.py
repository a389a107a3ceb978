"""Trains architectures of transformers that no code of this project names, with only their lists of layers given.

    python -m tools.architectures whisper mamba    these; by default all, which takes 5 to 15 minutes
    python -m tools.architectures --write mamba    and records them in the table of docs/any_model.md, beside the others there

Each model is built from a tiny configuration and trained for three iterations under Chimera on four ranks, which are threads of
this process. The difference is the largest relative one of its losses from those of the model of transformers in a plain loop,
without any part of this project. A model that cannot be cut has the finding in its row. The exit status is 1 if a difference is
larger than TOLERANCE, or something else than a finding is raised.
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
TOKENS, LENGTH, CLASSES, WIDTH, SEED = 260, 16, 5, 32, 3
ITERATIONS, TOLERANCE = 3, 2e-5
PAGE = ROOT / "docs" / "any_model.md"
HEAD = ("architecture", "class", "`--layers`", "layers", "difference")

# Values that the configurations of several architectures share. All models are tiny, and have no dropout.
TEXT: Config = {
    "vocab_size": TOKENS, "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 66, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED: Config = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
NO_DROPOUT: Config = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MASKED: Config = {**TEXT, **NO_DROPOUT}
SHORT: Config = {"vocab_size": TOKENS, "n_embd": WIDTH, "n_layer": 4, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.0,
                 "resid_pdrop": 0.0, "embd_pdrop": 0.0}  # fmt: skip
PAIRED: Config = {
    "vocab_size": TOKENS, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64, "dropout": 0.0,
    "attention_dropout": 0.0, "activation_dropout": 0.0, "pad_token_id": 0, "decoder_start_token_id": 1, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
IMAGE: Config = {
    "hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8, "num_labels": CLASSES, **NO_DROPOUT,
}  # fmt: skip
PYRAMID: Config = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4,
                   "num_labels": CLASSES, "drop_path_rate": 0.0}  # fmt: skip
CONVOLUTIONS: Config = {"image_size": 32, "patch_size": 2, "hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2,
                        "num_labels": CLASSES, "drop_path_rate": 0.0}  # fmt: skip
STATE: Config = {"vocab_size": TOKENS, "hidden_size": WIDTH, "num_hidden_layers": 4, "state_size": 8}
BOTH = "model.encoder.layers model.decoder.layers"

ARCHITECTURES: Mapping[str, tuple[Config, str]] = {  # the configuration, and what --layers names
    "opt": ({**TEXT, "ffn_dim": 64, "word_embed_proj_dim": WIDTH, "dropout": 0.0}, "model.decoder.layers"),
    "gpt_neox": (TEXT, "gpt_neox.layers"),
    "gptj": ({**SHORT, "rotary_dim": 4}, "transformer.h"),
    "gpt_bigcode": (SHORT, "transformer.h"),
    "bloom": ({"vocab_size": TOKENS, "hidden_size": WIDTH, "n_layer": 4, "n_head": 4, "hidden_dropout": 0.0,
               "attention_dropout": 0.0}, "transformer.h"),
    "falcon": ({**TEXT, "ffn_hidden_size": 64}, "transformer.h"),
    "mpt": ({"vocab_size": TOKENS, "d_model": WIDTH, "n_layers": 4, "n_heads": 4, "max_seq_len": 64}, "transformer.blocks"),
    "mistral": (GROUPED, "model.layers"),
    "mixtral": ({**GROUPED, "num_local_experts": 2}, "model.layers"),
    "qwen2": (GROUPED, "model.layers"),
    "qwen3": (GROUPED, "model.layers"),
    "gemma": (GROUPED, "model.layers"),
    "gemma2": (GROUPED, "model.layers"),
    "phi": ({**TEXT, "resid_pdrop": 0.0}, "model.layers"),
    "phi3": (GROUPED, "model.layers"),
    "glm": (GROUPED, "model.layers"),
    "smollm3": (GROUPED, "model.layers"),
    "mamba": (STATE, "backbone.layers"),
    "rwkv": ({"vocab_size": TOKENS, "hidden_size": WIDTH, "num_hidden_layers": 4, "context_length": 64}, "rwkv.blocks"),
    "roberta": (MASKED, "roberta.encoder.layer"),
    "distilbert": ({"vocab_size": TOKENS, "dim": WIDTH, "n_layers": 4, "n_heads": 4, "hidden_dim": 64, "dropout": 0.0,
                    "max_position_embeddings": 64, "attention_dropout": 0.0}, "distilbert.transformer.layer"),
    "electra": ({**MASKED, "embedding_size": WIDTH}, "electra.encoder.layer"),
    "deberta": ({**MASKED, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "deberta.encoder.layer"),
    "deberta-v2": ({**MASKED, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, "deberta.encoder.layer"),
    "modernbert": ({**TEXT, "cls_token_id": 1, "sep_token_id": 2}, "model.layers"),
    "longformer": ({**MASKED, "attention_window": [4] * 4}, "longformer.encoder.layer"),
    "bart": (PAIRED, BOTH),
    "pegasus": (PAIRED, BOTH),
    "m2m_100": (PAIRED, BOTH),
    "prophetnet": ({"vocab_size": TOKENS, "hidden_size": WIDTH, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
                    "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
                    "num_decoder_attention_heads": 4, "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
                    "max_position_embeddings": 64}, "prophetnet.encoder.layers prophetnet.decoder.layers"),
    "whisper": ({**PAIRED, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32}, BOTH),
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
class Tried:
    """What an attempt to train an architecture has found.

    layers: their number. difference: of its losses, relative; None where it is refused, with the finding.
    """

    class_name: str
    layers: int = 0
    difference: float | None = None
    finding: str = ""

    @property
    def cell(self) -> str:
        """Return the last cell of the row."""
        return self.finding if self.difference is None else f"{self.difference:.1e}"


def attempt(kind: str) -> Tried:
    """Train an architecture under Chimera and without a pipeline."""
    values, layers = ARCHITECTURES[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": kind, **values}), encoding="utf-8")
        config = configuration(path)
        model_class = class_of(config)
        fields = _fields(config, model_class)
        torch.manual_seed(SEED)
        batches = [_random(fields, SAMPLES * MICRO_BATCHES) for _ in range(ITERATIONS)]
        try:
            model = huggingface(path, fields, loss=_mean, targets=batches[0][1][:SAMPLES], layers=layers.split())
        except ChimeraError as error:
            found = error.diagnostics[0]
            return Tried(model_class.__name__, finding=f"{found.code}: {found.message}")
        ((before, losses),) = train(lambda: model, ["chimera"], batches).values()
        plain = train_plainly(model_class(config).train(), before, batches, _plain_loss)
    difference = max(abs(a - b) / abs(b) for a, b in zip(losses, plain, strict=True))
    return Tried(model_class.__name__, len(model.layer_names), difference)


def _fields(config: Any, model_class: Any) -> Fields:
    """Return a micro-batch of what a model reads: tokens, images or the spectra of sounds."""
    if model_class.main_input_name != "input_features":
        return example_fields(config, model_class, SAMPLES, LENGTH)
    spectra = torch.zeros(SAMPLES, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": spectra, "decoder_input_ids": torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)}


def _random(fields: Fields, count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return random fields and targets of so many samples: a class for an image, otherwise a token for each token."""
    made = {}
    for name, t in fields.items():
        shape = (count, *t.shape[1:])
        made[name] = torch.rand(shape) if t.is_floating_point() else torch.randint(3, TOKENS, shape)
    is_image = all(t.is_floating_point() for t in fields.values())
    return made, torch.randint(0, CLASSES, (count,)) if is_image else torch.randint(3, TOKENS, (count, LENGTH))


def _mean(logits: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
    first = logits if isinstance(logits, Tensor) else logits[0]
    return F.cross_entropy(first.flatten(0, -2), targets.flatten())


def _plain_loss(module: nn.Module, fields: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return _mean(logits_of(module(**fields)), targets)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="ARCHITECTURE", help=f"of {', '.join(ARCHITECTURES)}; by default all")
    parser.add_argument("--write", action="store_true", help="record them in docs/any_model.md")
    options = parser.parse_args(arguments)
    if unknown := set(options.kinds) - set(ARCHITECTURES):
        parser.error(f"unknown architecture {min(unknown)}: take one of {', '.join(ARCHITECTURES)}")
    torch.set_num_threads(1)
    start, rows, is_equal = time.monotonic(), dict[str, tuple[object, ...]](), True
    if options.write:
        rows |= {row[HEAD[0]]: tuple(row.values()) for part in recorded_rows("architectures", PAGE) for row in part}
    for kind in options.kinds or ARCHITECTURES:
        found = attempt(kind)
        is_equal &= found.difference is None or found.difference <= TOLERANCE
        layers = " ".join(f"`{name}`" for name in ARCHITECTURES[kind][1].split())
        rows[kind] = (kind, found.class_name, layers, found.layers or "-", found.cell)
        print(*(f"{cell!s:<{width}}" for cell, width in zip(rows[kind], (14, 32, 56, 4, 8), strict=True)), flush=True)
        if options.write:
            body = table(HEAD, [rows[name] for name in ARCHITECTURES if name in rows])
            record("architectures", stamp(time.monotonic() - start, SEED, ("torch", "transformers")) + body, PAGE)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
