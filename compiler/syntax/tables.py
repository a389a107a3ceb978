"""The parser's tables as a file beside the grammar: lark needs a few milliseconds to load them, and a hundred to make them.

grammar.tables.json holds what lark itself would make of grammar.lark, as plain JSON: one line per rule and per state. It is
written by tools/figures.py. Where it was made of another grammar or by another lark, it counts for nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import lark
from lark import Lark
from lark.grammar import NonTerminal, Rule, RuleOptions, Terminal
from lark.lexer import TerminalDef
from lark.parsers.lalr_analysis import Reduce, Shift

FILE = "grammar.tables.json"


def build(grammar: str) -> Lark:
    """Return the parser of a grammar, made from its text."""
    # The basic lexer: the contextual one reports wrong columns (lark 1.3.1).
    return Lark(grammar, parser="lalr", lexer="basic", propagate_positions=True)


def load(tables: str, grammar: str) -> Lark | None:
    """Return the parser of a grammar from its tables, or nothing where the tables are not of this grammar and this lark."""
    try:
        file = json.loads(tables)
    except ValueError:
        return None
    if not isinstance(file, dict) or file.get("made of") != _origin(grammar):
        return None
    tokens, data = file["tokens"], file["data"]
    data["parser"]["parser"] |= {"tokens": {}, "states": {}}
    memo = {int(key): value for key, value in file["terminals"].items()} | _rules(file)
    loaded: Lark = Lark._load_from_dict(data, memo)  # type: ignore[no-untyped-call]
    # A state says what follows each token: a shift to a state, or a reduction by a rule, which several tokens share.
    # Entered here, since lark would build what they share once for each token.
    rules = {stored["@"]: rule for stored, rule in zip(data["rules"], loaded.rules, strict=True)}
    states = loaded.parser.parser._parse_table.states
    followers = [[tokens[t] for t in before] for before in file["followers"]]
    for number, (shifted, targets, reduces) in enumerate(file["states"]):
        states[number] = {tokens[t]: (Shift, target) for t, target in zip(shifted, targets, strict=True)}
        for rule, before in reduces:
            states[number] |= dict.fromkeys(followers[before], (Reduce, rules[rule]))
    return loaded


def dump(grammar: str) -> str:
    """Return the tables of a grammar as text: the same text every time, in whatever order lark makes them."""
    data, memo = build(grammar).memo_serialize([TerminalDef, Rule])
    table = data["parser"]["parser"]
    tokens = sorted(table["tokens"].values())
    token_of = {number: tokens.index(name) for number, name in table["tokens"].items()}
    actions = {s: {t: row[n] for t, n in sorted((token_of[n], n) for n in row)} for s, row in table["states"].items()}
    # States are numbered as they are met on the way from the first one.
    order = list(table["start_states"].values())
    for state in order:
        order += dict.fromkeys(a[1] for a in actions[state].values() if a[0] == 0 and a[1] not in order)
    number = {state: k for k, state in enumerate(order)}
    renumbered = {name: {rule: number[s] for rule, s in table[name].items()} for name in ("start_states", "end_states")}
    data["parser"]["parser"] = renumbered
    terminals = {key: value for key, value in memo.items() if value["__type__"] == "TerminalDef"}
    shared: dict[str, list[Any]] = {"symbols": [], "options": [], "followers": []}
    rules = [_rule(key, value, shared) for key, value in memo.items() if value["__type__"] == "Rule"]
    states = [_state(actions[state], number, shared["followers"]) for state in order]
    head = {"made of": _origin(grammar), "data": data, "terminals": terminals, "tokens": tokens} | shared
    lines = [f"{_compact(key)}:{_compact(value)}" for key, value in head.items()]
    for key, rows in (("rules", rules), ("states", states)):
        lines.append(f'"{key}":[\n' + ",\n".join(map(_compact, rows)) + "\n]")
    return "{" + ",\n".join(lines) + "}\n"


def _place(value: list[Any], of: list[Any]) -> int:
    """Return where a value stands in a list, which is given what it lacks."""
    if value not in of:
        of.append(value)
    return of.index(value)


def _rule(key: int, rule: dict[str, Any], shared: dict[str, list[Any]]) -> list[Any]:
    """Return a rule as one line: its symbols and options are places in what rules share."""

    def fields(of: dict[str, Any]) -> list[Any]:
        return [value for name, value in of.items() if name != "__type__"]

    symbols = [_place(fields(s), shared["symbols"]) for s in (rule["origin"], *rule["expansion"])]
    return [key, symbols, rule["order"], rule["alias"], _place(fields(rule["options"]), shared["options"])]


def _rules(file: dict[str, Any]) -> dict[int, Rule]:
    """Return the rules of a file by the numbers that lark gave them. Made here, since lark would read the same few symbols
    and options anew for each."""
    symbols = [(Terminal if len(fields) == 2 else NonTerminal)(*fields) for fields in file["symbols"]]
    options = [RuleOptions(*fields) for fields in file["options"]]
    return {
        key: Rule(symbols[origin], [symbols[s] for s in expansion], order, alias, options[option])
        for key, (origin, *expansion), order, alias, option in file["rules"]
    }


def _state(actions: dict[int, tuple[int, Any]], number: dict[int, int], followers: list[Any]) -> list[list[Any]]:
    """Return what follows in a state: the tokens that are shifted and to where, and reductions, each with a place among the
    sets of tokens before which rules are reduced."""
    shifts = {token: number[target] for token, (kind, target) in actions.items() if kind == 0}
    reduces: dict[int, list[int]] = {}
    for token, (kind, rule) in actions.items():
        if kind == 1:
            reduces.setdefault(rule["@"], []).append(token)
    return [[*shifts], [*shifts.values()], [[rule, _place(before, followers)] for rule, before in reduces.items()]]


def _origin(grammar: str) -> list[str]:
    return [lark.__version__, hashlib.sha256(grammar.encode()).hexdigest()]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
