"""The optimizers whose state the compiler counts, by the names that --optimizer takes."""

from __future__ import annotations

# How many numbers torch's optimizer keeps for each parameter, of 4 bytes each.
OPTIMIZERS = {"adamw": 2, "momentum": 1, "sgd": 0}
