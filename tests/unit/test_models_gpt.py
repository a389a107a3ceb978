"""The GPT, its description and the command `describe`: the number of stages changes no result, and the sizes are correct."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from chimerac.chimera_ir.model import Shared, model_from_json
from chimerac.chimera_ir.partition import balanced
from chimerac.interpreter.adapters.losses import cross_entropies
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.draws import Draws, Dropout, drawing
from chimerac.interpreter.runtime.model import IGNORED, LayeredModel
from chimerac.models.__main__ import main
from chimerac.models.gpt import gpt
from chimerac.models.presets import PRESETS
from tests.helpers import findings_of_call

NANO = gpt("gpt-nano", sequence_length=16)  # four layers: embedding, two blocks, head


def test_one_to_four_stages_compute_the_same_bits() -> None:
    whole = NANO.build_stage(range(4), seed=1)
    tokens = torch.randint(0, 256, (3, 16))
    expected = whole(tokens)[0]
    description = describe(NANO, 3)
    for stages in range(1, 5):
        values = (tokens,)
        for layers in balanced(description, stages).layers:
            values = NANO.build_stage(layers, seed=1)(*values)
        assert values[0].equal(expected)


def test_weights_depend_only_on_seed_and_layer() -> None:
    def weights(layer: int, seed: int) -> torch.Tensor:
        return nn.utils.parameters_to_vector(NANO.build_layer(layer, seed).parameters())

    torch.manual_seed(5)
    state = torch.get_rng_state()
    expected = weights(1, 0)
    assert torch.get_rng_state().equal(state), "building must not change the state of torch's random generator"
    torch.manual_seed(6)
    assert weights(1, 0).equal(expected)
    assert not weights(2, 0).equal(expected) and not weights(1, 1).equal(expected)


def test_attention_is_causal() -> None:
    whole = NANO.build_stage(range(4), seed=0)
    tokens = torch.randint(0, 256, (1, 16))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 256
    logits, changed_logits = whole(tokens)[0], whole(changed)[0]
    assert logits[0, :9].equal(changed_logits[0, :9]) and not logits[0, 9:].equal(changed_logits[0, 9:])


def test_the_loss_is_a_sum_over_valid_targets() -> None:
    logits, targets = torch.randn(2, 3, 256), torch.randint(0, 256, (2, 3))
    losses = [-torch.log_softmax(logits, -1)[i, j, targets[i, j]] for i in range(2) for j in range(3)]
    assert cross_entropies((logits,), (targets,))[0].item() == pytest.approx(float(sum(losses)), rel=1e-5)
    targets[0, 1] = IGNORED
    assert cross_entropies((logits,), (targets,))[0].item() == pytest.approx(float(sum(losses) - losses[1]), rel=1e-5)


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    assert findings_of_call(gpt, "gpt-smal", 16)[0].help == "did you mean 'gpt-small'?"


def test_dropout_is_a_function_of_seed_iteration_sample_layer_and_site() -> None:
    x = torch.ones(2, 4, 50)

    def mask(
        samples: tuple[int, ...] = (4, 5), seed: int = 0, iteration: int = 0, layer: int = 1, site: int = 1
    ) -> torch.Tensor:
        with drawing(Draws(seed, iteration, samples)):
            dropped: torch.Tensor = Dropout(0.5, layer, site)(x[: len(samples)])
        return dropped

    both = mask()
    assert mask().equal(both)
    # A sample has the same mask alone and in another micro-batch.
    assert mask((5,))[0].equal(both[1]) and mask((9, 4))[1].equal(both[0])
    assert not both[0].equal(both[1])
    for other in (mask(seed=1), mask(iteration=1), mask(layer=2), mask(site=2)):
        assert not other.equal(both)
    assert set(both.unique().tolist()) == {0.0, 2.0}  # what is not dropped is divided by 1 - 0.5
    assert Dropout(0.5, layer=1, site=1).eval()(x).equal(x)


def real_kept_bytes(model: LayeredModel, layer: int, x: torch.Tensor) -> int:
    """Return the bytes that autograd saves in a real forward of one layer, without its weights.

    Args:
        x: its input.
    """
    module = model.build_layer(layer, 0)
    saved: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # so that no storage gets the address of another one

    def save(t: torch.Tensor) -> torch.Tensor:
        alive.append(t)
        saved[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        module(x)
    weights = {p.untyped_storage().data_ptr() for p in module.parameters()}
    return sum(size for pointer, size in saved.items() if pointer not in weights)


def test_a_description_equals_the_measurement_of_a_real_forward() -> None:
    description = describe(NANO, 3)
    real = NANO.build_stage(range(4), seed=0)
    assert [layer.name for layer in description.layers] == ["embedding", "block 1", "block 2", "head"]
    for layer, module in zip(description.layers, real.layers, strict=True):
        assert layer.parameters == sum(p.numel() for p in module.parameters())
        assert layer.weight_bytes == 4 * layer.parameters
    assert [layer.boundary[0].shape for layer in description.layers] == [(3, 16, 32)] * 3 + [(3, 16, 256)]
    assert all(layer.boundary[0].gradient for layer in description.layers)
    x = torch.randn(3, 16, 32, requires_grad=True)
    # Autograd also saves the input of the layer, for the norm at its start. The description lists this input as shared memory
    # that the embedding, layer 0, has made.
    assert description.layers[1].kept_bytes + 4 * x.numel() == real_kept_bytes(NANO, 1, x)
    assert Shared(4 * x.numel(), made=0, kept=(1,)) in description.shared
    assert description.layers[1].split_kept_bytes == description.layers[1].kept_bytes
    assert not any(t.kept for layer in description.layers for t in layer.boundary)


def test_costs_count_matrix_products_and_the_output() -> None:
    b, length, width = 3, 16, 32
    # Weights of width x width: 3 for query, key and value, 1 for the output of the attention, 4 and 4 for the MLP.
    linear = 2 * b * length * (3 + 1 + 4 + 4) * width * width
    attention = 2 * 2 * b * length * length * width
    output = b * length * width  # one operation for each number of the output
    assert describe(NANO, b).layers[1].cost == -(-(linear + attention + output) // 1000)  # in thousands, rounded up


def test_bytes_grow_with_the_micro_batch_and_weights_do_not() -> None:
    single, double = describe(NANO, 1).layers[1], describe(NANO, 2).layers[1]
    assert double.kept_bytes == 2 * single.kept_bytes and double.weight_kept_bytes == 2 * single.weight_kept_bytes
    assert double.weight_bytes == single.weight_bytes


def test_the_largest_preset_of_the_family_gpt_is_described() -> None:
    description = describe(gpt("gpt-huge", 64), 1)
    assert 300e6 < description.parameters < 310e6
    assert len(description.layers) == PRESETS["gpt-huge"].layers == 26


def test_the_output_of_describe_is_read_by_the_compiler(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "--model", "gpt-nano", "--seq-len", "16", "--micro-batch", "3"]) == 0
    text = capsys.readouterr().out
    assert model_from_json(text) == describe(NANO, 3)
    assert json.loads(text)["samples"] == 3


def test_a_description_is_not_written_over_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "hf"
    folder.mkdir()
    for path, model in ((mine, f"{mine}:build"), (folder / "config.json", f"hf:{folder}")):
        path.write_text("def build(): ...")
        assert main(["describe", "--model", model, "-o", str(path)]) == 1
        assert "E002]: -o " in (shown := capsys.readouterr().err) and "would write over a file of --model" in shown
        assert path.read_text() == "def build(): ..."


def test_describe_refuses_an_unknown_model_and_a_micro_batch_of_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "--model", "gpt"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "error[E801]: unknown model 'gpt'" in shown.err
    with pytest.raises(SystemExit, match="2"):
        main(["describe", "--micro-batch", "0"])


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--micro-batch", str(10**21), "expected a number from 1 to 2147483648"),
        ("--seq-len", "0", "expected a number from 1 to 2147483648"),
        ("-o", "", "the path is empty"),
    ],
)
def test_wrong_options_of_describe_are_refused(
    option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["describe", "--model", "gpt-nano", option, value])
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_a_description_of_the_largest_micro_batch_takes_no_memory_and_goes_to_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["describe", "--model", "gpt-nano", "--micro-batch", str(2**31), "-o", "-"]) == 0
    assert model_from_json(capsys.readouterr().out).samples == 2**31
    assert not list(tmp_path.iterdir())
