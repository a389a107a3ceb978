"""The predicted memory of a rank equals the measured one after every instruction, for random and shipped programs and models.

Every program trains for two iterations, with an evaluation in between. With CHIMERA_EXAMPLES = k, 5 k random programs run in
float32, and the first k of them again under autocast.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines
from chimerac.interpreter.data.pairs import Pairs
from chimerac.interpreter.data.text import Text
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import LayeredModel, Model
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.bert import bert
from chimerac.models.cnn import cnn
from chimerac.models.gpt import gpt
from chimerac.models.presets import Cnn, sizes_in
from tests.distributed.integers import IntegerSamples
from tests.helpers import SMALL, program
from tests.helpers_layers import (
    MIDDLE,
    EndsInLinear,
    First,
    Last,
    NormAndDropout,
    OneHot,
    SingleLayer,
    TiedFirst,
    TiedLast,
    model_of_layers,
    random_model,
)
from tests.helpers_memory import differences
from tests.proof.drawn import lower_tasks, random_tasks
from tools.shown_models import RandomImages

PARTS = 5  # tests that pytest-xdist can run in parallel
SAMPLES = 2  # of a micro-batch
LENGTH = 16  # tokens of a sample of GPT and BERT
PROGRAMS_OF_A_PART = int(os.environ.get("CHIMERA_EXAMPLES", "1"))


def random_case(r: random.Random) -> tuple[Program, LayeredModel]:
    """Return a random program with a machine on which it terminates, and a random model for it."""
    p = lower_tasks(random_tasks(r), r)
    p = p.with_header(machine=r.choice([machine for machine, terminates in machines(ProgramIndex(p)).items() if terminates]))
    return p, random_model(r, p.header.stages, tied=bool(p.header.tied))


def wrong_predictions(p: Program, model: Model, seed: int, samples: Any = None) -> list[str]:
    """Return the differences between predicted and measured bytes of all ranks, in words.

    Args:
        seed: of the order in which ranks run.
        samples: what the model reads, sequences of two integers by default.
    """
    run_rank = differences(p, model, describe(model, SAMPLES), samples or IntegerSamples(length=2))
    return [text for texts in run_in_loopback(p, run_rank, seed, every_post=True) for text in texts]


@pytest.mark.parametrize("part", range(PARTS))
def test_a_rank_holds_the_predicted_bytes_after_every_instruction(part: int) -> None:
    for seed in range(part * PROGRAMS_OF_A_PART, (part + 1) * PROGRAMS_OF_A_PART):
        p, model = random_case(random.Random(seed))
        assert not wrong_predictions(p, model, seed), f"seed {seed}"


def test_a_rank_holds_the_predicted_bytes_under_autocast() -> None:
    for seed in range(PROGRAMS_OF_A_PART):
        p, model = random_case(random.Random(seed))
        assert not wrong_predictions(p, replace(model, autocast=torch.bfloat16), seed), f"seed {seed}"


def test_a_rank_holds_the_predicted_bytes_of_a_norm_under_autocast() -> None:
    """The statistics of the norm are float32, although its input is bfloat16."""
    model = model_of_layers("norm", [First, EndsInLinear, partial(NormAndDropout, 7), Last])
    assert not wrong_predictions(program("1f1b", D=4, N=4), replace(model, autocast=torch.bfloat16), seed=0)


def test_programs_of_many_kinds_and_layers_of_all_kinds_are_drawn() -> None:
    cases = [random_case(random.Random(seed)) for seed in range(24)]
    drawn = [p for p, _ in cases]
    assert len({p.header.machine for p in drawn}) >= 4 and {p.header.window for p in drawn} == {0, 1, 2, 3}
    assert any(p.header.width > 1 for p in drawn) and any(p.header.tied for p in drawn)
    layers = {type(make()) for _, model in cases for _, make in model.layers}
    assert layers == {First, OneHot, TiedFirst, *(type(make()) for make in MIDDLE), Last, TiedLast, SingleLayer}


@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", ["1f1b", "zb_v", "chimera_doubling", "dualpipe"])
def test_a_gpt_holds_the_predicted_bytes_after_every_instruction(name: str, autocast: torch.dtype | None) -> None:
    p = program(name, **SMALL[name][0])
    model = replace(gpt("gpt-nano" if p.header.stages <= 4 else "gpt-micro", LENGTH, dropout=0.1), autocast=autocast)
    assert not wrong_predictions(p, model, seed=0, samples=IntegerSamples(LENGTH))
    assert all(m.peak > m.weights + m.gradients for m in memory(p, describe(model, SAMPLES)))


MODELS = [bert("bert-nano", LENGTH, dropout=0.1), cnn("cnn-digits/2"), cnn("cnn-digits-gn/2")]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("name", ["zb_v", "chimera_doubling"])
def test_models_with_fields_and_images_hold_the_predicted_bytes_after_every_instruction(name: str, model: LayeredModel) -> None:
    p, text = program(name, **SMALL[name][0]), Text([np.arange(4000, dtype=np.uint8)])
    samples = Pairs(text, LENGTH, seed=1) if model.fields else RandomImages(sizes_in(Cnn, model.name))
    assert not wrong_predictions(p, model, seed=0, samples=samples)
