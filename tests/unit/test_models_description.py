"""Model descriptions: cuts with too many stages, sums over stages, the JSON form, and findings about invalid files."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.model import (
    Layer,
    ModelDescription,
    Tensor,
    TiedLayers,
    model_from_json,
    model_to_json,
)
from chimerac.chimera_ir.partition import Partition, balanced, partition_to_json

BOUNDARY = (Tensor((2, 3), "float32", gradient=True), Tensor((5,), "bool", gradient=False))


def layer(name: str = "a", cost: int = 1, parameters: int = 10) -> Layer:
    return Layer(name, parameters, 4 * parameters, kept_bytes=100, weight_kept_bytes=30, boundary=BOUNDARY, cost=cost)


def model(*costs: int, tied: tuple[TiedLayers, ...] = ()) -> ModelDescription:
    """Return the description of a model with a layer for each cost."""
    return ModelDescription("m", 2, tuple(layer(f"l{k}", c) for k, c in enumerate(costs)), tied)


def test_more_stages_than_layers_is_refused_with_both_numbers() -> None:
    with pytest.raises(ChimeraError, match="4 stages cannot be cut from the 3 layers of m"):
        balanced(model(1, 1, 1), 4)


def test_stage_sums_add_layers_and_hold_tied_parameters_once() -> None:
    tied = TiedLayers("embedding", (0, 2), parameters=6, weight_bytes=24)
    description = model(1, 1, 1, tied=(tied,))
    (one_stage,) = description.stage_sums(balanced(description, 1).layers)
    assert (one_stage.parameters, one_stage.weight_bytes, one_stage.kept_bytes, one_stage.cost) == (24, 96, 300, 3)
    assert description.parameters == 24
    assert [s.parameters for s in description.stage_sums(balanced(description, 3).layers)] == [10, 10, 10]
    # 2 x 3 numbers of 4 bytes, and 5 bools.
    assert [t.bytes for t in one_stage.boundary] == [24, 5]


# Random layers. Names with control or format characters, surrogates, or separators of lines or paragraphs would be refused.
amounts = st.integers(0, 2**53)
tensors = st.builds(
    Tensor,
    st.lists(st.integers(0, 2**31), max_size=4).map(tuple),
    st.sampled_from(["bool", "int64", "float32", "bfloat16"]),
    st.booleans(),
)
layers = st.builds(
    Layer,
    name=st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), min_size=1, max_size=9),
    parameters=amounts,
    weight_bytes=amounts,
    kept_bytes=amounts,
    weight_kept_bytes=amounts,
    boundary=st.lists(tensors, min_size=1, max_size=3).map(tuple),
    cost=amounts,
)


@given(st.lists(layers, min_size=2, max_size=4).map(tuple), st.booleans())
def test_a_description_is_the_same_after_writing_and_reading(layers: tuple[Layer, ...], is_tied: bool) -> None:
    tied = (TiedLayers("e", (0, 1), parameters=1, weight_bytes=4),) if is_tied else ()
    description = ModelDescription("m", 3, layers, tied)
    assert model_from_json(model_to_json(description)) == description


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "a\u202eb", "\ud800"])
def test_a_description_or_a_partition_that_could_not_be_read_back_is_not_written(name: str) -> None:
    description = model(1, 1)
    layers = (description.layers[0], replace(description.layers[1], name=name))
    with pytest.raises(ChimeraError, match=r"E70[13].*: the description of"):
        model_to_json(replace(description, layers=layers))
    with pytest.raises(ChimeraError, match=r"E707.*: the partition"):
        partition_to_json(Partition(name, ((0, 1),)))


def changed(**fields: object) -> str:
    """Return the JSON of a description with these fields replaced or added."""
    return json.dumps(json.loads(model_to_json(model(1, 1))) | fields)


LAYER = json.loads(model_to_json(model(1)))["layers"][0]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("{", "E701", "m.json is not JSON"),
        ("[" * 100000, "E701", "m.json cannot be read: brackets are nested more than 200 deep"),
        ("[]", "E702", "not a chimera model description"),
        (changed(format="chimera-program"), "E702", "'format'"),
        (changed(version=2), "E702", "'version'"),
        (changed(layers=[]), "E703", "m.json: layers: "),
        (changed(colour=1), "E703", "m.json: colour: this field is unknown"),
        (changed(layers=[LAYER | {"cost": -1}]), "E703", r"layers\[0\].cost: expected 0 or more, found -1"),
        (changed(layers=[LAYER | {"cost": "1"}]), "E703", r'layers\[0\].cost: expected an integer, found "1"'),
        (changed(layers=[{}]), "E703", r"layers\[0\].name: this field is missing"),
        (changed(tied=[{"name": "e", "layers": [0, 2], "parameters": 1, "weight_bytes": 4}]), "E703", "layer 2 does"),
        (changed(tied=[{"name": "e", "layers": [0, 0], "parameters": 1, "weight_bytes": 4}]), "E703", "named twice"),
        (changed(shared=[{"bytes": 4, "made": 7, "kept": [0]}]), "E703", r"shared\[0\]: layer 7 does not exist"),
        (changed(shared=[{"bytes": 4, "made": None, "kept": [0, 2]}]), "E703", r"shared\[0\]: layer 2 does not exist"),
    ],
)
def test_an_invalid_file_is_refused_with_the_place(text: str, code: str, message: str) -> None:
    with pytest.raises(ChimeraError, match=message) as error:
        model_from_json(text, "m.json")
    assert error.value.diagnostics[0].code == code


def test_a_text_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(ChimeraError, match="E704"):  # not E701, which parsing gives, since spaces are no JSON
        model_from_json(" " * (limits.HEADER + 1))


def test_a_changed_field_changes_the_text() -> None:
    assert model_to_json(model(1, 2)) != model_to_json(model(1, 3))
