"""Write the shipped profiles of GPUs with published times (models/profiles/), or check that they are up to date.

    python -m tools.profiles            check: print the files that differ or are missing, exit status 1 if there are any
    python -m tools.profiles --write    write

For each GPU the forward and the backward time of one layer of BERT-large are published. The times of other layers are scaled
from them by the layers' costs in the shipped descriptions: multiplications and additions, and one operation for each number of
the output. Nothing is fitted to measured iterations.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.chimera_ir.profile import LayerTimes, Link, Profile, SizeTimes, layer_bytes, profile_to_json
from chimerac.compiler.descriptions import find_model
from tools import ROOT

FOLDER = ROOT / "models" / "profiles"
# Samples of a micro-batch. Times are proportional to them, so two sizes are enough: the profile interpolates between them.
SIZES = (1, 1024)
SEQ_LENS = {"bert48": 128, "gpt2-64": 632}  # tokens of a sample in the evaluation of the Chimera paper
# The published layer is a block of BERT-large. It is the same as layer LAYER of REFERENCE, a block of bert48.
REFERENCE, SAMPLES, SEQ_LEN, LAYER = "bert48", 32, 128, 1
OPTIMIZER = "adamw"
DIGITS = 9  # after the decimal point, of a time in seconds


@dataclass(frozen=True, slots=True)
class Hardware:
    """A GPU with its published times of a layer, and an assumed link between two GPUs.

    Attributes:
        link_source: a text about the link.
    """

    name: str
    forward_ms: float
    backward_ms: float
    link: Link
    link_source: str


HARDWARE: Mapping[str, Hardware] = {
    "p100": Hardware(
        "NVIDIA P100, one per node, Cray Aries network",
        forward_ms=16.10,
        backward_ms=26.95,
        link=Link(latency_s=10e-6, bytes_per_s=10e9),
        link_source="The link is assumed, not measured: 10 microseconds and 10 GB/s, near the injection bandwidth of a Cray "
        "Aries node.",
    ),
    "v100": Hardware(
        "NVIDIA V100, InfiniBand EDR",
        forward_ms=10.39,
        backward_ms=16.28,
        link=Link(latency_s=10e-6, bytes_per_s=12e9),
        link_source="The link is assumed, not measured: 10 microseconds and 12 GB/s, near the bandwidth of InfiniBand EDR.",
    ),
}


def profile_of(model: str, hardware: Hardware) -> Profile:
    """Return the profile of a model on a GPU with published times."""
    reference = find_model(REFERENCE, samples=lambda b: b, micro_batch=SAMPLES, seq_len=SEQ_LEN).layers[LAYER].cost
    sizes = {samples: find_model(model, samples=lambda b: b, micro_batch=samples, seq_len=SEQ_LENS[model]) for samples in SIZES}
    source = (
        f"Scaled by the costs of the layers from one layer of BERT-large on this GPU, {SAMPLES} samples of {SEQ_LEN} "
        f"tokens in float32: {hardware.forward_ms} ms forward, {hardware.backward_ms} ms backward (layer costs published with "
        "Chimera, Li and Hoefler, SC'21, arXiv 2107.06925). The halves of a split backward are assumed to be equal, and a "
        f"recomputation takes what the forward takes. {hardware.link_source} Give another one with --link."
    )
    times = tuple(SizeTimes(samples, _times(description, hardware, reference)) for samples, description in sizes.items())
    return Profile(
        model=model,
        seq_len=SEQ_LENS[model],
        optimizer=OPTIMIZER,
        hardware=hardware.name,
        source=source,
        layers=layer_bytes(sizes[SIZES[0]], OPTIMIZERS[OPTIMIZER]),
        sizes=times,
        point_to_point=hardware.link,
    )


def _times(description: ModelDescription, hardware: Hardware, reference: int) -> tuple[LayerTimes, ...]:
    """Return the times of all layers for one micro-batch.

    Args:
        reference: the cost of the published layer and micro-batch.
    """

    def seconds(published_ms: float, cost: int) -> float:
        return round(published_ms / 1000 * cost / reference, DIGITS)

    found = []
    for layer in description.layers:
        forward, half = seconds(hardware.forward_ms, layer.cost), seconds(hardware.backward_ms / 2, layer.cost)
        found.append(
            LayerTimes(
                forward_s=forward,
                backward_s=round(2 * half, DIGITS),
                input_s=half,
                weight_s=half,
                recompute_s=forward,
                activation_bytes=layer.kept_bytes,
            )
        )
    return tuple(found)


def texts() -> dict[str, str]:
    """Return the text of every shipped profile, by the name of its file."""
    return {
        f"{model}-{gpu}.json": profile_to_json(profile_of(model, hardware))
        for model in SEQ_LENS
        for gpu, hardware in HARDWARE.items()
    }


def main(write: bool) -> int:
    """Write the profiles, or print the names of files that differ or are missing; return the exit status."""
    differing = [name for name, text in texts().items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != text]
    if write:
        FOLDER.mkdir(exist_ok=True)
        for name, text in texts().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return 0
    print("\n".join(differing), end="\n" if differing else "")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv[1:]))
