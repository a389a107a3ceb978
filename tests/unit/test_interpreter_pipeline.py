"""The public API: a user's layers, schedule and loss, in a loop of the user's own. Ranks run in loopback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule, load_program
from chimerac.compiler.command.main import main as chimerac
from chimerac.compiler.explain.entries import entries
from chimerac.interpreter import Pipeline
from chimerac.interpreter.errors import RankError
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.alone import Alone

WIDTH, CLASSES, SAMPLES = 12, 5, 3
ONE, LINEAR = torch.zeros(1, 1), nn.Linear(1, 1)
CASES: list[tuple[str, dict[str, int], int]] = [
    ("1f1b", {"D": 2, "N": 4}, 1),
    ("chimera", {"D": 4, "N": 4}, 1),
    ("chimera", {"D": 2, "N": 2}, 2),
    ("zb_v", {"D": 2, "N": 4}, 1),
    ("interleaved", {"D": 2, "N": 4, "v": 2}, 2),
]


class Net(nn.Module):
    """A model that has no code for pipelines."""

    def __init__(self, depth: int = 6, drop: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(drop)) for _ in range(depth)
        )
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.middle:
            x = layer(x)
        return self.last(x)  # type: ignore[no-any-return]

    def layers(self) -> list[nn.Module]:
        return [self.first, *self.middle, self.last]


def net(seed: int = 0, **sizes: Any) -> Net:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Net(**sizes)


def batch(samples: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, WIDTH, generator=generator), torch.randint(0, CLASSES, (samples,), generator=generator)


def pipeline(program: Program | str | Path, transport: Transport, model: Net | None = None, **options: Any) -> Pipeline:
    model = model or net()
    layers = options.pop("net_layers", model.layers())
    example = torch.zeros(SAMPLES, WIDTH)
    arguments: dict[str, Any] = {"loss": F.cross_entropy, "inputs": example, "model": model, "transport": transport}
    return Pipeline(layers, program, **(arguments | options))


def on_all_ranks(program: Program, run: Callable[[Pipeline], Any], **options: Any) -> list[Any]:
    """Return what `run` returns on each rank, in loopback."""
    return run_in_loopback(program, lambda transport: run(pipeline(program, transport, **options)))


def part_of(pipe: Pipeline, tensor: Tensor) -> Tensor:
    """Return the part of a batch that belongs to the replica of this rank."""
    return tensor.chunk(pipe.program.header.width)[pipe.replica]


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "parameters", "width"), CASES)
def test_a_step_leaves_the_gradients_of_one_process(name: str, parameters: dict[str, int], width: int) -> None:
    program = compile_schedule(name, parameters, width).program
    samples = SAMPLES * program.header.micro_batches * width
    x, y = batch(samples)
    whole = net()
    expected = F.cross_entropy(whole(x), y)
    expected.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad for name, p in whole.named_parameters()}

    def run(pipe: Pipeline) -> list[str]:
        loss = pipe.step(part_of(pipe, x), part_of(pipe, y))
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        named = dict(pipe.named_parameters())
        for full_name, p in named.items():
            expected_gradient = gradients[full_name]
            assert p.grad is not None and expected_gradient is not None and close(p.grad, expected_gradient), full_name
        assert list(named) == list(pipe.state_dict()), "this model has no buffers"
        assert pipe.grad_norm() == pytest.approx(float(nn.utils.get_total_norm(gradients.values())), rel=1e-4)
        return list(named)

    found = on_all_ranks(program, run, width=width)
    assert set().union(*found) == set(gradients)


def test_training_with_any_optimizer_follows_one_process() -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 4}).program
    batches = [batch(SAMPLES * 4, seed) for seed in range(5)]
    whole = net()
    alone = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for x, y in batches:
        loss = F.cross_entropy(whole(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        expected.append((loss.item(), float(nn.utils.clip_grad_norm_(whole.parameters(), 0.5))))
        alone.step()
        alone.zero_grad()

    def run(pipe: Pipeline) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1, momentum=0.9)
        for (x, y), (loss, norm) in zip(batches, expected, strict=True):
            assert pipe.step(x, y) == pytest.approx(loss, rel=1e-4)
            assert pipe.clip_grad_norm_(0.5) == pytest.approx(norm, rel=1e-4)
            optimizer.step()
            optimizer.zero_grad()
        pipe.check_copies()
        return pipe.full_state_dict()

    for state in on_all_ranks(program, run):
        assert list(state) == list(whole.state_dict())
        assert all(close(state[name], t) for name, t in whole.state_dict().items())


def test_a_rank_without_gradients_takes_part_in_clipping() -> None:
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    layers = [nn.Linear(WIDTH, WIDTH), frozen, nn.ReLU()]
    program = compile_schedule("1f1b", {"D": 3, "N": 2}).program
    x, y = batch(SAMPLES * 2)

    def run(transport: Transport) -> float:
        pipe = Pipeline(layers, program, loss=F.cross_entropy, inputs=x[:SAMPLES], split=[1, 1, 1], transport=transport)
        pipe.step(x, y)
        assert pipe.clip_grad_norm_(1e-3) > 1e-3
        return pipe.grad_norm()

    assert run_in_loopback(program, run) == [pytest.approx(1e-3, rel=1e-2)] * 3


class Branching(nn.Linear):
    """A layer whose forward depends on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.max() > 0 else x


def test_a_layer_that_reads_values_is_named() -> None:
    program = compile_schedule("gpipe", {"D": 1, "N": 2}).program
    model = net()
    model.first = Branching(WIDTH, WIDTH)
    with pytest.raises(ValueError, match=r"the layer 'first' reads the values of a tensor \(aten\..*torch.where"):
        on_all_ranks(program, lambda pipe: None, model=model)
    with pytest.raises(ValueError, match="the loss reads the values of a tensor"):
        on_all_ranks(
            program,
            lambda pipe: None,
            loss=lambda y, t: F.cross_entropy(y[t > 0], t[t > 0]),
            targets=torch.zeros(SAMPLES, dtype=torch.int64),
        )


class Counting(nn.Linear):
    """A layer with extra state, which is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}


def test_extra_state_of_modules_is_not_in_the_state() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    model = net()
    model.first = Counting(WIDTH, WIDTH)
    names = [name for name, _ in model.named_parameters()]
    for state in on_all_ranks(program, lambda pipe: pipe.full_state_dict(), model=model):
        assert list(state) == names


def test_gradients_add_up_over_steps_with_and_without_sync() -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program
    first, second = batch(SAMPLES * 2, 1), batch(SAMPLES * 2, 2)
    whole = net()
    for x, y in (first, second):
        F.cross_entropy(whole(x), y).backward()  # type: ignore[no-untyped-call]
    expected = {name: p.grad for name, p in whole.named_parameters()}

    def run(pipe: Pipeline, sync: bool) -> None:
        pipe.step(*first, sync=sync)
        pipe.step(*second)
        for name, p in pipe.named_parameters():
            expected_gradient = expected[name]
            assert p.grad is not None and expected_gradient is not None and close(p.grad, expected_gradient), name

    for sync in (True, False):
        on_all_ranks(program, lambda pipe, sync=sync: run(pipe, sync))


def test_an_evaluation_leaves_no_gradients_and_draws_no_dropout() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    x, y = batch(SAMPLES * 2)
    expected = float(F.cross_entropy(net(drop=0.5).eval()(x), y))

    def run(pipe: Pipeline) -> None:
        for _ in range(2):
            assert pipe.evaluate(x, y) == pytest.approx(expected, rel=1e-5)
        assert all(p.grad is None for p in pipe.parameters())
        assert all(m.training for stage in pipe.stages.values() for m in stage.modules())

    run_in_loopback(program, lambda transport: run(pipeline(program, transport, net(drop=0.5))))


@pytest.mark.parametrize("early", ["", "R(s, m) at 4 + m", "R(s, m) when m == 1 at 4"])
def test_a_recomputed_forward_drops_the_same_activations(early: str) -> None:
    """nn.Dropout draws from torch's generator, which has moved on when the forward runs again."""
    text = f"""
        schedule recomputed
        ranks 1
        stages 1
        pipe p {{ stage s on rank 0 recompute   micro_batches 2 }}
        order ticks {{ F(s, m) at m  B(s, m) at 9 - m  {early} }}
    """
    model, (x, y) = net(drop=0.5), batch(SAMPLES * 2)
    torch.manual_seed(5)
    losses = [F.cross_entropy(model(part), target) for part, target in zip(x.chunk(2), y.chunk(2), strict=True)]
    (sum(losses) / 2).backward()  # type: ignore[union-attr]
    expected = [p.grad for p in model.parameters()]
    pipe = pipeline(text, Alone(), net(drop=0.5))
    torch.manual_seed(5)
    assert pipe.step(x, y) == pytest.approx(float(sum(losses)) / 2, rel=1e-6)
    assert torch.rand(1) is not None, "the generator goes on"
    for p, expected_gradient in zip(pipe.parameters(), expected, strict=True):
        assert p.grad is not None and expected_gradient is not None and close(p.grad, expected_gradient)


@pytest.mark.parametrize("recompute", ["none", "all", "0"])
def test_each_rank_of_the_loopback_draws_from_generators_of_its_own(recompute: str) -> None:
    """As processes do. So what a rank draws does not depend on the others, which run while it waits for a message."""
    count, parameters = 4, {"D": 2, "N": 4}
    program, options = compile_schedule("1f1b", parameters).program, {"split": [4, 4], "recompute": recompute}
    (x, y), model = batch(SAMPLES * count), net(drop=0.5)
    values = x.chunk(count)
    for stage, layers in enumerate((model.layers()[:4], model.layers()[4:])):
        torch.manual_seed(5 + stage)
        values = tuple(nn.Sequential(*layers)(v) for v in values)
    F.cross_entropy(torch.cat(values), y).backward()  # type: ignore[no-untyped-call]
    expected = {name: p.grad for name, p in model.named_parameters()}

    def run(transport: Transport) -> None:
        pipe = pipeline("1f1b", transport, net(drop=0.5), parameters=parameters, **options)
        torch.manual_seed(5 + pipe.rank)
        pipe.step(x, y)
        for name, p in pipe.named_parameters():
            expected_gradient = expected[name]
            assert p.grad is not None and expected_gradient is not None and close(p.grad, expected_gradient), name

    torch.manual_seed(1)
    state = torch.get_rng_state()
    run_in_loopback(program, run)
    assert torch.get_rng_state().equal(state), "the draws of the ranks are not those of the caller"


class Returns(nn.Module):
    """Returns what a function makes of its output."""

    def __init__(self, made: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(WIDTH, WIDTH), made

    def forward(self, x: Tensor) -> Any:
        return self.made(self.linear(x))


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda y: [y, y], "a list"),
        (lambda y: None, "a NoneType"),
        (lambda y: {"y": y}, "a dict"),
        (lambda y: (y, None), "a tuple with a NoneType"),
    ],
)
def test_a_layer_that_returns_no_tensors_is_named(made: Callable[[Tensor], Any], found: str) -> None:
    layers = [Returns(made), nn.Linear(WIDTH, CLASSES)]
    with pytest.raises(TypeError, match=f"the layer Returns returns {found}: a layer returns a tensor or a tuple of tensors"):
        Pipeline(layers, "gpipe", {"D": 1}, loss=F.cross_entropy, inputs=torch.zeros(SAMPLES, WIDTH), transport=Alone())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y, t: F.cross_entropy(y, t, reduction="none"), r"the loss returns a tensor of shape \[3\]: it has to"),
        (lambda y, t: 1.0, "the loss returns a float: it has to return a tensor"),
        (lambda y, t: None, "the loss returns a NoneType: it has to return a tensor"),
        (lambda y, t: [F.cross_entropy(y, t), 0.0], "the loss returns a float: it has to return a tensor"),
    ],
)
def test_a_loss_that_is_no_number_is_named(loss: Callable[..., Any], message: str) -> None:
    pipe = pipeline("gpipe", Alone(), parameters={"D": 1, "N": 2}, loss=loss)
    with pytest.raises(RankError, match=f"FWD main s0 m0: {message}"):
        pipe.step(*batch(SAMPLES * 2))
    with pytest.raises((TypeError, ValueError), match=message):
        pipeline("gpipe", Alone(), parameters={"D": 1, "N": 2}, loss=loss, targets=batch(SAMPLES)[1])


def test_a_loss_of_one_element_is_a_number() -> None:
    (x, y), options = batch(SAMPLES * 2), {"D": 1, "N": 2}
    pipe = pipeline("gpipe", Alone(), parameters=options, loss=lambda y, t: F.cross_entropy(y, t).view(1))
    assert pipe.step(x, y) == pytest.approx(float(F.cross_entropy(net()(x), y).detach()), rel=1e-5)


class Slope(nn.Module):
    """Adds the derivative of a function of its input: its forward computes a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        return x + torch.autograd.grad(torch.tanh(self.linear(x)).sum(), x, create_graph=True)[0]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda x: torch.tanh(self.linear(x)), x, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("layer", "schedule", "supported"),
    [(Slope, "1f1b", True), (Slope, "zb_h1", False), (Checkpointed, "1f1b", True), (Checkpointed, "zb_h1", True)],
)
def test_layers_that_use_autograd_themselves(layer: type[nn.Module], schedule: str, supported: bool) -> None:
    def layers() -> list[nn.Module]:
        torch.manual_seed(2)
        return [layer() for _ in range(3)]

    (x, y), whole = batch(SAMPLES * 4), nn.Sequential(*layers())
    F.cross_entropy(whole(x), y).backward()  # type: ignore[no-untyped-call]
    expected = {name: p.grad for name, p in whole.named_parameters()}

    def run(pipe: Pipeline) -> None:
        pipe.step(x, y)
        for name, p in pipe.named_parameters():
            expected_gradient = expected[name]
            assert p.grad is not None and expected_gradient is not None and close(p.grad, expected_gradient), name

    program = compile_schedule(schedule, {"D": 3, "N": 4}).program
    message = (
        r"rank 0, instruction \d+: FWD main s0 m0: a layer or the loss computes gradients in its forward .*without BWD_INPUT"
    )
    with nullcontext() if supported else pytest.raises(RankError, match=message):
        run_in_loopback(
            program,
            lambda transport: run(
                Pipeline(layers(), program, loss=F.cross_entropy, inputs=torch.zeros(SAMPLES, WIDTH), transport=transport)
            ),
        )


def test_state_is_loaded_by_full_names() -> None:
    program = compile_schedule("gpipe", {"D": 2, "N": 2}).program
    other = net(seed=7).state_dict()

    def run(pipe: Pipeline) -> None:
        before = {name: t.clone() for name, t in pipe.state_dict().items()}
        name = next(iter(before))
        with pytest.raises(KeyError, match=f"1 of {len(before)} names are missing: {name}"):
            pipe.load_state_dict({k: t for k, t in other.items() if k != name})
        with pytest.raises(ValueError, match=rf"{name} has the shape \[7\], and in this model"):
            pipe.load_state_dict({**other, name: torch.zeros(7)})
        assert all(t.equal(before[k]) for k, t in pipe.state_dict().items())
        pipe.load_state_dict(other)
        assert all(t.equal(other[k]) for k, t in pipe.full_state_dict().items())

    on_all_ranks(program, run)


def test_layers_are_named_by_the_model_the_sequential_or_the_user() -> None:
    linear = nn.Linear(WIDTH, WIDTH)
    example = torch.zeros(SAMPLES, WIDTH)

    def names(layers: Any, **options: Any) -> list[str]:
        pipe = Pipeline(layers, "1f1b", {"D": 1, "N": 1}, loss=F.mse_loss, inputs=example, transport=Alone(), **options)
        return list(pipe.state_dict())

    assert names([linear, nn.ReLU()]) == ["0.weight", "0.bias"]
    assert names(nn.Sequential(linear)) == ["0.weight", "0.bias"]
    assert names([("mlp", linear)]) == ["mlp.weight", "mlp.bias"]
    assert names([("built", lambda: nn.Linear(WIDTH, 2, bias=False))]) == ["built.weight"]
    holder = nn.ModuleDict({"inner": nn.ModuleList([linear])})
    assert names([linear], model=holder) == ["inner.0.weight", "inner.0.bias"]


def test_the_split_gives_each_stage_its_layers() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 1}).program

    def run(pipe: Pipeline) -> list[str]:
        return sorted({name.rsplit(".", 1)[0] for name in pipe.state_dict()})

    found = on_all_ranks(program, run, split=[1, 7])
    assert found[0] == ["first"] and "last" in found[1]


@pytest.mark.parametrize("given", ["program", "text", "path"])
def test_a_program_that_hangs_on_the_machine_of_the_transport_is_refused(given: str, tmp_path: Path) -> None:
    """Both ranks send before they receive, which ends only where a SEND need not wait."""
    text, path = entries()["E816"].wrong, tmp_path / "crossing.streams"
    path.write_text(text)
    crossing = load_program(path)
    schedule = {"program": crossing, "text": text, "path": path}[given]

    def run(transport: Transport) -> float:
        return pipeline(schedule, transport).step(*batch(SAMPLES * 2))

    expected = float(F.cross_entropy(net()(batch(SAMPLES * 2)[0]), batch(SAMPLES * 2)[1]))
    assert run_in_loopback(crossing, run) == pytest.approx([expected] * 2, rel=1e-5), "it ends on posted"
    with pytest.raises(ChimeraError, match="E816") as error:
        run_in_loopback(crossing, run, machine="window")
    (found,) = error.value.diagnostics
    assert found.message == "copies is for the posted machine, and the ranks of this pipeline run window(0)"
    command, result = found.help.removeprefix("run ").split(", then use arranged.json: ")
    assert result == "it was verified for the window machine"
    if given == "path":
        output = tmp_path / "arranged.json"
        assert chimerac([*command.replace("arranged.json", str(output)).split()[1:]]) == 0
        assert run_in_loopback(
            crossing, lambda transport: pipeline(output, transport).step(*batch(SAMPLES * 2)), machine="window"
        ) == pytest.approx([expected] * 2, rel=1e-5)
    else:
        assert command.startswith("chimerac PROGRAM --for window")


def parts(given: Sequence[int], **options: Any) -> Callable[[], object]:
    return lambda: pipeline("1f1b", Alone(), parameters={"D": 1, "N": 2}, split=given, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pipeline("1f1", Alone()), ChimeraError, "did you mean '1f1b'"),
        (lambda: pipeline("1f1b", Alone(), parameters={"D": 2, "N": 2}), ChimeraError, "E800: 2 ranks are needed and 1"),
        (lambda: pipeline("1f1b", Alone(), parameters={"N": 2, "X": 1}), ChimeraError, "has no parameter 'X'"),
        (parts([3, 5]), ChimeraError, "E708: split 3,5 is for 2 stages, and the program has 1"),
        (parts([7]), ChimeraError, "E708: split 7 has 7 layers, and Net has 8"),
        (lambda: pipeline("1f1b", Alone(), inputs=[]), ValueError, "no tensor in the inputs"),
        (lambda: pipeline("1f1b", Alone(), inputs=3), TypeError, "int"),
        (lambda: pipeline("1f1b", Alone(), inputs=torch.tensor(3)), TypeError, "not a tensor without dimensions"),
        (lambda: Pipeline([], "1f1b", loss=F.mse_loss, inputs=ONE, transport=Alone()), ValueError, "no layer"),
        (lambda: Pipeline([3], "1f1b", loss=F.mse_loss, inputs=ONE, transport=Alone()), TypeError, "layer 0 has the type int"),
        (lambda: pipeline("1f1b", Alone(), net_layers=[LINEAR]), ValueError, "not a submodule of the model Net"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (None, torch.zeros(6).long(), "rank 0 has the first stage: give it the inputs"),
        (torch.zeros(6, WIDTH), None, "rank 0 has the last stage: give it the targets"),
        (torch.zeros(5, WIDTH), torch.zeros(6).long(), r"of shape \[5, 12\], and 2 micro-batches of 3 samples are .*\[6, 12\]"),
        (torch.zeros(6, WIDTH).double(), torch.zeros(6).long(), "float64"),
        (torch.zeros(6, WIDTH), torch.zeros(5).long(), "5 targets cannot be cut into 2 micro-batches"),
        ([torch.zeros(6, WIDTH)] * 2, torch.zeros(6).long(), "2 input tensors were given, and 1 when"),
    ],
)
def test_wrong_batches_are_named(inputs: Any, targets: Any, message: str) -> None:
    pipe = pipeline("1f1b", Alone(), parameters={"D": 1, "N": 2})
    with pytest.raises(ValueError, match=message):
        pipe.step(inputs, targets)
    with pytest.raises(ValueError, match="divisor is 0"):
        pipe.step(torch.zeros(6, WIDTH), torch.zeros(6).long(), divisor=0)
    assert pipe.step(torch.zeros(6, WIDTH), torch.zeros(6).long()) > 0, "the pipeline goes on"


def test_times_are_measured_and_predicted() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 4}).program

    def run(pipe: Pipeline) -> tuple[float, int, float]:
        pipe.step(*batch(SAMPLES * 4))
        measured, predicted = pipe.measured(), pipe.predicted()
        assert measured.makespan > 0 and predicted.makespan == 15 and len(measured.bubbles) == len(predicted.bubbles) == 2
        return measured.makespan, len(pipe.times.start), predicted.bubble_ratio

    (makespan, _, ratio), (same, _, _) = on_all_ranks(program, run)
    assert makespan == same and ratio == pytest.approx(3 / 15)
