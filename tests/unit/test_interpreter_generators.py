"""The states of torch's random generators: what a forward draws when it is run again, and what each rank draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from chimerac.compiler import compile_schedule
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.alone import Alone
from tests.helpers_classifier import SAMPLES, batch, close, net, pipeline


@pytest.mark.parametrize("recompute_rule", ["", "R(s, m) at 4 + m", "R(s, m) when m == 1 at 4"])
def test_a_recomputed_forward_drops_the_same_activations(recompute_rule: str) -> None:
    """nn.Dropout draws from torch's generator, which has moved on when the forward runs again.

    Args:
        recompute_rule: says which micro-batches have a RECOMPUTE, which runs the forward again. For the others the backward
            does.
    """
    text = f"""
        schedule recomputed
        ranks 1
        stages 1
        pipe p {{ stage s on rank 0 recompute   micro_batches 2 }}
        order ticks {{ F(s, m) at m  B(s, m) at 9 - m  {recompute_rule} }}
    """
    model, (x, y) = net(drop=0.5), batch(SAMPLES * 2)
    torch.manual_seed(5)
    losses = [F.cross_entropy(model(part), target) for part, target in zip(x.chunk(2), y.chunk(2), strict=True)]
    loss = sum(losses) / 2
    loss.backward()
    expected = [p.grad for p in model.parameters()]
    following = torch.rand(1)
    pipe = pipeline(text, Alone(), net(drop=0.5))
    torch.manual_seed(5)
    assert pipe.step(x, y) == pytest.approx(loss.item(), rel=1e-6)
    assert torch.rand(1).equal(following), "the generator goes on as after the first forwards"
    for p, expected_gradient in zip(pipe.parameters(), expected, strict=True):
        assert p.grad is not None and expected_gradient is not None and close(p.grad, expected_gradient)


@pytest.mark.parametrize("recompute", ["none", "all", "0"])
def test_each_rank_of_the_loopback_draws_from_generators_of_its_own(recompute: str) -> None:
    """The draws of a rank do not depend on the other ranks, which run in the same process while it waits for a message."""
    micro_batches, parameters = 4, {"D": 2, "N": 4}
    program, options = compile_schedule("1f1b", parameters).program, {"split": [4, 4], "recompute": recompute}
    (x, y), model = batch(SAMPLES * micro_batches), net(drop=0.5)
    values = x.chunk(micro_batches)
    for stage, layers in enumerate((model.layers()[:4], model.layers()[4:])):
        torch.manual_seed(5 + stage)
        values = tuple(nn.Sequential(*layers)(v) for v in values)
    F.cross_entropy(torch.cat(values), y).backward()
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
    assert torch.get_rng_state().equal(state), "the ranks do not draw from the caller's generator"
