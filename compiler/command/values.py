"""Parsing the values of options: named values, integers, bytes, numbers of layers, costs, and an optimizer's state (E002)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.chimera_ir.profile import Profile
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState
from chimerac.compiler.given import cost_from_text


def named_values(option: str, given: Sequence[str], example: str) -> Mapping[str, str]:
    """Return the values of an option NAME=VALUE by name. Raises ChimeraError E002.

    Args:
        given: texts that should be NAME=VALUE.
        example: the name that the message shows for a text without one.
    """
    found: list[Diagnostic] = []
    values: dict[str, str] = {}
    for text in given:
        name, value = (part.strip() for part in text.partition("=")[::2])  # without the "=" between them
        if not name or not value:
            found.append(Diagnostic("E002", f"{option} {text}: expected NAME=VALUE, for instance {option} {name or example}=4"))
        elif name in values:
            found.append(Diagnostic("E002", f"{option} {text}: {name} was given before, as {values[name]}"))
        else:
            values[name] = value
    if found:
        raise ChimeraError(found)
    return values


def parameters_of(given: Sequence[str]) -> dict[str, int]:
    """Return the parameters of -p. Raises ChimeraError E002."""
    return {name: integer(name, value) for name, value in named_values("-p", given, "D").items()}


def without_parameters(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line without -p and its values."""
    words: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "-p":
            next(rest, None)
        elif not re.match(r"-p=?\w+ *=", word):  # -pD=4 or -p=D=4
            words.append(word)
    return words


def integer(name: str, value: str, option: str = "-p") -> int:
    """Return the integer value of a parameter that an option gives. Raises ChimeraError E002."""
    if not re.fullmatch(r"[+-]?[0-9]+", value):
        raise refuse("E002", f"{option} {name}={value}: '{value}' is not an integer")
    digits = len(value.lstrip("+-"))
    if digits > 20:
        raise refuse("E002", f"{option} {name}={value[:8]}...: a number of {digits} digits is too large")
    return int(value)


def number_of_bytes(text: str) -> int:
    """Return the number of bytes that --memory gives, such as 1000, 1.5GB or 24GiB: 1 GB is 10^9, 1 GiB is 2^30 bytes.

    Raises ChimeraError E002.
    """
    unit_bytes = {"": 1} | {f"{x}{i}B": (1024 if i else 1000) ** k for k, x in enumerate("KMGT", 1) for i in ("", "i")}
    found = re.fullmatch(r"([0-9]{1,30}(?:\.[0-9]{1,6})?) ?([KMGT]i?B)?", text)
    if not found:
        raise refuse("E002", f"--memory {text}: expected bytes, for instance 24GiB (2^30), 80GB (10^9) or 1000000")
    return int(Fraction(found[1]) * unit_bytes[found[2] or ""])


def state_of(optimizer: str | None, zero: bool, precision: str = "float32", profile: Profile | None = None) -> OptimizerState:
    """Return the optimizer's state by --optimizer, --zero and --precision.

    Args:
        profile: its optimizer is used if --optimizer is not given.

    Raises ChimeraError E002 for an unknown optimizer, and for --zero without one.
    """
    # factor: bytes of the optimizer's state for each byte of a float32 gradient.
    if optimizer is None and profile is not None and profile.optimizer != "none":
        state, gradients = (sum(getattr(x, f"{name}_bytes") for x in profile.layers) for name in ("optimizer", "gradient"))
        factor = Fraction(state, gradients) if gradients else Fraction(0)
    elif optimizer in (None, "none"):
        if zero:
            raise refuse("E002", "--zero is about the state of an optimizer: give --optimizer too")
        return NO_STATE
    elif optimizer in OPTIMIZERS:
        factor = Fraction(OPTIMIZERS[optimizer])
    elif re.fullmatch(r"[0-9]{1,4}", optimizer):
        factor = Fraction(int(optimizer), 4)  # bytes for each float32 parameter, whose gradient has four
    else:
        raise _unknown_optimizer(optimizer)
    # For a gradient of two bytes, the optimizer keeps its state in four bytes, and a copy of the weight in four more.
    return OptimizerState(factor if precision == "float32" else 2 * factor + 2, zero)


def _unknown_optimizer(optimizer: str) -> ChimeraError:
    expected = f"expected {', '.join(OPTIMIZERS)}, none or a number of bytes for each parameter"
    return refuse("E002", f"--optimizer {optimizer}: {expected}")


def layer_counts(text: str) -> list[int]:
    """Return the number of layers of each stage that --split gives. Raises ChimeraError E002."""
    if not re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text):
        raise refuse("E002", f"--split {text}: expected the number of layers of each stage, for instance --split 3,2,2,3")
    return [int(word) for word in text.split(",")]


def costs_of(given: Sequence[str]) -> Mapping[str, Fraction]:
    """Return the costs of --cost, by name. Raises ChimeraError E002."""
    return {name: cost_from_text(name, value) for name, value in named_values("--cost", given, "F").items()}
