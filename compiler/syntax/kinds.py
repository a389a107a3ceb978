"""The kinds of tasks: their letters in the language, their operations, and names that users may write for them by mistake."""

from __future__ import annotations

from chimerac.chimera_ir.instructions import FORMS

KINDS = {form.letter: form.op for form in FORMS if form.letter}  # letter -> operation
_ALIASES = {  # letter -> names that users may write for it by mistake, in lower case
    "F": ("f", "fwd", "fw", "forward", "forwards"),
    "B": ("b", "bwd", "bw", "backward", "backwards"),
    "I": ("i", "bi", "bx", "dgrad", "bwd_input", "backward_input", "input_gradient"),
    "W": ("w", "bw_weight", "wgrad", "bwd_weight", "backward_weight", "weight_gradient"),
    "R": ("rc", "rf", "recomp", "recomputation", "recompute_forward", "checkpoint"),
}


def kind_of_alias(name: str) -> str:
    """Return the letter of the kind of task that a user meant by this name, in any case of letters; '' if it is not known."""
    return next((kind for kind, aliases in _ALIASES.items() if name.lower() in aliases), "")
