"""A user's own model, which a function of a file returns: --model FILE.py:FUNCTION."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.partition import Partition, partition_to_json
from chimerac.interpreter.adapters import losses
from chimerac.interpreter.adapters.own import LOSS_NAMES, check_own, is_cross_entropy, own_model
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import fitted, make_plan
from chimerac.interpreter.launch.start import make_job
from chimerac.interpreter.run import main
from chimerac.interpreter.runtime.describe import describe

MINE = """
from __future__ import annotations
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from torch import nn
@dataclass
class Sizes:  # its annotations are texts, which dataclass looks up in the module
    _: KW_ONLY
    width: int = 8
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, Sizes().width), nn.Linear(8, 256)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)
def whole():
    from chimerac.interpreter.adapters.model import cut
    import torch
    return cut(Net, {"tokens": torch.zeros(4, 8, dtype=torch.int64)}, loss=lambda y, t: y.sum())
def three():
    return 3
class Nothing(nn.Module):
    def forward(self):
        return None
number = 3
if number:
    Again = Net
"""


def test_a_run_trains_the_model_of_a_function_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    words = ["chimera", "-p", "D=2", "-p", "N=2", "--loopback", "--iterations", "2", "--seq-len", "8", "--model"]
    monkeypatch.setattr(sys, "argv", ["run.py", *words, f"{path}:Net", "--layers", "blocks"])
    assert main() == 0
    assert "gradient difference" in capsys.readouterr().out


def test_a_function_or_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    with pytest.raises(ChimeraError, match=r"(?s)E801.*has no function Nett.*Net"):
        check_own(f"{path}:Nett")
    with pytest.raises(ChimeraError, match=r"E801.*cannot read .*none\.py: No such file"):
        check_own(f"{tmp_path}/none.py:Net")


def test_the_names_that_a_file_binds_outside_functions_and_classes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        """
import torch.nn as nn, os.path
with open(__file__) as opened:
    def in_with(): ...
for in_for in ():
    pass
else:
    def in_else(): ...
try:
    in_try = 1
except ImportError:
    in_except = 1
else:
    first, (second, *rest) = 1, (2, 3)
finally:
    def in_finally(): ...
while False:
    class InWhile:
        in_class = 1
        def method(self): ...
match 1:
    case 1:
        async def in_case(): ...
def function(argument):
    in_function = 1
short = lambda parameter: (in_lambda := parameter)
"""
    )
    bound = ("nn", "os", "opened", "in_with", "in_for", "in_else", "in_try", "in_except", "first", "second", "rest",
             "in_finally", "InWhile", "in_case", "function", "short")  # fmt: skip
    for name in bound:
        check_own(f"{path}:{name}")
    for name in ("in_class", "method", "argument", "in_function", "in_lambda", "torch", "path"):
        with pytest.raises(ChimeraError, match=f"E801.*has no function {name}"):
            check_own(f"{path}:{name}")


def test_parameters_get_memory_only_for_a_stage_that_is_built(tmp_path: Path) -> None:
    """At each call, `watched` logs how many numbers of its module's parameters are in memory: none until a stage is built."""
    path = tmp_path / "mine.py"
    path.write_text(
        MINE
        + """
def watched():
    net = Net()
    with open(__file__ + ".log", "a") as log:
        print(sum(p.numel() for p in net.parameters() if not p.is_meta), file=log)
    return net
"""
    )
    model = own_model(f"{path}:watched", samples=4, length=8)
    assert set(Path(f"{path}.log").read_text().split()) == {"0"}
    model.build_stage(range(1), seed=0)
    assert Path(f"{path}.log").read_text().split()[-1] == str(256 * 8), "the parameters of the embedding"


def test_a_function_of_a_file_that_makes_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    for name in ("three", "Nothing", "number", "sqrt", "Again"):
        check_own(f"{path}:{name}")  # check_own finds the name in the file, but does not run the file
    for name, message in {
        "three": r"three\(\) returns a value of type int, neither a torch\.nn\.Module nor a Model",
        "Nothing": "the forward of Nothing has no argument for the tokens",
        "number": "number is not a function",
    }.items():
        with pytest.raises(ChimeraError, match=f"E801: --model .*mine.py:{name}: {message}"):
            own_model(f"{path}:{name}", samples=4, length=8)
    assert own_model(f"{path}:Again", samples=4, length=8).layer_names == ("embed", "blocks.0", "blocks.1", "head")
    for option, value in {"loss": "squared-error", "layers": "blocks"}.items():
        with pytest.raises(ChimeraError, match=rf"E801.*has its own layers and loss, and --{option} is given"):
            own_model(f"{path}:whole", samples=4, length=8, **{option: value})  # type: ignore[arg-type]
    path.write_text("x = " + "-" * 10**5 + "1")
    with pytest.raises(ChimeraError, match=r"E801.*cannot read .*mine\.py: it is nested too deeply"):
        check_own(f"{path}:x")


FUNCTIONS_WITH_LOSSES = """
import torch
import torch.nn.functional as F
from chimerac.interpreter.adapters.model import cut
def with_loss(loss):
    tokens = torch.zeros(4, 8, dtype=torch.int64)
    return cut(Net, {"tokens": tokens}, loss=loss, targets=tokens, layers=["blocks"])
def entropy(x, t, **reduction):
    return F.cross_entropy(x.flatten(0, -2), t.flatten(), **reduction)
def mean():
    return with_loss(entropy)
def mean_beside_sum():
    return with_loss(lambda x, t: (entropy(x, t, reduction="sum"), x.square().mean()))
def mean_of_samples():
    return with_loss(lambda x, t: entropy(x, t, reduction="sum") / len(t))
def sum():
    return with_loss(lambda x, t: entropy(x, t, reduction="sum"))
def fixed_size():  # fails for the one and two samples with which the check calls it: the check is left out
    return with_loss(lambda x, t: entropy(x.reshape(32, 256), t, reduction="sum"))
def zero():  # 0 is the sum and the mean: the check is left out
    return with_loss(lambda x, t: 0 * x.sum())
"""


def test_each_loss_has_a_name_that_options_know() -> None:
    assert tuple(losses.LOSSES) == LOSS_NAMES


@pytest.mark.parametrize(
    ("model", "loss", "expected"),
    [
        (None, None, True),
        ("gpt-nano", None, True),
        ("hf:config.json", None, True),
        ("hf:config.json", "next-token", True),
        ("hf:config.json", "squared-error", False),
        ("own.py:build", "next-token", True),
        ("own.py:build", None, False),  # the function may return a Model with any loss
    ],
)
def test_a_loss_is_in_nats_only_where_it_is_known_to_be_a_cross_entropy(
    model: str | None, loss: str | None, expected: bool
) -> None:
    assert is_cross_entropy(model, loss) == expected


def test_a_loss_that_is_a_mean_is_refused(tmp_path: Path) -> None:
    """A sum is accepted, and so is a loss of which the check cannot tell whether it is a mean."""
    path = tmp_path / "mine.py"
    path.write_text(MINE + FUNCTIONS_WITH_LOSSES)

    def job(name: str) -> None:
        settings = parse_options(["chimera", "-p", "D=2", "-p", "N=2", "--seq-len", "8", "--model", f"{path}:{name}"])
        make_job(make_plan(settings), settings, ranks_here=1)

    for name in ("mean", "mean_beside_sum", "mean_of_samples"):
        with pytest.raises(ChimeraError, match=f"(?s)E856: the loss of --model .*mine.py:{name} is a mean: .*reduction='sum'"):
            job(name)
    for name in ("sum", "fixed_size", "zero", "Net"):
        job(name)


def test_split_or_partition_gives_the_partition_of_an_own_model(tmp_path: Path) -> None:
    path, cut_file = tmp_path / "mine.py", tmp_path / "cut.json"
    path.write_text(MINE)
    name = f"{path}:Net"
    description = describe(own_model(name, samples=4, length=8), 4)
    cut_file.write_text(partition_to_json(Partition(name, ((0, 3), (3, 4)))))
    words = ["chimera", "-p", "D=2", "-p", "N=2", "--loopback", "--model", name]

    def partition(*more: str) -> object:
        settings = parse_options([*words, *more])
        plan = fitted(make_plan(settings), settings, description)
        assert plan.evaluation is not None and plan.evaluation.partition == plan.program.partition
        return plan.program.partition and plan.program.partition.stages

    assert partition() is None
    assert partition("--split", "1,3") == ((0, 1), (1, 4))
    assert partition("--partition", str(cut_file)) == ((0, 3), (3, 4))
    with pytest.raises(ChimeraError, match=r"E708: split 2,3 has 5 layers, and .*mine\.py:Net has 4"):
        partition("--split", "2,3")
    cut_file.write_text(partition_to_json(Partition("other", ((0, 3), (3, 4)))))
    with pytest.raises(ChimeraError, match=r"E706.*other"):
        partition("--partition", str(cut_file))
