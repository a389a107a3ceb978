"""Changes to the text of an order that deadlocks, or has two tasks on one tick, each tried before one is suggested.

What researchers get wrong is tried first: a sign, a stage or rank counted from the wrong end, a few too many or too
few. Of those that work the
one with the least makespan is suggested, of those the one that holds the fewest activations. Then come larger amounts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, product

from chimera_ir import limits
from chimera_ir.diagnostics import ChimeraError, Span
from compiler.resolve.expressions import spent
from compiler.syntax import nodes as n
from compiler.syntax.printer import as_term, as_written

MAX_TRIED = 1_000_000  # tasks ordered for the sake of a suggestion; a character of the text is worth as much as many tasks
A_CHARACTER = 10
NEAR = ("1", "2", "3", "4", "5", "6", "1*", "2*")
FAR = (*(str(2**k) for k in range(3, 11)), *(f"{2**k}*" for k in range(2, 11)))

Edit = tuple[tuple[Span, str], ...]  # what to write where
Sizes = Mapping[str, int]


@dataclass
class Trials:
    """What is tried, and how often. attempt: makespan and activations of a changed text under these parameters, None where
    it is refused; sizes: the parameters as given, then others under which the schedule should work too; tasks: how many;
    how: with which option; limited: there are limits, which at other sizes are not kept to."""

    attempt: Callable[[str, Sizes], tuple[int, int] | None]
    sizes: Sequence[Sizes]
    tasks: int
    how: str
    limited: bool = False
    spent: int = 0
    work: int = 0

    def costs(self, text: str, size: Sizes) -> tuple[int, int] | None:
        """Return makespan and activations of a text, None where it is refused, or too much has been tried."""
        self.spent += self.tasks + A_CHARACTER * len(text)
        if self.spent > MAX_TRIED or self.work > limits.WORK // 4:
            return None
        result = self.attempt(text, size)
        self.work += spent()
        return result

    def best(self, edits: Iterator[Edit], first: bool) -> str:
        """Return the edit under which the order runs at all sizes in the least time, or the first one; else nothing."""
        found: list[tuple[tuple[int, int], Edit]] = []
        for edit in edits:
            text = _edited(edit)
            costs = self.costs(text, self.sizes[0])
            if costs is not None and all(self.costs(text, size) is not None for size in self.sizes[1:]):
                found.append((costs, edit))
                if first:
                    break
        if not found:
            return ""
        (makespan, held), edit = min(found, key=lambda x: x[0])
        said = [
            f"{span}: " + (f"write '{new}' instead of '{span.text}'" if new else f"remove '{span.text}'") for span, new in edit
        ]
        sizes = " and with ".join(" ".join(f"{k}={v}" for k, v in size.items()) for size in self.sizes)
        beyond = ", there without the limits" if self.limited else ""
        return (
            "\n".join(said)
            + f"; tried{' with ' if sizes else ''}{sizes}{beyond}: it then runs{self.how}, "
            + f"makespan {makespan}, activations {held}"
        )


def suggest_edit(schedule: n.Schedule, early: Sequence[Span], trials: Trials) -> str:
    """Return an edit under which a deadlocked order runs, having tried it; nothing if none that was tried does.

    early: what orders the tasks that come too early.
    """
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    match order:
        case n.Ticks():
            rules = [rule for rule in order.rules if rule.span in early]
            near = chain(_turned_ticks(schedule, order.rules), _shifted_ticks(rules, _near(schedule), "+"))
            return trials.best(near, False) or trials.best(_shifted_ticks(rules, FAR, "+"), True)
        case n.Listing():
            near = chain(_turned_counts(schedule, order), _regrouped(order.actions), _reversed(order.actions))
            return trials.best(near, False) or trials.best(_shifted_counts(order), True)
        case n.Greedy():
            return ""


def suggest_shift(error: ChimeraError, schedule: n.Schedule, trials: Trials) -> ChimeraError:
    """Return the findings of an order that puts two tasks of a rank on one tick, the first with an edit that was tried."""
    first, *others = error.diagnostics
    if first.code != "E303":
        return error
    rules = [rule for order in schedule.statements if isinstance(order, n.Ticks) for rule in order.rules]
    near = chain(_turned_ticks(schedule, rules), _shifted_ticks(rules, _near(schedule), "-+"))
    help = trials.best(near, False) or trials.best(_shifted_ticks(rules, FAR, "-+"), True)
    return ChimeraError([replace(first, help=help or first.help), *others])


# --- the text -------------------------------------------------------------------------------------------------------


def _edited(edit: Edit) -> str:
    lines = edit[0][0].source.text.split("\n")
    for span, new in sorted(edit, key=lambda x: -x[0].column):  # from the right, so that columns stay
        line = lines[span.line - 1]
        lines[span.line - 1] = line[: span.column - 1] + new + line[span.end_column - 1 :]
    return "\n".join(lines)


def _setting(schedule: n.Schedule, what: str) -> n.Expr:
    return next(s.value for s in schedule.statements if isinstance(s, n.Setting) and s.what == what)


def _from_the_end(total: n.Expr, name: str) -> str:
    """Return `D - 1 - s` for a name that counts to D - 1."""
    return f"({total.value - 1 if isinstance(total, n.Int) else f'{as_written(total, inside=True)} - 1'} - {name})"


def _renamed(text: str, name: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(name)}\b", lambda _: new, text)


def _signs(e: n.Expr) -> Iterator[str]:
    """Yield the text of an expression with one of its + and - turned round."""
    text, begin = as_written(e), e.span.column
    todo = [e]
    while todo:
        match todo.pop():
            case n.Binary(op, left, right) if op in "+-":
                todo += [left, right]
                at = text.find(op, left.span.end_column - begin, right.span.column - begin)
                if at >= 0:
                    yield text[:at] + ("-" if op == "+" else "+") + text[at + 1 :]
            case n.Binary(_, left, right):
                todo += [left, right]
            case n.Unary(_, operand):
                todo.append(operand)
            case n.IfElse(_, then, otherwise):
                todo += [then, otherwise]
            case n.Call(_, arguments):
                todo += arguments
            case _:
                pass


# --- orders of ticks ------------------------------------------------------------------------------------------------


def _on_one_line(rules: Sequence[n.Rule]) -> list[n.Rule]:
    return [rule for rule in rules if rule.tick.span.line == rule.tick.span.end_line]


def _turned_ticks(schedule: n.Schedule, rules: Sequence[n.Rule]) -> Iterator[Edit]:
    """Yield ticks with one sign turned round, or the stage counted from the other end."""
    for rule in _on_one_line(rules):
        tick, stage = rule.tick, rule.stage.name
        for new in _signs(tick):
            yield ((tick.span, new),)
        other = _renamed(as_written(tick), stage, _from_the_end(_setting(schedule, "stages"), stage))
        if other != as_written(tick):
            yield ((tick.span, other),)


def _near(schedule: n.Schedule) -> list[str]:
    """Return small amounts, and those that grow with a parameter."""
    names = [s.name.name for s in schedule.statements if isinstance(s, n.Param)][:3]
    return [*NEAR, *(amount for name in names for amount in (name, f"({name} - 1)"))]


def _shifted_ticks(rules: Sequence[n.Rule], amounts: Sequence[str], signs: str) -> Iterator[Edit]:
    """Yield ticks with something added or taken away; `4*` stands for a multiple of the stage."""
    for amount, sign, rule in product(amounts, signs, _on_one_line(rules)):
        tick = as_term(rule.tick)
        yield ((rule.tick.span, f"{tick} {sign} {amount}" + rule.stage.name * amount.endswith("*")),)


# --- listings -------------------------------------------------------------------------------------------------------


def _counts(actions: tuple[n.Action, ...]) -> Iterator[n.Expr]:
    """Yield the counts of loops, and what is given a name, where it stands on one line."""
    for a in actions:
        found: list[n.Expr] = []
        match a:
            case n.Let():
                found = [a.value]
            case n.Repeat():
                found = [a.count]
                yield from _counts(a.body)
            case n.Choice():
                yield from _counts(a.then + a.otherwise)
            case n.TaskAction():
                pass
        yield from (e for e in found if e.span.line == e.span.end_line)


def _turned_counts(schedule: n.Schedule, listing: n.Listing) -> Iterator[Edit]:
    """Yield counts with a sign turned round, or the rank counted from the other end: in one of them, or in all."""
    rank, counts = listing.rank.name, list(_counts(listing.actions))
    ranks = _setting(schedule, "ranks")
    for other in (_from_the_end(ranks, rank), f"({as_written(ranks, inside=True)} - {rank})"):
        turned = tuple((e.span, new) for e in counts if (new := _renamed(as_written(e), rank, other)) != as_written(e))
        yield from ((edit,) for edit in turned)
        if len(turned) > 1:
            yield turned
    for e in counts:
        yield from (((e.span, new),) for new in _signs(e))


def _shifted_counts(listing: n.Listing) -> Iterator[Edit]:
    for sign in "+-":
        for e in _counts(listing.actions):
            yield ((e.span, f"{as_term(e)} {sign} 1"),)


def _regrouped(actions: tuple[n.Action, ...]) -> Iterator[Edit]:
    """Yield a loop split in two, and two neighbours made one: `repeat N { F  B }` is not `repeat N { F }  repeat N { B }`.
    And an overlapped pair as two tasks, and two tasks the other way round."""
    for a in actions:
        match a:
            case n.Repeat():
                yield from _regrouped(a.body)
                if a.span.line == a.span.end_line:
                    head, body, end = _parts(a)
                    for cut in a.body[1:]:
                        at = cut.span.column - a.span.column - len(head)
                        yield ((a.span, f"{head}{body[:at].rstrip()}{end}  {head} {body[at:]}{end}"),)
            case n.Choice():
                yield from _regrouped(a.then)
                yield from _regrouped(a.otherwise)
            case _:
                pass
    for a, b in pairwise(actions):
        both = replace(a.span, end_column=b.span.end_column)
        if any(x.span.line != x.span.end_line for x in (a, b)):
            continue
        if isinstance(a, n.TaskAction) and isinstance(b, n.TaskAction) and a.span.line == b.span.line:
            swapped = f"{b.span.text}  {a.span.text}"
            yield ((both, f"{a.span.text}  {b.span.text}" if a.overlap else swapped),)
        if isinstance(a, n.Repeat) and isinstance(b, n.Repeat):
            (head, body, end), (other, more, _) = _parts(a), _parts(b)
            new = f"{head}{body}  {more.lstrip()}{end}"
            if head == other:
                yield ((both, new),) if a.span.line == b.span.line else ((a.span, new), (b.span, ""))


def _reversed(actions: tuple[n.Action, ...], around: tuple[n.Repeat, ...] = ()) -> Iterator[Edit]:
    """Yield stages of tasks counted down where the index of a loop around them counts up."""
    for a in actions:
        match a:
            case n.Repeat():
                yield from _reversed(a.body, (*around, a))
            case n.Choice():
                yield from _reversed(a.then + a.otherwise, around)
            case n.TaskAction() if a.stage is not None and a.stage.span.line == a.stage.span.end_line:
                for loop in around:
                    if loop.binder and loop.low:
                        ends = [as_written(loop.count, inside=True), as_written(loop.low, inside=True)]
                        down = f"({' + '.join(x for x in ends if x != '0')} - {loop.binder.name})"
                        new = _renamed(as_written(a.stage), loop.binder.name, down)
                        if new != as_written(a.stage):
                            yield ((a.stage.span, new),)
            case _:
                pass


def _parts(loop: n.Repeat) -> tuple[str, str, str]:
    """Return the text of a loop on one line: up to its bracket, the actions, the rest."""
    text, begin = loop.span.text, loop.span.column
    if not loop.body:
        return text[:-1], "", text[-1:]
    head, end = text[: loop.body[0].span.column - begin].rstrip(), loop.body[-1].span.end_column - begin
    return head, text[len(head) : end], text[end:]
