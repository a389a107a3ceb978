"""The optimizers whose state the compiler counts, by the names that --optimizer takes."""

from __future__ import annotations

# How many numbers of 4 bytes torch's optimizer keeps for each number of a parameter. What it keeps once for each tensor, such
# as a count of steps, is left out.
OPTIMIZERS = {"adamw": 2, "momentum": 1, "sgd": 0}
