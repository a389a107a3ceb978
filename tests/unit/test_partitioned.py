"""Partitions as data: in program files, in runs, in the count of bytes; and the tied parameters of a model under them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.model import model_to_json
from chimerac.chimera_ir.partition import Partition, balanced, partition_for, split_by_counts
from chimerac.chimera_ir.program import Program, Tied
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import evaluation_of
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.command.main import main
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Example, LayeredModel, Model, Values
from chimerac.interpreter.runtime.partitioned import partitioned
from tests.helpers import program, replaced
from tests.helpers_loopback import deep_model, description_of, run_and_compare

MODEL = deep_model(middle=4)  # of six layers
UNEVEN = Partition(MODEL.name, ((0, 3), (3, 4), (4, 5), (5, 6)))


def uneven(p: Program) -> Program:
    """Return the program with the partition UNEVEN."""
    return p.with_partition(UNEVEN)


# --- partitions, and their forms in files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "fact"),
    [
        (((1, 2),), "stage 0 begins with layer 1, and the first layer of a model is layer 0"),
        (((0, 2), (3, 4)), "stage 1 begins with layer 3, and stage 0 ends with layer 1"),
        (((0, 2), (1, 4)), "stage 1 begins with layer 1, and stage 0 ends with layer 1"),
        (((0, 2), (2, 2)), "stage 1 has no layer: it begins with layer 2 and ends before layer 2"),
    ],
)
def test_a_partition_is_contiguous_and_no_stage_is_empty(stages: tuple[tuple[int, int], ...], fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        Partition("m", stages)
    four_stages = [*stages, *[[8, 9]] * (4 - len(stages))]  # as many as the program has; [8, 9] only fills up
    text = program_to_json(uneven(program("gpipe", D=4))).replace(json.dumps(UNEVEN.stages), json.dumps(four_stages))
    with pytest.raises(ChimeraError, match=f"E603: p.json: partition: {fact}"):
        program_from_json(text, "p.json")


def test_a_partition_has_a_stage() -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        Partition("m", ())


def test_too_few_layers_are_reported_before_a_wrong_number_of_counts() -> None:
    with pytest.raises(ChimeraError, match=r"E705: 8 stages cannot be cut from the 4 layers of m"):
        split_by_counts("m", layers=4, counts=[1] * 4, stages=8)


def test_a_partition_gives_the_stage_of_a_layer() -> None:
    assert UNEVEN.layers == (range(3), range(3, 4), range(4, 5), range(5, 6))
    assert [UNEVEN.stage_of(k) for k in range(6)] == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("name", ["m", "two words ", 'quoted "model" 9:9'])
def test_both_forms_of_a_program_have_the_partition_and_the_digest_does_not(name: str) -> None:
    plain = program("gpipe", D=4)
    p = plain.with_partition(replace(UNEVEN, model=name))
    for write, read in ((program_to_json, program_from_json), (program_to_text, program_from_text)):
        assert (read(write(p)).header, read(write(p)).partition) == (p.header, p.partition)
        assert write(read(write(p))) == write(p)
        assert "partition" not in write(plain)
    assert p.digest == plain.digest and evaluation_of(p).partition == p.partition


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        ("[0, 3], [3, 4], [4, 5], [5, 6]", "[0, 3], [3, 6]", "partition: it has 2 stages, and the program has 4"),
        ("[0, 3]", "[0, 3, 3]", "partition.stages"),
        ("[0, 3]", "[0, 2000]", "partition.stages"),
        ('"stages": [[0, 3], [3, 4], [4, 5], [5, 6]]', '"stages": []', "partition.stages"),
        (', "stages": [[0, 3], [3, 4], [4, 5], [5, 6]]', "", "partition.stages: this field is missing"),
    ],
)
def test_a_file_with_a_wrong_partition_is_refused(old: str, new: str, fact: str) -> None:
    text = replaced(program_to_json(uneven(program("gpipe", D=4))), (old, new))
    with pytest.raises(ChimeraError, match="E603") as error:
        program_from_json(text)
    assert fact in str(error.value)


@pytest.mark.parametrize("line", ["partition 0:3 3:4", "partition 0:3 model x", 'partition 0-3 model "x"', "partition"])
def test_an_invalid_partition_line_is_refused(line: str) -> None:
    lines = program_to_text(uneven(program("gpipe", D=4))).splitlines()
    at = next(n for n, text in enumerate(lines) if text.startswith("partition"))
    with pytest.raises(ChimeraError, match="E605"):
        program_from_text("\n".join([*lines[:at], line, *lines[at + 1 :]]))


def test_a_partition_fits_only_its_own_model() -> None:
    assert partition_for(None, description_of(MODEL), stages=4) == balanced(description_of(MODEL), stages=4)
    assert partition_for(UNEVEN, description_of(MODEL), stages=4) is UNEVEN
    for other in (describe(deep_model(middle=5), samples=2), replace(description_of(MODEL), name="other")):
        with pytest.raises(ChimeraError, match="E706: the partition is for signed integers with 6 layers, and"):
            partition_for(UNEVEN, other, stages=4)


# --- the compiler -------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_partition_and_the_report_follows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, compiled = tmp_path / "m.json", tmp_path / "p.json"
    model.write_text(model_to_json(description_of(MODEL)))
    assert main(["gpipe", "-p", "D=4", "--model", str(model), "--emit", "json", "-o", str(compiled)]) == 0
    written = program_from_json(compiled.read_text())
    assert written.partition == balanced(description_of(MODEL), stages=4)
    assert written == program("gpipe", D=4)  # equality ignores the partition
    assert main([str(compiled), "--emit", "streams"]) == 0
    assert program_from_text(capsys.readouterr().out).header == written.header
    compiled.write_text(program_to_json(uneven(written)))
    assert main([str(compiled), "--model", str(model), "--emit", "json"]) == 0
    assert program_from_json(capsys.readouterr().out).partition == UNEVEN, "the partition of a file is kept"
    assert main([str(compiled), "--model", str(model), "--emit", "report"]) == 0
    report = capsys.readouterr().out
    for need in memory(uneven(written), description_of(MODEL)):
        assert f"{need.peak:,}" in report
    model.write_text(model_to_json(replace(description_of(MODEL), name="other")))
    assert main([str(compiled), "--model", str(model), "--emit", "report"]) == 1
    assert "E706" in capsys.readouterr().err


def test_memory_counts_the_layers_of_the_partition() -> None:
    p = program("gpipe", D=4)
    balanced_needs, needs = (memory(q, description_of(MODEL)) for q in (p, uneven(p)))
    weights = [layer.weight_bytes for layer in description_of(MODEL).layers]
    expected = [sum(weights[:3]), *weights[3:]]
    assert [need.weights for need in needs] == expected != [need.weights for need in balanced_needs]


# --- a run --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpipe", "chimera", "zb_h1"])
def test_the_gradients_of_an_uneven_partition_are_those_of_one_process(name: str) -> None:
    p = uneven(program(name, D=4, N=4))
    for result in run_and_compare(program_from_json(program_to_json(p)), MODEL, seed=1):
        for s, stage in result.executor.stages.items():
            assert len(stage.layers) == len(UNEVEN.layers[s])


# --- ties ---------------------------------------------------------------------------------------------------------------


class First(nn.Module):
    """An embedding."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


class Last(nn.Module):
    """Logits: products with the rows of an embedding."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.table.weight.t()


class NamedFirst(First):
    """An embedding that names its tied parameter."""

    tied: Mapping[str, str] = {"words": "table.weight"}


def tied_model(first: type[First], middle: int = 2) -> Model:
    """Return a model whose first and last layer share one parameter, as in GPT-2.

    Args:
        first: the class of its first layer.
        middle: the number of layers between the two.
    """
    table = nn.Embedding(10, 4)  # 40 parameters, 160 bytes

    def example(samples: int) -> Example:
        tokens = torch.zeros(samples, 3, dtype=torch.int64)
        return Example((tokens,), (tokens,))

    def loss(outputs: Values, targets: Values) -> Values:
        return (outputs[0].sum(),)

    middles = [(f"linear {k}", lambda: nn.Linear(4, 4)) for k in range(middle)]
    layers = (("words", lambda: first(table)), *middles, ("logits", lambda: Last(table)))
    return LayeredModel(name="toy", layers=layers, loss=loss, example=example)


@pytest.mark.parametrize(("first", "name"), [(First, "words.table.weight"), (NamedFirst, "words")])
def test_a_description_names_parameters_that_are_one_object(first: type[First], name: str) -> None:
    description = describe(tied_model(first), samples=2)
    (tied,) = description.tied
    assert (tied.name, tied.layers, tied.parameters, tied.weight_bytes) == (name, (0, 3), 40, 160)
    assert description.parameters == 40 + 2 * (4 * 4 + 4)


def test_memory_counts_a_tied_parameter_once_on_a_rank() -> None:
    description = describe(tied_model(First), samples=2)
    separate = sum(layer.weight_bytes for layer in description.layers)  # counts the shared 160 bytes twice
    assert [need.weights for need in memory(program("gpipe", D=1), description)] == [separate - 160]
    # Each rank of chimera with two ranks has both stages.
    for need in memory(program("chimera", D=2), description):
        assert need.weights == separate - 160


def test_ties_across_stages_that_the_program_does_not_have_are_refused() -> None:
    model = tied_model(First)
    partitioned(program("gpipe", D=1), model, describe(model, 2))  # both layers are in one stage, so no tie is needed
    with pytest.raises(ChimeraError, match="E805") as error:
        partitioned(program("gpipe", D=2), model, describe(model, 2))
    (found,) = error.value.diagnostics
    assert found.message == "the program ties words.table.weight on no stage, but toy on stages 0, 1"
    assert found.help == "name the shared parameter in the 'tied' of its layers, and tie that name in the schedule"


def test_sets_that_are_matched_by_stages_keep_names_of_their_own() -> None:
    model = tied_model(First)  # its last layer is on stage 1 of 2
    described = describe(model, 2)
    (words,) = described.tied
    gpipe = program("gpipe", D=2)
    ties = replace(gpipe, header=replace(gpipe.header, tied=(Tied("one", (0, 1)),)))
    both = replace(described, tied=(words, replace(words, name="one")))
    with pytest.raises(ChimeraError, match=r"E805: the program ties words.table.weight on no stage, but toy on stages 0, 1"):
        partitioned(ties, model, both, ties_by_stage=True)  # "one" is tied already, so it cannot be words.table.weight
    of_one_stage = (replace(words, name="one", layers=(2, 3)), replace(words, name="one_2", layers=(0, 1)))
    inside = replace(described, tied=(words, *of_one_stage))
    cut = partitioned(ties, model, inside, ties_by_stage=True)
    assert cut.tie_names == {"words.table.weight": "one", "one": "one_3", "one_2": "one_2"}
    assert [tied.name for tied in cut.description.tied] == ["one", "one_3", "one_2"]
