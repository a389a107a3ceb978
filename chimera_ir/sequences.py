"""The check that a model has enough positions for the tokens that it reads of a sample (E821)."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import refuse


def check_positions(
    name: str, seq_len: int, positions: int | None, otherwise: str = "take another model", halves: bool = False
) -> None:
    """Raise ChimeraError E821 if a model reads more tokens of a sample than it has positions.

    Args:
        positions: None if every length is possible.
        otherwise: what to do instead of shorter samples, for the help.
        halves: whether the encoder of the model reads the first half of a sample, and its decoder the second one. If the number
            of tokens is odd, the last one is in no half.
    """
    read, what, factor = seq_len, f"samples of {seq_len} tokens", 1
    if halves:
        read, what, factor = seq_len // 2, f"halves of {seq_len // 2} tokens, from samples of {seq_len},", 2
    if positions is not None and read > positions:
        message = f"{what} do not fit the {positions} positions of {name}"
        raise refuse("E821", message, help=f"give --seq-len {factor * positions} or less, or {otherwise}")
