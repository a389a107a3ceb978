"""Hugging Face models: in stages they have the losses of plain transformers, and each stage reads its own weights.

Configurations and weights that are wrong are refused.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

from chimerac.chimera_ir.diagnostics import ChimeraError  # noqa: E402
from chimerac.interpreter.adapters.huggingface import class_of, configuration, example_fields, huggingface  # noqa: E402
from chimerac.interpreter.adapters.model import CallModel  # noqa: E402
from chimerac.interpreter.adapters.own import check_own, own_model  # noqa: E402
from chimerac.interpreter.runtime.draws import Draws, drawing  # noqa: E402
from tests.helpers_adapters import MICRO_BATCHES, SAMPLES, train, train_plainly  # noqa: E402

transformers.utils.logging.set_verbosity_error()
VOCABULARY, LENGTH, CLASSES = 50, 6, 5
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
BART = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
# By model_type of transformers: the other values of a small config.json, without dropout.
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2 | {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "bert": SIZES | NO_DROPOUT,
    "t5": {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0},
    "llama": SIZES | {"num_key_value_heads": 1},
    "opt": SIZES | {"ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0},
    "gpt_neox": SIZES,
    "vit": SIZES | NO_DROPOUT | {"image_size": 8, "patch_size": 4, "num_labels": CLASSES},
    "bart": BART | {"vocab_size": VOCABULARY, "max_position_embeddings": 16, "dropout": 0.0, "encoder_ffn_dim": 32},
    "swin": {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4,
             "num_labels": CLASSES, "drop_path_rate": 0.0},
    "mixtral": SIZES | {"num_key_value_heads": 1, "num_local_experts": 2, "head_dim": 8},
    "albert": SIZES | NO_DROPOUT | {"embedding_size": 8, "classifier_dropout_prob": 0.0},
}  # fmt: skip
LAYERS = {  # by model_type: the paths of the lists of layers; the other models are cut at their outermost lists
    "opt": ["model.decoder.layers"],
    "gpt_neox": ["gpt_neox.layers"],
    "vit": ["vit.layers"],
    "bart": ["model.encoder.layers", "model.decoder.layers"],
    "swin": ["swin.encoder.layers.*.blocks"],
    "mixtral": ["model.layers"],
    "albert": ["albert.encoder.albert_layer_groups"],
}


def write_config(folder: Path, kind: str, **more: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind} | CONFIGS[kind] | more))
    return path


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def plain_loss(module: nn.Module, fields: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return mean_loss(module(**fields).logits, targets)


def random_like(fields: Mapping[str, Tensor], count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return tensors like the fields of a micro-batch for `count` samples, and targets."""
    made = {}
    for name, t in fields.items():
        shape = (count, *t.shape[1:])
        # Tokens below 3 are special in some of these models: padding, and the beginning and the end of a text.
        made[name] = torch.rand(shape) if t.is_floating_point() else torch.randint(3, VOCABULARY, shape)
    first = next(iter(fields.values()))
    shape = (count,) if first.is_floating_point() else (count, LENGTH)  # a class for each image, or a target for each token
    return made, torch.randint(0, CLASSES, shape)


def model_of(path: Path, layers: list[str] | None = None, **options: Any) -> CallModel:
    config = configuration(path)
    fields = example_fields(config, class_of(config, options.get("head")), SAMPLES, LENGTH)
    _, targets = random_like(fields, SAMPLES)
    return huggingface(path, fields, loss=mean_loss, targets=targets, layers=layers or [], **options)


def check(path: Path, schedules: list[str], layers: list[str] | None = None, iterations: int = 3) -> None:
    """Check that the losses under these schedules are those of plain transformers, and that the first and the last one differ.

    Args:
        layers: as in LAYERS; None: the outermost lists of the model.
    """
    torch.manual_seed(3)
    model, config = model_of(path, layers), configuration(path)
    batches = [random_like(model.example(1).fields, SAMPLES * MICRO_BATCHES) for _ in range(iterations)]
    for schedule, (before, losses) in train(lambda: model, schedules, batches).items():
        whole = class_of(config)(config).train()
        expected = train_plainly(whole, before, batches, plain_loss)
        assert losses == pytest.approx(expected, rel=2e-5), schedule  # not equal: gradients are added in another order
        assert losses[0] != losses[-1]


@pytest.mark.parametrize("kind", ["gpt2", "bert", "t5", "llama"])
def test_the_losses_are_those_of_plain_transformers_under_three_schedules(kind: str, tmp_path: Path) -> None:
    check(write_config(tmp_path, kind), ["chimera", "chimera_zb", "1f1b"])


@pytest.mark.parametrize("kind", LAYERS)
def test_an_architecture_needs_no_more_than_the_paths_of_its_lists_of_layers(kind: str, tmp_path: Path) -> None:
    check(write_config(tmp_path, kind), ["chimera_zb"], LAYERS[kind], iterations=2)


def test_the_chosen_attention_is_that_of_the_model(tmp_path: Path) -> None:
    model = model_of(write_config(tmp_path, "llama"), attn_implementation="eager")
    assert model.build_stage(range(1, 2), seed=0)._intercepted.module.config._attn_implementation == "eager"


def outputs(model: CallModel, cuts: list[int], fields: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of the model in training mode.

    Args:
        cuts: the first layer of each stage but the first.
    """
    bounds, values = [0, *cuts, len(model.layer_names)], ()
    with drawing(Draws(seed=0, iteration=0, samples=tuple(range(SAMPLES)))):
        for start, stop in pairwise(bounds):
            stage = model.build_stage(range(start, stop), seed=0)
            values = stage(*values, **{name: fields[name] for name in stage.reads})
    return values


@pytest.mark.parametrize("kind", ["gpt2", "bart", "swin"])
def test_initial_weights_and_dropout_do_not_depend_on_how_the_model_is_cut(kind: str, tmp_path: Path) -> None:
    dropout = {"gpt2": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3}, "bart": {"dropout": 0.3},
               "swin": {"drop_path_rate": 0.5}}  # fmt: skip
    model = model_of(write_config(tmp_path, kind, **dropout[kind]))
    fields, _ = random_like(model.example(1).fields, SAMPLES)
    (whole,) = outputs(model, [], fields)
    for cuts in [[1], [2], list(range(1, len(model.layer_names)))]:
        (found,) = outputs(model, cuts, fields)
        assert found.equal(whole), cuts
    assert not outputs(model_of(write_config(tmp_path, kind)), [], fields)[0].equal(whole), "dropout changes the outputs"


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "bert"])
def test_each_stage_reads_its_own_weights_and_no_others_are_in_memory(kind: str, tmp_path: Path) -> None:
    config = configuration(write_config(tmp_path, kind))
    theirs = class_of(config)(config)
    theirs.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    model = model_of(tmp_path)
    parameters = dict(theirs.named_parameters(remove_duplicate=False))
    name_of = {p: name for name, p in theirs.named_parameters()}  # tied parameters have one name
    for start in range(0, len(model.layer_names), 2):
        layers = model.layer_names[start : start + 2]
        stage = model.build_stage(range(start, start + len(layers)), seed=1)
        own = stage.parameters_by_name()
        assert {name_of[parameters[name]] for name in own} == {
            name_of[p] for layer in layers for p in theirs.get_submodule(layer).parameters()
        }
        assert all(p.equal(parameters[name]) for name, p in own.items())
        in_memory = [p for p in stage._intercepted.module.parameters() if not p.is_meta]
        assert {id(p) for p in in_memory} == {id(p) for p in own.values()}
    assert set(name_of.values()) == {
        name_of[p] for layer in model.layer_names for p in theirs.get_submodule(layer).parameters()
    }, "the layers have all parameters"


def test_a_base_model_fits_one_with_a_head_if_the_new_and_the_unused_weights_are_named(tmp_path: Path) -> None:
    config = configuration(write_config(tmp_path, "bert"))
    transformers.BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(ChimeraError, match=r"E855.*tensors of the model are missing, \d+ in all: cls\.predictions"):
        model_of(tmp_path, head="BertForMaskedLM")
    model = model_of(tmp_path, head="BertForMaskedLM", new=["cls.*"], unused=["pooler.*"])
    assert "bert.encoder.layer.0" in model.layer_names


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    config = configuration(write_config(tmp_path, "llama"))
    class_of(config)(config).save_pretrained(tmp_path)
    write_config(tmp_path, "llama", intermediate_size=40)
    with pytest.raises(ChimeraError, match=r"E855.*has the shape \[32, 16\], and in the model \[40, 16\]"):
        model_of(tmp_path)
    write_config(tmp_path, "llama", num_hidden_layers=1)
    with pytest.raises(ChimeraError, match=r"E855.*not in the model, 9 in all: model\.layers\.1"):
        model_of(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ChimeraError, match=r"E855.*is a pickle"):
        model_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged, and longer than the eight bytes of a header's length")
    with pytest.raises(ChimeraError, match=r"E855: the weights .*model\.safetensors cannot be read: .*header"):
        model_of(tmp_path)
    for text in ("{", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', "[" * 10**5):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ChimeraError, match=r"E855: the weights .*index\.json cannot be read: "):
            model_of(tmp_path)


def test_an_encoder_and_a_decoder_need_positions_for_half_a_sample(tmp_path: Path) -> None:
    """The configuration has 16 positions. The last token of a sample with an odd number of tokens is not read."""
    name = f"hf:{write_config(tmp_path, 'bart', vocab_size=256)}"
    for length in (32, 33):
        fields = own_model(name, SAMPLES, length).example(SAMPLES).fields
        assert {t.shape for t in fields.values()} == {(SAMPLES, 16)}
    with pytest.raises(
        ChimeraError, match=r"(?s)E821: halves of 17 tokens, .* the 16 positions of .*give --seq-len 32 or less"
    ):
        own_model(name, SAMPLES, 34)
    name = f"hf:{write_config(tmp_path, 'bert', vocab_size=256)}"  # reads whole samples
    with pytest.raises(
        ChimeraError, match=r"(?s)E821: samples of 17 tokens .* the 16 positions of .*give --seq-len 16 or less"
    ):
        own_model(name, SAMPLES, 17)


def test_wrong_configurations_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChimeraError, match=r"E854.*cannot read the configuration"):
        configuration(tmp_path)
    with pytest.raises(ChimeraError, match=r"E854.*cannot read the configuration .*file name too long"):
        configuration("x" * 300)
    with pytest.raises(ChimeraError, match=r"E854: --model hf:x+: x+ does not exist"):
        check_own("hf:" + "x" * 300)
    path = write_config(tmp_path, "llama")
    for text, message in {
        '{"model_type": ["llama"]}': "has no model_type of transformers",
        "[" * 10**5: "cannot read the configuration .*recursion",
    }.items():
        path.write_text(text)
        with pytest.raises(ChimeraError, match=f"E854.*{message}"):
            configuration(path)
    path.write_text('{"model_type": "lama"}')
    with pytest.raises(ChimeraError, match=r"(?s)E854.*'lama' is unknown.*llama"):
        configuration(path)
    with pytest.raises(ChimeraError, match=r"E854.*has no model LlamaForNothing"):
        class_of(configuration(write_config(tmp_path, "llama")), "LlamaForNothing")
    path.write_text('{"model_type": "blip_text_model"}')  # an architecture without a class of AutoModel
    with pytest.raises(ChimeraError, match=r"(?s)E854.*has no default class for the model_type blip_text_model.*--head"):
        class_of(configuration(path))
    assert class_of(configuration(path), "BlipTextModel") is transformers.BlipTextModel
    with pytest.raises(ChimeraError, match=r"E851.*has no module 'model.layer'"):
        model_of(write_config(tmp_path, "llama"), ["model.layer"])
    monkeypatch.setitem(sys.modules, "transformers", None)  # its import fails, as if it were not installed
    with pytest.raises(ChimeraError, match=r"(?s)E850.*pip install 'chimerac\[huggingface\]'"):
        configuration(path)
