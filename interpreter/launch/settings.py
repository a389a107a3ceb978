"""The settings of a run: one typed field per option. options.py makes the command line from them, config.py the config file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from chimerac.chimera_ir.machines import Machine
from chimerac.interpreter.adapters.own import LossName
from chimerac.interpreter.errors import MAX_TIMEOUT_S, MIN_TIMEOUT_S
from chimerac.interpreter.training.settings import Dtype, RateSchedule

TransportName = Literal["gloo", "staged", "nccl"]
MAX_COUNT = 2**31 - 1  # the largest number of samples, tokens and so on: the product of two of them fits into 64 bits
Count = Annotated[int, Ge(1), Le(MAX_COUNT)]
CountFromZero = Annotated[int, Ge(0), Le(MAX_COUNT)]
PositiveNumber = Annotated[float, Gt(0), Lt(math.inf)]
Share = Annotated[float, Ge(0), Lt(1)]
ShareOrOne = Annotated[float, Ge(0), Le(1)]

SCHEDULE = Path("schedules/chimera.sched")  # the default
# The groups of options in --help.
PROGRAM, DATA, TRAINING = "what runs", "data and storage", "training"
CHECKPOINTS, OUTPUT = "checkpoints", "checks and output"


def option(default: Any, group: str, help: str, metavar: str | None = None, folder: str | None = None) -> Any:
    """Return a field of RunSettings.

    Args:
        default: its value where nothing else gives one.
        group: the title of its group in --help.
        metavar: the name of its value in --help, None for switches and choices.
        folder: for a path, the name of the field with the folder from which a relative path starts (storage.py).
    """
    return field(default=default, metadata={"group": group, "help": help, "metavar": metavar, "folder": folder})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of a run. None: the option is not given.

    Ranks compare them before they run, except for a few (agreement.py).
    """

    schedule: Path = option(
        SCHEDULE,
        PROGRAM,
        "a schedule (its D is by default that for torchrun's number of processes), a compiled program as JSON or compact text, "
        "or a config file (.yaml)",
        "SCHEDULE",
    )
    parameters: tuple[tuple[str, int], ...] = option((), PROGRAM, "set a parameter of the schedule; repeatable", "NAME=VALUE")
    width: Count | None = option(None, PROGRAM, "data-parallel replicas of the pipeline (default: 1)", "W")
    model: str | None = option(
        None, PROGRAM, "a model of the table below, or NAME/BLOCKS for another number of blocks "
        "(default: that of the partition, else gpt-small, with more blocks if the schedule has more than 6 stages)", "NAME",
    )  # fmt: skip
    split: tuple[Count, ...] | None = option(
        None, PROGRAM, "the number of layers of each stage (default: the program's partition, else stages of about equal cost)",
        "n,n,...",
    )  # fmt: skip
    partition: Path | None = option(None, PROGRAM, "the layers of each stage: a file of chimerac partition -o", "PATH")
    recompute: str | None = option(
        None, PROGRAM, "the stages that keep only their inputs and run their forwards again before their backwards: all, none, "
        "or a list such as 0,2..5 (default: as the schedule says)", "STAGES",
    )  # fmt: skip
    layers: str | None = option(
        None, PROGRAM, "of a model of your own: the paths of its lists of layers, separated by commas, as in encoder.layer; "
        "* stands for one part of a path (default: its outermost lists)", "PATHS",
    )  # fmt: skip
    loss: LossName | None = option(None, PROGRAM, "of a model of your own (default: cross-entropy)")
    head: str | None = option(
        None, PROGRAM, "the class of a Hugging Face model, such as BertForMaskedLM (default: as its config.json says)", "CLASS"
    )

    data: str | None = option(
        None,
        DATA,
        "text (Python's standard library), digits, cifar10, hf:FOLDER, or a text file or a folder of them "
        "(default: what the model is trained on: text, digits or cifar10)",
        "SOURCE",
        folder="data_dir",
    )
    tokenizer: Path | None = option(
        None, DATA, "a tokenizer.json, or a folder with one (default: texts are bytes)", "PATH", folder="data_dir"
    )
    text_column: str = option("text", DATA, "the column of hf:FOLDER that has the texts", "NAME")
    augment: bool = option(False, DATA, "move the images to train on, and mirror those of cifar10, each time in another way")
    data_dir: Path | None = option(
        None,
        DATA,
        "relative paths of --data and --tokenizer are below this folder, and cifar10 lies in it "
        "(default: $CHIMERAC_DATA_DIR, or the current folder)",
        "PATH",
    )
    work_dir: Path | None = option(
        None,
        DATA,
        "relative paths of all that a run writes are below this folder; it is made if there is none "
        "(default: $CHIMERAC_WORK_DIR, or the current folder)",
        "PATH",
    )
    transport: TransportName = option(
        "gloo", PROGRAM, "gloo: on CPUs; staged: on GPUs that ranks may share, messages pass through host memory; "
        "nccl: a GPU per rank",
    )  # fmt: skip
    loopback: bool = option(False, PROGRAM, "run all ranks in this process, one at a time, without torchrun")
    machine: Machine | None = option(
        None, PROGRAM, "how instructions wait with --loopback (docs/semantics.md); default: the one in the program"
    )
    timed: PositiveNumber | None = option(
        None, PROGRAM, "instead of the model: stages that sleep this many milliseconds for each unit of the program's costs; "
        "prints when the last task ends and the bubbles, predicted and measured", "MS",
    )  # fmt: skip

    iterations: Count | None = option(None, TRAINING, "weight updates (default: 200; 5 with --timed)", "T")
    micro_batch: Count = option(4, TRAINING, "samples of a micro-batch, before the `size` of a schedule", "b")
    accumulate: Count = option(1, TRAINING, "batches whose gradients are summed before each weight update", "K")
    seq_len: Count = option(128, TRAINING, "tokens of a sample of text, which are bytes without --tokenizer", "L")
    dtype: Dtype = option("fp32", TRAINING, "fp32, or bf16: layers compute in bfloat16 (autocast), weights stay fp32")
    lr: PositiveNumber = option(1e-3, TRAINING, "highest learning rate of AdamW", "RATE")
    lr_schedule: RateSchedule = option("cosine", TRAINING, "how the rate falls after the warm-up")
    lr_floor: ShareOrOne = option(0.1, TRAINING, "the rate falls to this share of the highest one", "SHARE")
    warm_up: CountFromZero | None = option(None, TRAINING, "iterations in which the rate rises (default: a tenth)", "T")
    betas: tuple[Share, Share] = option((0.9, 0.95), TRAINING, "decay of AdamW's means of gradients and their squares", "BETA")
    weight_decay: Annotated[float, Ge(0), Lt(math.inf)] = option(
        0.1, TRAINING, "weight decay of AdamW, for parameters of two or more dimensions: not for norms and biases", "RATE"
    )
    clip: PositiveNumber = option(
        1.0, TRAINING, "largest norm of the whole model's gradient: a longer one is scaled down", "NORM"
    )
    skip_nonfinite: bool = option(False, TRAINING, "skip an update if its loss or gradient is not finite, and go on")
    max_skipped: Count = option(10, TRAINING, "with --skip-nonfinite: how many updates in a row may be skipped", "K")
    dropout: Share = option(0.0, TRAINING, "share of the activations that are set to zero", "SHARE")
    seed: Annotated[int, Ge(0)] = option(0, TRAINING, "seed of the weights, the sample order and dropout", "SEED")
    compile: bool = option(False, TRAINING, "compile the stages with torch.compile")
    zero: bool = option(False, TRAINING, "shard the optimizer's state (ZeRO-1) over the ranks that hold copies of a stage")

    save_dir: Path | None = option(None, CHECKPOINTS, "write checkpoints to this folder", "PATH", folder="work_dir")
    save_every: Count | None = option(None, CHECKPOINTS, "write one every T iterations too (default: at the end)", "T")
    keep: Count | None = option(None, CHECKPOINTS, "keep only the last K checkpoints (default: all)", "K")
    async_save: bool = option(False, CHECKPOINTS, "go on training while a checkpoint is written")
    resume: str = option(
        "no",
        CHECKPOINTS,
        "go on from a checkpoint: its path; auto: the last one of --save-dir, if there is one; no",
        "auto|PATH|no",
        folder="work_dir",
    )
    export: Path | None = option(
        None, CHECKPOINTS, "write the trained weights to this file at the end", "PATH", folder="work_dir"
    )

    eval_every: Count | None = option(None, OUTPUT, "held-out loss every T iterations too (default: at the end)", "T")
    eval_samples: Count = option(256, OUTPUT, "largest number of held-out samples of an evaluation", "K")
    log_file: Path | None = option(
        None,
        OUTPUT,
        "append to this file: a JSON line with the settings, then one for each iteration; docs/training.md lists the fields",
        "PATH",
        folder="work_dir",
    )
    tensorboard: Path | None = option(
        None, OUTPUT, "write the same figures for TensorBoard to this folder", "PATH", folder="work_dir"
    )
    trace: Path | None = option(
        None,
        OUTPUT,
        "write the times of the instructions of the last iteration to this file, for Perfetto",
        "PATH",
        folder="work_dir",
    )
    timeline: Path | None = option(
        None,
        OUTPUT,
        "write these times to this file, for chimerac PROGRAM --measured PATH",
        "PATH",
        folder="work_dir",
    )
    profile_ranges: bool = option(False, OUTPUT, "mark each instruction as a range in torch's profilers")
    check_gradients: bool | None = option(
        None, OUTPUT, "compare the first gradients with those of one process, which every rank computes with the whole "
        "model (default: in fp32, where the model has at most 10 million parameters)",
    )  # fmt: skip
    memory_check: bool = option(
        True, OUTPUT, "refuse to start if the ranks of this host need more memory than it has (default: yes)"
    )
    timeout: Annotated[float, Ge(MIN_TIMEOUT_S), Le(MAX_TIMEOUT_S)] = option(
        300.0, OUTPUT, "seconds a rank waits for another before the job is ended", "SECONDS"
    )


def as_mapping(settings: RunSettings) -> Mapping[str, Any]:
    """Return the settings as a config file holds them: numbers, texts, booleans, lists, null, and {name: number}."""
    values: dict[str, Any] = {name: getattr(settings, name) for name in RunSettings.__dataclass_fields__}
    for name, value in values.items():
        match value:
            case Path():
                values[name] = str(value)
            case tuple():
                values[name] = dict(value) if name == "parameters" else list(value)
    return values
