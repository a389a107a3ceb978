"""The state that torch's optimizers hold."""

from __future__ import annotations

# Numbers of the size of the gradient for each parameter.
OPTIMIZERS = {"adamw": 2, "momentum": 1, "sgd": 0}
