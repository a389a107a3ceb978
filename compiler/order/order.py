"""spec -> program of tasks: one function for the three order forms."""

from __future__ import annotations

from chimerac.compiler.order.greedy import order_greedily
from chimerac.compiler.order.listing import order_by_listing
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.order.ticks import order_by_ticks
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.spec import GreedyOrder, ListingOrder, Spec, TicksOrder


def order_tasks(spec: Spec, budget: Budget) -> Ordered:
    """Return the tasks of every rank in the order that the schedule's order form says. Raises ChimeraError E30x."""
    match spec.order:
        case TicksOrder():
            return order_by_ticks(spec, spec.order, budget)
        case GreedyOrder():
            return order_greedily(spec, spec.order, budget)
        case ListingOrder():
            return order_by_listing(spec, spec.order, budget)
