"""The check that a sample has at most as many tokens as a model has positions (E821)."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import refuse


def check_positions(name: str, seq_len: int, positions: int | None, otherwise: str = "take another model") -> None:
    """Raise ChimeraError E821 if a sample has more tokens than a model has positions.

    positions: None if every length is possible. otherwise: what to do instead of shorter samples, for the help.
    """
    if positions is not None and seq_len > positions:
        message = f"samples of {seq_len} tokens do not fit the {positions} positions of {name}"
        raise refuse("E821", message, help=f"give --seq-len {positions} or less, or {otherwise}")
