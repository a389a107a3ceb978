"""The state that torch's optimizers hold."""

from __future__ import annotations

# How many numbers the state has for each parameter. Each is as large as a number of the gradient.
OPTIMIZERS = {"adamw": 2, "momentum": 1, "sgd": 0}
