"""The full-size models are built stage by stage without memory for weights. Their stages have the bytes of the description."""

from __future__ import annotations

import pytest
import torch

from chimerac.chimera_ir.partition import balanced
from chimerac.models.families import preset
from tools.full_size import DEPTHS, SIZES, description_of, full_size


@pytest.mark.parametrize(
    ("name", "depth"),
    [
        (name, depth)
        for name, (_, length) in SIZES.items()
        for depth in DEPTHS
        if depth <= len(preset(name, length).layer_names)
    ],
)
def test_stages_on_the_meta_device_have_the_bytes_of_the_description(name: str, depth: int) -> None:
    _, length = SIZES[name]
    model, description = preset(name, length), description_of(name)
    total = 0
    partition = balanced(description, depth)
    for layers, expected in zip(partition.layers, description.stage_sums(partition.layers), strict=True):
        with torch.device("meta"):
            stage = model.build_stage(layers, seed=0)
        parameters = list(stage.parameters())
        assert all(p.is_meta for p in parameters)
        tensors = [*parameters, *stage.buffers()]
        assert sum(p.numel() for p in parameters) == expected.parameters
        assert sum(t.nbytes for t in tensors) == expected.weight_bytes
        assert sum(p.nbytes for p in parameters if p.requires_grad) == expected.gradient_bytes
        total += expected.parameters
    assert total == description.parameters


def test_the_table_has_a_row_for_each_depth_for_which_a_model_has_enough_layers() -> None:
    # Below an empty line and the two lines of the head, each row begins with the model and D.
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in full_size("").splitlines()[3:] if line]
    depths = {"bert48": (8, 16, 32), "gpt2-64": (8, 16, 32, 64)}  # bert48 has 50 layers, too few for 64 stages
    assert rows == [[name, str(depth)] for name in depths for depth in depths[name]]
