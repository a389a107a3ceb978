"""The handwritten digits that come with scikit-learn: 1,797 images of 8 x 8 pixels. Nothing is downloaded."""

from __future__ import annotations

import hashlib

import numpy as np

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.data.images import ImageSet, statistics
from chimerac.interpreter.data.order import sample_at

HELD_OUT = 5  # one image in 5 is held out


def digits() -> ImageSet:
    """Return the digits. The split is the same for every seed. Raises ChimeraError E802 without scikit-learn."""
    try:
        from sklearn.datasets import load_digits  # optional: an extra of this project; takes 2 s
    except ImportError:
        message = "the digits come with scikit-learn, which is not installed"
        raise refuse("E802", message, help="pip install 'chimerac[images]'") from None
    found = load_digits()
    pixels = found.images.astype(np.uint8)[:, None]  # whole numbers from 0 to 16
    classes = found.target.astype(np.uint8)
    count = len(pixels)
    places = np.array([sample_at(seed=0, number=k, count=count) for k in range(count)])
    held_out, train = places[: count // HELD_OUT], places[count // HELD_OUT :]
    digest = hashlib.sha256(pixels.tobytes() + classes.tobytes()).hexdigest()[:12]
    return ImageSet(
        "digits of scikit-learn",
        pixels,
        classes,
        train,
        held_out,
        *statistics(pixels[train]),
        shift=1,
        flips=False,
        identity=f"{digest}, of {count} images",
    )
