"""docs/reproducing.md is complete: a program that follows it gets the losses of real runs. And the fields of a run's log."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.start import start
from tools import ROOT

# The page's letters, as capitals. S: the seed, L: tokens of a sample, N: micro-batches of a replica, T: iterations, P: dropout.
# MICRO_BATCH: samples of a micro-batch, which the page calls b. EVALUATED: the value of --eval-samples.
S, L, MICRO_BATCH, N, T, P, EVALUATED = 5, 16, 3, 4, 6, 0.1, 10
D, B, HEADS = 32, 2, 2  # of gpt-nano: the width, and the numbers of blocks and of attention heads
TEXT = "".join(f"{k} times {k} is {k * k}. \u00fc\n" for k in range(60)).encode()


# --- the page as a program, which uses torch and nothing of the project -------------------------------------------------


def key(*numbers: int) -> int:
    """Return the seed that the page computes from these numbers."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "big") >> 1


def mix(x: int) -> int:
    """Return the last part of splitmix64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def window_of(k: int, count: int) -> int:
    """Return the window that sample k reads, of a text with `count` windows."""
    epoch, x = divmod(k, count)
    half = 4
    while 4**half < count:
        half += 1
    while True:
        left, right = divmod(x, 2**half)
        for round in range(6):
            left, right = right, left ^ mix(right ^ key(S, epoch, round)) % 2**half
        x = left * 2**half + right
        if x < count:
            return x


def samples(text: bytes, numbers: range) -> tuple[Tensor, Tensor]:
    """Return the inputs and the targets of the samples with these numbers."""
    count = (len(text) - 1) // L
    windows = [window_of(k, count) for k in numbers]
    rows = torch.tensor([list(text[w * L : w * L + L + 1]) for w in windows])
    return rows[:, :-1], rows[:, 1:]


def layers() -> list[nn.ModuleDict]:
    """Return the layers with their initial weights."""
    built = []
    for layer in range(B + 2):
        torch.manual_seed(key(S, layer))
        if layer == 0:
            modules = {"byte": nn.Embedding(256, D), "position": nn.Embedding(L, D)}
            deviations = {"byte": 0.02, "position": 0.02}
        elif layer == B + 1:
            modules = {"norm": nn.LayerNorm(D, bias=False), "logits": nn.Linear(D, 256, bias=False)}
            deviations = {"logits": 0.02}
        else:
            modules = {
                "norm_1": nn.LayerNorm(D, bias=False),
                "qkv": nn.Linear(D, 3 * D, bias=False),
                "merge": nn.Linear(D, D, bias=False),
                "norm_2": nn.LayerNorm(D, bias=False),
                "up": nn.Linear(D, 4 * D, bias=False),
                "down": nn.Linear(4 * D, D, bias=False),
            }
            deviations = {"qkv": 0.02, "up": 0.02, "merge": 0.02 / math.sqrt(2 * B), "down": 0.02 / math.sqrt(2 * B)}
        for name, deviation in deviations.items():
            nn.init.normal_(modules[name].weight, std=deviation)
        built.append(nn.ModuleDict(modules))
    return built


def dropped(x: Tensor, t: int | None, numbers: range, layer: int, site: int) -> Tensor:
    """Return x after dropout.

    Args:
        t: the iteration; None in an evaluation, which has no dropout.
    """
    if t is None:
        return x
    masks = []
    for k in numbers:
        generator = torch.Generator().manual_seed(key(S, t, k, layer, site))
        masks.append(torch.rand(x.shape[1:], generator=generator) >= P)
    return x * torch.stack(masks) / (1 - P)


def loss_of(model: list[nn.ModuleDict], text: bytes, t: int | None, numbers: range) -> Tensor:
    """Return the mean loss of the samples with these numbers.

    Args:
        t: as of `dropped`.
    """
    inputs, targets = samples(text, numbers)
    first, *blocks, last = model
    x = dropped(first["byte"](inputs) + first["position"](torch.arange(L)), t, numbers, layer=0, site=0)
    for layer, m in enumerate(blocks, start=1):
        q, k, v = (z.unflatten(-1, (HEADS, -1)).transpose(1, 2) for z in m["qkv"](m["norm_1"](x)).split(D, dim=-1))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(D // HEADS)).masked_fill(~torch.ones(L, L).tril().bool(), -math.inf)
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + dropped(m["merge"](attended), t, numbers, layer, site=1)
        x = x + dropped(m["down"](F.gelu(m["up"](m["norm_2"](x)))), t, numbers, layer, site=2)
    return F.cross_entropy(last["logits"](last["norm"](x)).flatten(0, 1), targets.flatten())


def rate_of(t: int, highest: float, floor: float, warm_up: int, kind: str) -> float:
    """Return the learning rate of iteration t."""
    if t < warm_up:
        return highest * (t + 1) / warm_up
    p = (t - warm_up) / max(1, T - warm_up)
    x = {"cosine": (1 + math.cos(math.pi * p)) / 2, "linear": 1 - p, "constant": 1.0}[kind]
    return highest * (floor + (1 - floor) * x)


def expected(width: int, kind: str) -> list[dict[str, float]]:
    """Return what the log must have for each iteration, by the page.

    Args:
        width: the number of replicas.
        kind: of the learning rate's schedule.

    The numbers below are those of the options in `logged_run`.
    """
    held_out = max(len(TEXT) // 20, L + 1)
    train, rest = TEXT[:-held_out], TEXT[-held_out:]
    model, batch = layers(), width * N * MICRO_BATCH
    parameters = [p for layer in model for p in layer.parameters()]
    decayed, others = [p for p in parameters if p.dim() > 1], [p for p in parameters if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.8, 0.9), eps=1e-8)
    lines = []
    for t in range(T):
        loss = loss_of(model, train, t, range(t * batch, (t + 1) * batch))
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters if p.grad is not None))
        for p in parameters:
            p.grad = p.grad * min(1.0, 0.5 / (norm + 1e-6)) if p.grad is not None else None
        rate = rate_of(t, highest=3e-3, floor=0.3, warm_up=2, kind=kind)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        lines.append({"loss": loss.item(), "gradient_norm": norm, "rate": rate})
    with torch.no_grad():
        lines[-1]["held_out_loss"] = float(loss_of(model, rest, None, range(min(EVALUATED, (len(rest) - 1) // L))))
    return lines


# --- the same from real runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "kind"), [(1, "cosine"), (2, "linear")])
def test_a_run_has_the_losses_norms_and_rates_of_the_page(width: int, kind: str, tmp_path: Path) -> None:
    _, lines = logged_run(width, kind, tmp_path)
    wanted = expected(width, kind)
    assert len(lines) == len(wanted) == T and len({round(w["loss"], 3) for w in wanted}) == T
    for line, values in zip(lines, wanted, strict=True):
        for name, value in values.items():
            assert line[name] == pytest.approx(value, rel=2e-5), (line["iteration"], name)


def logged_run(width: int, kind: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the log of a real run: what it says about the run, and its lines, one for each iteration."""
    (folder / "text").write_bytes(TEXT)
    log = folder / "log"
    words = f"""schedules/chimera.sched -p D=2 -p N={N} --width {width} --loopback --model gpt-nano --data {folder / "text"}
    --seed {S} --seq-len {L} --micro-batch {MICRO_BATCH} --iterations {T} --dropout {P} --eval-samples {EVALUATED}
    --lr 3e-3 --lr-floor 0.3 --warm-up 2 --lr-schedule {kind} --betas 0.8 0.9 --weight-decay 0.2 --clip 0.5 --log-file {log}"""
    settings = parse_options(words.split())
    assert start(make_plan(settings), settings) == 0
    about, *lines = [json.loads(line) for line in log.read_text().splitlines()]
    return about, lines


def test_the_page_about_training_lists_the_fields_of_the_log_and_no_others(tmp_path: Path) -> None:
    about, lines = logged_run(1, "cosine", tmp_path)
    page = (ROOT / "docs/training.md").read_text(encoding="utf-8").split("## The log")[1].split("\n## ")[0]
    first, second = page.split("A line for each iteration:")
    of_run, of_iteration = (
        {name for row in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
        for part in (first, second)
    )
    assert of_run == about.keys()
    sometimes = {"oversubscribed", "held_out_accuracy"}  # only with too few processors; only of classifiers
    assert of_iteration - sometimes == {name for line in lines for name in line} - sometimes
