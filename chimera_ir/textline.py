"""The text of one instruction, read: its fields as the JSON form has them, or what is wrong with it (E605)."""

from __future__ import annotations

import re
from typing import Any

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import did_you_mean
from chimerac.chimera_ir.instructions import Op, stage_group

NUMBER = r"(?:0|[1-9]\d*)"  # one way to write a number
_LIST = rf"{NUMBER}(?:,{NUMBER})*"
_INSTRUCTION = re.compile(
    rf"""(?P<op>[A-Z_]+)\s+(?:
      (?:(?P<value>act|grad)\s+)? (?P<pipe>[A-Za-z_]\w*(?:\[\d+\])?) \s+ s(?P<stage>{NUMBER}) \s+ m(?P<ids>{_LIST})
      (?:\s*(?P<arrow>->|<-)\s*(?P<peer>{NUMBER}))? (?P<flags>(?:\s+(?:recompute|overlap))*)
    | (?:(?P<group>[A-Za-z_]\w*)\s+)? s(?P<gstage>{NUMBER}) \s+ over \s+ (?P<ranks>{_LIST})
    )""",
    re.VERBOSE | re.ASCII,
)
_ARROWS = {"SEND": "->", "RECV": "<-"}
_FLAGS = {"FWD": {"recompute", "overlap"}} | {op: {"overlap"} for op in ("BWD", "BWD_INPUT", "BWD_WEIGHT")}
# Whether an instruction has a value, which arrow, and whether it has ranks.
_SHAPES = {op: (op in ("SEND", "RECV", "FREE"), _ARROWS.get(op), op == "ALLREDUCE") for op in Op.__members__}
_FORMS = {op: f"{op} PIPE sS mIDS" for op in Op.__members__} | {
    "FWD": "FWD PIPE sS mIDS, then recompute or overlap or both",
    "SEND": "SEND act PIPE sS mIDS -> PEER",
    "RECV": "RECV act PIPE sS mIDS <- PEER",
    "ALLREDUCE": "ALLREDUCE sS over RANKS",
    "FREE": "FREE act PIPE sS mIDS",
}


class UnreadableError(ValueError):
    """A line whose fault is known better than that it does not read. help: how to mend it."""

    def __init__(self, message: str, help: str = ""):
        super().__init__(message)
        self.help = help


def instruction(text: str, pipes: dict[str, int]) -> dict[str, Any]:
    """Return the fields of an instruction, as JSON has them. pipes: their numbers by name. Raises UnreadableError."""
    found = len(text) <= limits.INSTRUCTION and _INSTRUCTION.fullmatch(text)
    if not found:
        raise _misspelt(text)
    op, value, pipe, stage, ids, arrow, peer, flags, group, group_stage, ranks = found.groups()
    if _SHAPES.get(op) != (value is not None, arrow, ranks is not None) or (flags and not _fit(op, flags.split())):
        raise _misspelt(text)
    if ranks:
        number = int(group_stage)
        return {"op": op, "group": group or stage_group(number), "stage": number, "ranks": _numbers(ranks)}
    if pipe not in pipes:
        raise UnreadableError(f"unknown pipe '{pipe}': {did_you_mean(pipe, pipes)}")
    result: dict[str, Any] = {"op": op, "pipe": pipes[pipe], "stage": int(stage), "micro_batches": _numbers(ids)}
    if value:
        result["value"] = value
    if peer:
        result["peer"] = int(peer)
    return result | dict.fromkeys(flags.split(), True) if flags else result


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")] if "," in text else [int(text)]


def _fit(op: str, flags: list[str]) -> bool:
    return not flags or (len(set(flags)) == len(flags) and _FLAGS.get(op, set()).issuperset(flags))


def _misspelt(text: str) -> UnreadableError:
    """Return what is wrong with the text of an instruction."""
    op = text.split(maxsplit=1)[0] if text else ""
    if text and op not in _FORMS:
        return UnreadableError(f"unknown instruction '{op}': {did_you_mean(op, _FORMS)}")
    help = f"write {_FORMS[op]}" if op else "an instruction stands between two ';'"
    found = _INSTRUCTION.fullmatch(text)
    if not found:
        shorter = re.sub(r"(?<=[\s,sm])0+(?=\d)", "", text)
        if _INSTRUCTION.fullmatch(shorter):
            return UnreadableError(f"a number of '{text}' begins with 0", f"write {shorter}")
        return UnreadableError(f"'{text}' does not read as an instruction", help)
    arrow, wanted = found["arrow"], _ARROWS.get(op)
    if arrow == wanted:
        twice = next((flag for flag in ("recompute", "overlap") if text.split().count(flag) > 1), "")
        fault = f"'{twice}' stands twice in '{text}'" if twice else f"'{text}' does not read as an instruction"
        return UnreadableError(fault, help)
    if arrow and wanted:
        return UnreadableError(f"the arrow of {op} is '{wanted}', not '{arrow}'", help)
    return UnreadableError(f"'{text}' names no peer" if wanted else f"{op} has no peer, but '{text}' names one", help)
