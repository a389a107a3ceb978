"""The kinds of tasks: their letters in the language, and names that are common elsewhere."""

from __future__ import annotations

TASKS = ("F", "B", "I", "W")
_ELSEWHERE = {
    "F": ("f", "fwd", "fw", "forward", "forwards"),
    "B": ("b", "bwd", "bw", "backward", "backwards"),
    "I": ("i", "bi", "bx", "dgrad", "bwd_input", "backward_input", "input_gradient"),
    "W": ("w", "bw_weight", "wgrad", "bwd_weight", "backward_weight", "weight_gradient"),
}


def kind_meant(name: str) -> str:
    """Return the letter of the kind of task with this common name; nothing if none has it."""
    return next((kind for kind, others in _ELSEWHERE.items() if name.lower() in others), "")
