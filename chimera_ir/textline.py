"""The text of one instruction: writing it, and parsing it into the fields of its JSON object.

    FWD down[0] s0 m0               BWD_INPUT main s2 m5          SEND act down[0] s1 m0 -> 1
    FWD main s0 m0,1 recompute      BWD_WEIGHT main s2 m5         RECV grad down[0] s0 m0 <- 1
    BWD down[0] s3 m0 overlap       ALLREDUCE s3 over 0,3         ALLREDUCE embedding s0 over 0,3

An instruction is written as its op, then its fields in the order of `FIELDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import did_you_mean
from chimerac.chimera_ir.instructions import FIELDS, FORMS, Form, Instruction, stage_group
from chimerac.chimera_ir.table import FLAGS

NUMBER = r"(?:0|[1-9]\d*)"  # without leading zeros
_NAME = r"[A-Za-z_]\w*(?:\[\d+\])?"  # of any length: the fields are checked later, as those of JSON
_LIST = rf"{NUMBER}(?:,{NUMBER})*"
_FORMS: dict[str, Form] = {form.op.name: form for form in FORMS}


class UnreadableError(ValueError):
    """A line cannot be parsed (E605), and the message says why.

    Args:
        help: how to correct it.
    """

    def __init__(self, message: str, help: str = ""):
        super().__init__(message)
        self.help = help


def instruction_text(i: Instruction, pipes: tuple[str, ...]) -> str:
    """Return the text of one instruction.

    Args:
        pipes: the names of the program's pipes, by id.
    """
    return " ".join([i.op, *filter(None, [write(i, pipes) for write in _WRITERS[i.op]])])


def instruction(text: str, pipes: dict[str, int]) -> dict[str, Any]:
    """Return the fields of an instruction, as in its JSON object.

    Args:
        pipes: numbers of pipes, by name.

    Raises UnreadableError, or another ValueError for a number with more digits than Python converts (by default 4300).
    """
    op = text.split(maxsplit=1)[0] if text else ""
    found = op in _FORMS and len(text) <= limits.INSTRUCTION and _PATTERNS[op].fullmatch(text)
    if not found:
        raise _syntax_error(text)
    result: dict[str, Any] = {"op": op}
    for name, parse in _FIELD_PARSERS[op]:
        result[name] = parse(found[name])
    if "pipe" in result:
        if result["pipe"] not in pipes:
            raise UnreadableError(f"unknown pipe '{result['pipe']}': {did_you_mean(result['pipe'], pipes)}")
        result["pipe"] = pipes[result["pipe"]]
    if "group" in result and result["group"] is None:
        result["group"] = stage_group(result["stage"])
    if found["flags"]:
        flags = found["flags"].split()
        if len(set(flags)) < len(flags):
            raise _syntax_error(text)
        result |= dict.fromkeys(flags, True)
    return result


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")] if "," in text else [int(text)]


def _ids(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


# How each field is written. A group "stage S" is left out: the field `stage` says the same.
_WRITE: dict[str, Callable[[Any, tuple[str, ...]], str]] = {
    "value": lambda i, pipes: i.value,
    "group": lambda i, pipes: "" if i.group == stage_group(i.stage) else i.group,
    "pipe": lambda i, pipes: pipes[i.pipe],
    "stage": lambda i, pipes: f"s{i.stage}",
    "micro_batches": lambda i, pipes: f"m{_ids(i.micro_batches)}",
    "peer": lambda i, pipes: f"{i.arrow} {i.peer}",
    "ranks": lambda i, pipes: f"over {_ids(i.ranks)}",
    "recompute": lambda i, pipes: "recompute" if i.recompute else "",
    "overlap": lambda i, pipes: "overlap" if i.overlap else "",
}
_WRITERS = {op: tuple(_WRITE[name] for name in form.fields) for op, form in _FORMS.items()}


def _unchanged(word: Any) -> Any:
    return word


# How each field but the flags is parsed from its group of the pattern below.
_PARSE: dict[str, Callable[[str], Any]] = {
    "value": _unchanged,
    "group": _unchanged,
    "pipe": _unchanged,
    "stage": int,
    "micro_batches": _numbers,
    "peer": int,
    "ranks": _numbers,
}
_FIELD_PARSERS = {op: tuple((name, _PARSE[name]) for name in form.fields if name not in FLAGS) for op, form in _FORMS.items()}
# How each field but the flags is recognized, with the space before it.
_PATTERN = {
    "value": r"\s+(?P<value>act|grad)",
    "group": rf"(?:\s+(?P<group>{_NAME}))?",
    "pipe": rf"\s+(?P<pipe>{_NAME})",
    "stage": rf"\s+s(?P<stage>{NUMBER})",
    "micro_batches": rf"\s+m(?P<micro_batches>{_LIST})",
    "peer": rf"\s*(?P<arrow>->|<-)\s*(?P<peer>{NUMBER})",
    "ranks": rf"\s+over\s+(?P<ranks>{_LIST})",
}
# How a field is written in the help of an error. A group is optional, so it is left out. `_usage` adds the peer and the flags.
_HELP = {"value": "act", "pipe": "PIPE", "stage": "sS", "micro_batches": "mIDS", "ranks": "over RANKS"}


def _pattern(op: str, names: Collection[str], arrow: str) -> re.Pattern[str]:
    """Return the pattern of an op with these fields.

    Args:
        arrow: what precedes its peer; an empty text allows both arrows.
    """
    parts = [_PATTERN[name] for name in FIELDS if name in names and name in _PATTERN]
    flags = "|".join(name for name in FLAGS if name in names) or "(?!)"  # (?!) matches nothing
    text = rf"{op}{''.join(parts)}(?P<flags>(?:\s+(?:{flags}))*)"
    return re.compile(text.replace("->|<-", arrow) if arrow else text, re.ASCII)


_PATTERNS = {op: _pattern(op, form.fields, form.arrow) for op, form in _FORMS.items()}


def _usage(form: Form) -> str:
    """Return how to write an instruction of this form. Flags are named only if there are several."""
    words = [f"{form.arrow} PEER" if name == "peer" else _HELP.get(name, "") for name in form.fields]
    flags = [name for name in FLAGS if name in form.fields]
    more = f", then {' or '.join(flags)} or both" if len(flags) > 1 else ""
    return " ".join([form.op.name, *filter(None, words)]) + more


def _syntax_error(text: str) -> UnreadableError:
    """Return the error for a text that is not an instruction."""
    op = text.split(maxsplit=1)[0] if text else ""
    if not text:
        return UnreadableError(f"'{text}' is not an instruction", "remove the ';', or write an instruction there")
    if op not in _FORMS:
        return UnreadableError(f"unknown instruction '{op}': {did_you_mean(op, _FORMS)}")
    form = _FORMS[op]
    names, help = {*form.fields}, f"write {_usage(form)}"
    without_zeros = re.sub(r"(?<=[\s,sm])0+(?=\d)", "", text)  # without the zeros with which numbers begin
    if len(text) > limits.INSTRUCTION:
        return UnreadableError(
            f"an instruction of {op} has {len(text)} characters, at most {limits.INSTRUCTION} are read", help
        )
    if found := _PATTERNS[op].fullmatch(text):  # the pattern allows a flag twice, `instruction` does not
        duplicate = next(flag for flag in FLAGS if found["flags"].split().count(flag) > 1)
        return UnreadableError(f"'{duplicate}' appears twice in '{text}'", help)
    if _PATTERNS[op].fullmatch(without_zeros):
        return UnreadableError(f"a number of '{text}' begins with 0", f"write {without_zeros}")
    if other := _pattern(op, names | {"peer"}, "").fullmatch(text):
        if form.arrow:
            return UnreadableError(f"the arrow of {op} is '{form.arrow}', not '{other['arrow']}'", help)
        return UnreadableError(f"{op} has no peer, but '{text}' names one", help)
    if form.arrow and _pattern(op, names - {"peer"}, "").fullmatch(text):
        return UnreadableError(f"'{text}' names no peer", help)
    return UnreadableError(f"'{text}' is not an instruction", help)
