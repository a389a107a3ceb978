"""The search for the partition whose slowest stage is as fast as possible while no rank needs more than a limit.

allowed    the ranges of layers that each stage can have, if the other stages of its ranks need as little as possible
paths      a path is a sequence of allowed ranges, one for each stage. A dynamic program over the stages finds the best path, in
           a time of order stages x layers x longest range. Where each rank has one stage, this path is the optimum.
coupled    where ranks have several stages: a binary search looks for the least cost of the slowest stage with which some path
           fits every rank. For each cost that it tries, multipliers of the ranks' needs find such a path, or prove that there
           is none (Lagrange relaxation). A depth-first search decides what they leave open, within an Effort.

A *moment* is an instruction at which a rank may need most (needs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from chimerac.compiler.plan.needs import Group, Needs
from chimerac.compiler.plan.ranges import Floats, sums_of

Cuts = list[int]  # the first layer of each stage, and the number of layers
Mask = npt.NDArray[np.bool_]
ROUNDS = 60  # the most changes of the multipliers in one call of `within`
FIRST_STEP = 0.5  # the step of the first change: a multiplier changes by the step times how far its constraint is above 1
STEP_FACTOR = 0.93  # the step of each later change, relative to the one before
ROUNDING = 1 + 1e-9  # a factor that covers rounding errors
CELLS = 1_000_000  # about as many cells of a stage's table (moments x ranges) are computed at once, but at least one moment
FULL_EFFORT_SIZE = 64 * 256  # stages x layers up to which a search has the full effort


@dataclass(slots=True)
class Effort:
    """What is left of the work of a search.

    Attributes:
        rounds: changes of the multipliers.
        ranges: that depth-first searches try.
    """

    rounds: int = 300
    ranges: int = 50_000

    @staticmethod
    def of(stages: int, layers: int) -> Effort:
        """Return the effort for a problem of this size: less beyond FULL_EFFORT_SIZE, where rounds and ranges take longer."""
        share, full = min(1.0, FULL_EFFORT_SIZE / (stages * layers)), Effort()
        return Effort(round(full.rounds * share), round(full.ranges * share))


@dataclass(slots=True)
class _Constraint:
    """What a rank of a group needs at one moment, without tied parameters, as a share of the limit: it must be at most 1.

    Attributes:
        parts: by stage, the share of the limit that each of its ranges needs.
    """

    parts: dict[int, Floats]
    multiplier: float = 0.0


class Search:
    """A search for partitions whose ranks need at most `limit` bytes, and whose stages cost at most `slowest`.

    The tables of a stage are by [first layer, number of layers - 1]. `_longest` bounds the number of layers.

    Attributes:
        where: by stage, the first layers of its ranges, and the layers after their last.
        allowed: by stage, which of its ranges it may have.
        constraints: by group and moment, those that some cuts have violated.
    """

    def __init__(self, needs: Needs, costs: Sequence[int], limit: int, effort: Effort, slowest: float = np.inf) -> None:
        self.needs, self.limit, self.effort = needs, limit, effort
        self.stages, self.layers = needs.program.header.stages, len(costs)
        self.costs = sums_of(costs)
        self.is_coupled = any(len(g.stages) > 1 for g in needs.groups)
        self.where, self.allowed = [], []
        for s in range(self.stages):
            starts, lengths = np.arange(self.layers)[:, None], 1 + np.arange(self._longest(s, slowest))[None, :]
            ends = np.minimum(starts + lengths, self.layers)
            self.where.append((np.broadcast_to(starts, ends.shape), ends))
            self.allowed.append(self._in_place(s, starts + lengths) & (self._costs(s) <= slowest))
        self.constraints: dict[tuple[int, int], _Constraint] = {}
        for group in needs.groups:
            self._restrict(group)

    def best(self) -> tuple[Cuts | None, int]:
        """Return the best cuts that are found within the effort, None if none are found, and a lower bound.

        The best cuts are those whose slowest stage costs least. The lower bound is of this cost, for all cuts that fit.
        """
        cuts = self._path(self._costs, np.maximum)
        if cuts is None:
            return None, 0
        bound = self._slowest(cuts)
        cuts = self._evenly(bound)
        if not self.is_coupled or self._fits(cuts):
            return cuts, bound
        # The cost of the slowest stage is one of `values`. Until cuts are found, the probes are farther apart each time. After
        # that values[high] is the least cost with which cuts were found, and each probe halves what is left.
        values = np.unique(np.concatenate([self._costs(s)[allowed] for s, allowed in enumerate(self.allowed)]))
        low, high, step = int(np.searchsorted(values, bound)), len(values), 1
        best: Cuts | None = None
        while low < high:
            probe = min(low + step, high) - 1 if best is None else (low + high) // 2
            found, is_proof = self.within(float(values[probe]))
            if found is not None:
                best, high = found, int(np.searchsorted(values, self._slowest(found)))
                continue
            if is_proof:
                bound = int(values[min(probe + 1, len(values) - 1)])
            low, step = probe + 1, 2 * step
        return best, bound

    def within(self, slowest: float) -> tuple[Cuts | None, bool]:
        """Return cuts that fit and whose stages cost at most `slowest`, and whether the answer is proved.

        (None, True): there are provably none; (None, False): none were found within the effort.
        """
        tried = [allowed & (self._costs(s) <= slowest) for s, allowed in enumerate(self.allowed)]
        step = FIRST_STEP
        for constraint in self.constraints.values():
            constraint.multiplier = 0.0
        cuts = self._evenly(slowest)
        active: list[_Constraint] = []
        most, (to_go, _) = 0.0, self._to_go(partial(self._weighted, active), np.add, tried)
        for _ in range(ROUNDS):
            if cuts is None:
                return None, True
            if not self._violated(cuts):
                return cuts, True
            if not self.effort.rounds:
                break
            self.effort.rounds -= 1
            for constraint in self.constraints.values():
                load = sum(part[self._at(cuts, s)] for s, part in constraint.parts.items())
                constraint.multiplier = max(0.0, constraint.multiplier + step * (load - 1))
            step *= STEP_FACTOR
            active = [c for c in self.constraints.values() if c.multiplier > 0]
            # Cuts that fit need at most 1 in each constraint. So their weight is at most the sum of the multipliers.
            most = sum(c.multiplier for c in active) * ROUNDING
            to_go, choices = self._to_go(partial(self._weighted, active), np.add, tried)
            if to_go[0][0] > most:
                return None, True
            cuts = self._cuts_of(choices)
        return self._depth_first(tried, active, most, to_go)

    def _depth_first(
        self, tried: Sequence[Mask], active: Sequence[_Constraint], most: float, to_go: Sequence[Floats]
    ) -> tuple[Cuts | None, bool]:
        """Return what `within` returns.

        The weight of a range is the sum of its needs in the active constraints, each times the multiplier. The ranges of a
        stage are tried in the order of their weight plus the least of the stages after it. A range is left out if its weight or
        a constraint shows that no cuts with it fit.

        Args:
            tried: by stage, the ranges that it may have.
            active: the constraints with a multiplier above 0.
            most: cuts that fit have at most this weight.
            to_go: by stage and its first layer, the least weight of this and the later stages.
        """
        constraints = list(self.constraints.values())
        least = [{s: float(p[tried[s]].min(initial=np.inf)) for s, p in c.parts.items()} for c in constraints]
        of_stage = [[k for k, c in enumerate(constraints) if s in c.parts] for s in range(self.stages)]

        def ranges(s: int, a: int, loads: Sequence[float], weight: float) -> Iterator[tuple[int, list[float], float]]:
            """Yield the end of each range of stage s that begins with layer a, with the loads and the weight up to there.

            The ranges that are left out are not yielded.

            Args:
                loads: of each constraint, the need of the stages before s plus the least need of s and the later ones.
                weight: of the stages before s.
            """
            lengths = np.flatnonzero(tried[s][a])
            own = sum((c.multiplier * c.parts[s][a, lengths] for c in active if s in c.parts), np.zeros(len(lengths)))
            total = own + to_go[s + 1][a + 1 + lengths]
            for n in np.argsort(total, kind="stable").tolist():
                if weight + total[n] > most:
                    return
                after = list(loads)
                for k in of_stage[s]:
                    after[k] += constraints[k].parts[s][a, lengths[n]] - least[k][s]
                if all(after[k] <= ROUNDING for k in of_stage[s]):
                    yield int(a + 1 + lengths[n]), after, weight + float(own[n])

        cuts, open_ranges = [0], [ranges(0, 0, [sum(x.values()) for x in least], 0.0)]
        while self.effort.ranges > 0:
            self.effort.ranges -= 1
            next_range = next(open_ranges[-1], None)
            if next_range is None:
                open_ranges.pop()
                cuts.pop()
                if not open_ranges:
                    return None, True
                continue
            end, loads, weight = next_range
            if len(cuts) < self.stages:
                cuts.append(end)
                open_ranges.append(ranges(len(cuts) - 1, end, loads, weight))
            elif not self._violated([*cuts, end]):
                return [*cuts, end], True
        return None, False

    def _longest(self, stage: int, slowest: float) -> int:
        """Return an upper bound of the number of layers of a stage that is within the limit and costs at most `slowest`."""
        most, length = self.layers - self.stages + 1, 1
        while length < most:
            begins = np.arange(stage, self.layers + 1 - length)
            where = (begins, begins + length)
            possible = self.costs[where] <= slowest
            for group in (g for g in self.needs.groups if stage in g.stages):
                held = self.needs.held(stage, where, tied=False)
                possible &= held + self.needs.moments(group, stage, where, values=False).max(axis=0) <= self.limit
            if not possible.any():
                break
            length = min(2 * length, most)
        return length

    def _costs(self, stage: int) -> Floats:
        """Return the costs of the ranges of a stage."""
        return np.asarray(self.costs[self.where[stage]])

    def _in_place(self, stage: int, ends: npt.NDArray[np.int64]) -> Mask:
        """Return which ranges leave a layer for each stage before and after this one.

        The first stage begins with the first layer, and the last stage ends with the last.

        Args:
            ends: by first layer and length.
        """
        starts = np.arange(self.layers)[:, None]
        found = (starts >= stage) & (ends <= self.layers - (self.stages - 1 - stage))
        if stage == 0:
            found &= starts == 0
        if stage == self.stages - 1:
            found &= ends == self.layers
        return np.asarray(found)

    def _restrict(self, group: Group) -> None:
        """Leave out the ranges with which a rank of the group does not fit, whatever its other stages have."""
        tied = len(group.stages) == 1  # several stages of a rank may share one copy of a tied parameter
        held = {s: self.needs.held(s, self.where[s], tied) for s in group.stages}
        step = max(1, CELLS // self.where[group.stages[0]][1].size)
        for begin in range(0, len(group.moments), step):
            only = slice(begin, begin + step)
            parts = {s: held[s] + self.needs.moments(group, s, self.where[s], only=only) for s in group.stages}
            least = {s: parts[s].min(axis=(1, 2), where=self.allowed[s], initial=np.inf) for s in group.stages}
            all_least = np.sum(list(least.values()), axis=0)
            for s in group.stages:
                with np.errstate(invalid="ignore"):  # a stage without any range needs infinity, and inf - inf is no number
                    needed = parts[s] + (all_least - least[s])[:, None, None]
                self.allowed[s] = self.allowed[s] & (needed <= self.limit).all(axis=0)

    def _path(self, weights: Callable[[int], Floats], join: np.ufunc) -> Cuts | None:
        """Return the allowed cuts with the least joined weight; None if no cuts are allowed.

        Args:
            weights, join: as in `_to_go`.
        """
        return self._cuts_of(self._to_go(weights, join, self.allowed)[1])

    def _to_go(
        self, weights: Callable[[int], Floats], join: np.ufunc, tried: Sequence[Mask]
    ) -> tuple[list[Floats], list[npt.NDArray[np.int64]]]:
        """Return the least joined weight of each stage and the later ones, and the end of the stage with which it is the least.

        Both are by stage and first layer. The end is 0 where no cuts are allowed.

        Args:
            weights: returns those of the ranges of a stage.
            join: joins the weights of stages, such as np.add or np.maximum.
            tried: by stage, the ranges that it may have.
        """
        to_go = [np.full(self.layers + 1, np.inf)]
        to_go[0][self.layers] = 0
        choices: list[npt.NDArray[np.int64]] = []
        rows = np.arange(self.layers)
        for s in reversed(range(self.stages)):
            values = np.where(tried[s], join(weights(s), to_go[0][self.where[s][1]]), np.inf)
            best = values.argmin(axis=1)
            least = values[rows, best]
            to_go.insert(0, np.append(least, np.inf))
            choices.insert(0, np.where(least < np.inf, self.where[s][1][rows, best], 0))
        return to_go, choices

    def _cuts_of(self, choices: Sequence[npt.NDArray[np.int64]]) -> Cuts | None:
        """Return the cuts that these choices make; None if there are none.

        Args:
            choices: as `_to_go` returns them.
        """
        cuts = [0]
        for ends in choices:
            cuts.append(int(ends[cuts[-1]]))
            if not cuts[-1]:
                return None
        return cuts

    def _evenly(self, slowest: float) -> Cuts | None:
        """Return, of the allowed cuts whose stages cost at most `slowest`, those with the least sum of squared costs.

        None if there are no such cuts.
        """
        tried = [allowed & (self._costs(s) <= slowest) for s, allowed in enumerate(self.allowed)]
        scale = max(1.0, float(self.costs.max()) / self.stages)  # the mean cost of a stage, so that no square is very large
        return self._cuts_of(self._to_go(lambda s: (self._costs(s) / scale) ** 2, np.add, tried)[1])

    def _slowest(self, cuts: Cuts) -> int:
        """Return the cost of the slowest stage of these cuts."""
        return int(max(self.costs[cuts[s], cuts[s + 1]] for s in range(self.stages)))

    def _at(self, cuts: Cuts, stage: int) -> tuple[int, int]:
        """Return the place of a stage's range in the tables."""
        return cuts[stage], cuts[stage + 1] - cuts[stage] - 1

    def _fits(self, cuts: Cuts | None) -> bool:
        return cuts is not None and self.needs.most(cuts) <= self.limit

    def _violated(self, cuts: Cuts) -> list[_Constraint]:
        """Return a constraint for each group whose peak is above the limit: that of the peak's moment.

        New ones are added to `constraints`.
        """
        found = []
        for n, (group, (peak, moment)) in enumerate(zip(self.needs.groups, self.needs.peaks(cuts), strict=True)):
            if peak > self.limit:
                if (n, moment) not in self.constraints:
                    self.constraints[n, moment] = _Constraint(
                        {s: self._need(group, moment, s) / self.limit for s in group.stages}
                    )
                found.append(self.constraints[n, moment])
        return found

    def _need(self, group: Group, moment: int, stage: int) -> Floats:
        """Return the bytes that the ranges of a stage need on a rank of a group at one moment, without tied parameters."""
        where, only = self.where[stage], slice(moment, moment + 1)
        (entry_bytes,) = self.needs.moments(group, stage, where, only=only)
        return np.asarray(self.needs.held(stage, where, tied=False) + entry_bytes)

    def _weighted(self, active: Sequence[_Constraint], stage: int) -> Floats:
        """Return the needs of a stage's ranges, weighted by the multipliers."""
        weights = np.zeros(self.where[stage][1].shape)
        for constraint in active:
            if stage in constraint.parts:
                weights += constraint.multiplier * constraint.parts[stage]
        return weights


def least_need(needs: Needs, costs: Sequence[int], limit: int, cuts: Cuts) -> tuple[Cuts, bool]:
    """Return the cuts in which the rank that needs most needs least, and whether that is proved.

    Args:
        limit: bytes; cuts that need at most this are not improved further, and count as proved.
        cuts: any that need more, returned if no better ones are found.
    """
    low, high, is_proved = limit + 1, needs.most(cuts), True
    effort = Effort.of(needs.program.header.stages, len(costs))
    while low < high and is_proved:
        tried_limit = (low + high) // 2
        found, is_proof = Search(needs, costs, tried_limit, effort).within(np.inf)
        if found is not None:
            cuts, high = found, needs.most(found)
        else:
            low, is_proved = tried_limit + 1, is_proof
    return cuts, is_proved
