"""The presets: their numbers of parameters, published and in the modules; the depths of the CNN; wrong names and lengths."""

import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.models.cnn import cnn
from chimerac.models.families import preset
from chimerac.models.presets import PRESETS, Bert, Cnn, check_sequence, sizes_in, sizes_of, table

PUBLISHED = {"bert48": 669_790_012, "gpt2-64": 1_389_327_360, "gpt2-32": 759_649_280}
# Parameters of the first stage, by the number of stages. This stage has the embeddings, and as many blocks as every other one.
FIRST_STAGES = {
    "bert48": {16: 69_571_584, 8: 107_360_256, 4: 182_937_600, 2: 334_092_288},
    "gpt2-64": {64: 85_317_120, 32: 104_994_560, 16: 144_349_440, 8: 223_059_200},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_models_of_the_chimera_paper_have_the_published_sizes(name: str) -> None:
    assert sizes_of(name).parameters(sequence_length=128) == PUBLISHED[name]


@pytest.mark.parametrize("name", FIRST_STAGES)
def test_first_stages_with_equal_blocks_have_the_published_sizes(name: str) -> None:
    model, blocks = preset(name, sequence_length=128), sizes_of(name).blocks
    with torch.device("meta"):  # without memory
        layers = [sum(p.numel() for p in model.build_layer(k, seed=0).parameters()) for k in range(blocks + 2)]
    assert sum(layers) == PUBLISHED[name]
    for depth, expected in FIRST_STAGES[name].items():
        assert sum(layers[: 1 + blocks // depth]) == expected


@pytest.mark.parametrize("name", PRESETS)
def test_the_formula_gives_the_parameters_of_the_modules(name: str) -> None:
    short = name if sizes_of(name).blocks < 7 else f"{name}/7"  # at most seven blocks
    model, sizes = preset(short, sequence_length=32), sizes_of(short)
    with torch.device("meta"):
        stage = model.build_stage(range(sizes.layers), seed=0)
    assert sum(p.numel() for p in stage.parameters()) == sizes.parameters(sequence_length=32)
    assert len(model.layer_names) == sizes.layers and name in table()


@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 8])
def test_a_cnn_of_another_depth_maps_images_to_classes(blocks: int) -> None:
    model = cnn(f"cnn-digits/{blocks}")
    inputs, targets, _ = model.example(3)
    whole = model.build_stage(range(blocks + 2), seed=0)
    (logits,) = whole(*inputs)
    assert logits.shape == (3, 10) and targets is not None and targets[0].shape == (3,)
    assert sizes_in(Cnn, f"cnn-digits/{blocks}").channels_of(block=0)[0] == 16


def test_wrong_names_and_lengths_are_refused() -> None:
    with pytest.raises(ChimeraError, match="gpt2-nano is no bert"):
        sizes_in(Bert, "gpt2-nano")
    check_sequence("bert48", 512)
    check_sequence("gpt-nano", 100_000)
    with pytest.raises(ChimeraError, match="E821"):
        check_sequence("bert48", 513)
    with pytest.raises(ChimeraError, match="E821"):
        preset("gpt2-small", 1025)
