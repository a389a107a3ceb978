"""The counts of tasks on the left side of a greedy order's limit, and the finding about a condition that is no limit (E202)."""

from __future__ import annotations

from chimerac.chimera_ir.counts import times_text
from chimerac.chimera_ir.diagnostics import Diagnostic, Span
from chimerac.chimera_ir.program import LIMITS
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.kinds import KINDS
from chimerac.compiler.syntax.printer import expression
from chimerac.compiler.syntax.walk import left_spine, subexpressions


def not_a_limit(e: n.Expr, span: Span) -> Diagnostic:
    """Return E202 for a condition that is no limit. A limit is `COUNTS <= BOUND`, with counts that `limit_weights` accepts."""
    if isinstance(e, n.Binary) and e.op in (">", ">=", "<", "==", "!="):
        is_swapped = e.op in (">", ">=") and limit_weights(e.right) is not None
        if is_swapped or limit_weights(e.left) is not None:
            counts, bound = (e.right, e.left) if is_swapped else (e.left, e.right)
            if e.op == "<" or (is_swapped and e.op == ">"):
                bound = n.Binary("-", bound, n.Int(1, span=span), span=span)
            help = f"a limit is an upper bound: limit {expression(counts)} <= {expression(bound)}"
            return Diagnostic("E202", f"a limit is written with <=, not {e.op}", span, help=help)
    if isinstance(e, n.Binary) and e.op == "<=":
        names = [part.name for part in subexpressions(e.left) if isinstance(part, n.Name)]
        duplicate = next((k for k in KINDS if names.count(k) > 1), None)
        if duplicate and set(names) <= set(KINDS):
            message = f"the limit counts {duplicate} {times_text(names.count(duplicate))}"
            return Diagnostic("E202", message, span, help="name each kind once: limit F - W <= D")
    help = "write counts of F, B, I, W, R on the left: limit F - W <= D"
    if isinstance(e, n.Binary) and isinstance(e.left, n.Name) and e.left.name in LIMITS:
        help = f"the limit of {e.left.name} is written outside the order block; here counts are limited: limit F - B <= D"
    return Diagnostic("E202", "a limit is counts <= an integer", span, help=help)


def limit_weights(e: n.Expr) -> dict[str, int] | None:
    """Return the factor, 1 or -1, of each kind of task in a sum such as `F - W`; None for any other expression."""
    match e:
        case n.Name() if e.name in KINDS:
            return {e.name: 1}
        # A longer sum has a kind twice, or an operand that is no kind.
        case n.Binary(op="+" | "-") if len(left_spine(e)[1]) < len(KINDS):
            left, right = limit_weights(e.left), limit_weights(e.right)
            if left is None or right is None or set(left) & set(right):
                return None
            return left | {k: v if e.op == "+" else -v for k, v in right.items()}
        case _:
            return None
