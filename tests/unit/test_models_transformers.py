"""GPT-2 and BERT against the implementations of Hugging Face: from the same weights, the same logits and losses."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

from chimerac.interpreter.runtime.model import IGNORED, LayeredModel, Stage, combined  # noqa: E402
from chimerac.models.bert import bert  # noqa: E402
from chimerac.models.gpt2 import gpt2  # noqa: E402
from chimerac.models.presets import Bert, Gpt2, sizes_in  # noqa: E402

LENGTH, SAMPLES = 24, 3


def whole(model: LayeredModel) -> Stage:
    return model.build_stage(range(len(model.layer_names)), seed=4)


def copy(source: dict[str, Tensor], target: nn.Module) -> None:
    """Load the weights `source` into a module, and check that each of its parameters is given and that all weights are used."""
    missing, unexpected = target.load_state_dict(source, strict=False)
    buffers = {name for name, _ in target.named_buffers()}
    assert not unexpected and set(missing) <= buffers, (missing, unexpected)


def moved(t: Tensor) -> Tensor:
    """Return weights moved away from their initial values: biases are 0 and norms 1 at first, which would hide errors."""
    return t + 0.1 * torch.randn(t.shape, generator=torch.Generator().manual_seed(t.numel()))


def test_gpt2_is_that_of_hugging_face() -> None:
    sizes, ours = sizes_in(Gpt2, "gpt2-nano"), whole(gpt2("gpt2-nano", LENGTH))
    config = transformers.GPT2Config(
        vocab_size=sizes.vocabulary,
        n_positions=sizes.positions,
        n_embd=sizes.width,
        n_layer=sizes.blocks,
        n_head=sizes.heads,
        tie_word_embeddings=False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    theirs = transformers.GPT2LMHeadModel(config)
    assert sum(p.numel() for p in theirs.parameters()) == sizes.parameters()
    for p in ours.parameters():
        p.data = moved(p.data)
    weights = {}
    for name, p in ours.parameters_by_name().items():
        layer, _, path = name.partition(".")
        place = "" if path.startswith("lm_head") else "transformer."
        if layer.startswith("block"):
            place += f"h.{int(layer.removeprefix('block ')) - 1}."
            p = p.t()  # theirs are transposed; a bias stays as it is
        weights[place + path] = p.detach()
    copy(weights, theirs)
    tokens = torch.randint(0, sizes.vocabulary, (SAMPLES, LENGTH))
    targets = tokens[:, 1:].clone()
    targets[0, :9] = IGNORED
    (logits,) = ours(tokens)
    losses = gpt2("gpt2-nano", LENGTH).loss((logits[:, :-1],), (targets,))
    loss = combined(losses, [int((targets != IGNORED).sum())])
    # Their model shifts the targets itself.
    output = theirs(input_ids=tokens, labels=torch.cat([tokens[:, :1], targets], 1))
    torch.testing.assert_close(logits, output.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, output.loss, rtol=1e-5, atol=1e-6)
    loss.backward()
    output.loss.backward()
    first = ours.parameters_by_name()["embedding.wte.weight"].grad
    torch.testing.assert_close(first, theirs.transformer.wte.weight.grad, rtol=1e-3, atol=1e-6)


def test_bert_is_that_of_hugging_face() -> None:
    model, sizes = bert("bert-nano", LENGTH), sizes_in(Bert, "bert-nano")
    ours = whole(model)
    config = transformers.BertConfig(
        vocab_size=sizes.vocabulary,
        max_position_embeddings=sizes.positions,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.blocks,
        num_attention_heads=sizes.heads,
        intermediate_size=4 * sizes.width,
        tie_word_embeddings=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = transformers.BertForPreTraining(config)
    for p in ours.parameters():
        p.data = moved(p.data)
    own = {name: p.detach() for name, p in ours.parameters_by_name().items()}
    names = {
        "embeddings.word": "bert.embeddings.word_embeddings",
        "embeddings.position": "bert.embeddings.position_embeddings",
        "embeddings.token_type": "bert.embeddings.token_type_embeddings",
        "embeddings.norm": "bert.embeddings.LayerNorm",
        "heads.transform": "cls.predictions.transform.dense",
        "heads.norm": "cls.predictions.transform.LayerNorm",
        "heads.decoder": "cls.predictions.decoder",
        "heads.pooler": "bert.pooler.dense",
        "heads.next_sentence": "cls.seq_relationship",
    }
    for k in range(sizes.blocks):
        block, layer = f"block {k + 1}", f"bert.encoder.layer.{k}"
        for kind in ("weight", "bias"):
            parts = own.pop(f"{block}.attention.qkv.{kind}").chunk(3)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                own[f"{block}.attention.{name}.{kind}"] = part
        names |= {f"{block}.attention.{name}": f"{layer}.attention.self.{name}" for name in ("query", "key", "value")}
        names[f"{block}.attention.output"] = f"{layer}.attention.output.dense"
        names[f"{block}.norm_1"] = f"{layer}.attention.output.LayerNorm"
        names[f"{block}.intermediate"] = f"{layer}.intermediate.dense"
        names[f"{block}.output"] = f"{layer}.output.dense"
        names[f"{block}.norm_2"] = f"{layer}.output.LayerNorm"
    weights = {names[name.rpartition(".")[0]] + "." + name.rpartition(".")[2]: p for name, p in own.items()}
    # Their model has a second name for the bias of the decoder. Without tied weights it names a parameter of its own.
    weights["cls.predictions.bias"] = own["heads.decoder.bias"]
    copy(weights, theirs)
    assert sum(p.numel() for p in theirs.parameters()) == sizes.parameters() + sizes.vocabulary
    tokens = torch.randint(0, sizes.vocabulary, (SAMPLES, LENGTH))
    types = (torch.arange(LENGTH) > 10).long().expand(SAMPLES, -1)
    mask = torch.arange(LENGTH) < torch.tensor([LENGTH, 20, 13]).unsqueeze(1)
    masked = torch.where(torch.rand(SAMPLES, LENGTH) < 0.3, tokens, IGNORED)
    masked[0, 1] = 5  # so that there is at least one masked word
    pairs = torch.tensor([0, 1, 1])
    words, pair = ours(tokens, token_types=types, attention_mask=mask)
    loss = combined(model.loss((words, pair), (masked, pairs)), [int((masked != IGNORED).sum()), SAMPLES])
    output = theirs(tokens, attention_mask=mask.long(), token_type_ids=types, labels=masked, next_sentence_label=pairs)
    torch.testing.assert_close(words[mask], output.prediction_logits[mask], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pair, output.seq_relationship_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss, output.loss, rtol=1e-5, atol=1e-6)
