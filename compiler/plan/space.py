"""The configurations that a plan chooses from: schedule, D x W, the schedule's parameters, micro-batch size, recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.profile import Link, Profile
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState
from chimerac.compiler.resolve.sizes import micro_batch_size
from chimerac.compiler.syntax import nodes as n

CHOICES = (0, 1, 2, 4)  # tried for a parameter besides D and N, if a schedule uses it (`_used`) and no values are given for it


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """One way to run a model. Of equally good ones the least is preferred: `order=True` compares the fields in order.

    Attributes:
        ranks: D, of one replica.
        width: W.
        micro_batch: the samples of a micro-batch as `--micro-batch` gives it; with `size A/B` those of the schedule have A/B
            times as many.
        micro_batches: how many micro-batches of `micro_batch` samples are in an iteration of one replica.
        own: the chosen values of the schedule's parameters besides D and N, by name; those that are not in it keep their
            defaults.
        recompute: whether all stages recompute; if not, none does.
    """

    ranks: int
    recompute: bool
    micro_batch: int
    schedule: str
    own: tuple[tuple[str, int], ...]
    width: int
    micro_batches: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What is given for a plan.

    Attributes:
        schedules: by name.
        ranks: of all replicas together.
        batch: samples of an iteration, over all replicas.
        limit: the most bytes that a rank may need.
        state: the optimizer's.
        zero: whether this state is sharded over the ranks with a copy of a stage; None: where a rank would not fit otherwise.
        network: a link in the place of the profile's links.
        own: values by the name of a schedule's parameter, in the place of `CHOICES`; for D, only those divisors of `ranks` are
            tried that are among them.
        sizes: of micro-batches that are tried, in samples; None for all.
        recompute: the choices that are tried.
    """

    schedules: Mapping[str, Source]
    model: str
    profile: Profile
    ranks: int
    batch: int
    limit: int
    state: OptimizerState = NO_STATE
    zero: bool | None = False
    network: Link | None = None
    own: Mapping[str, Sequence[int]] = field(default_factory=dict)
    sizes: Sequence[int] | None = None
    recompute: Sequence[bool] = (False, True)


def configurations(problem: Problem, trees: Mapping[str, n.Schedule]) -> Iterator[Configuration]:
    """Yield the configurations to be evaluated for a problem. Some may turn out not to be possible.

    Args:
        trees: of its schedules.
    """
    p = problem
    least_samples, most_samples = p.profile.sizes[0].samples, p.profile.sizes[-1].samples
    for ranks in _divisors(p.ranks):
        width = p.ranks // ranks
        if ranks > len(p.profile.layers) or p.batch % width or ranks not in p.own.get("D", (ranks,)):
            continue
        of_replica = p.batch // width  # samples
        for name, tree in trees.items():
            fraction = Fraction(*micro_batch_size(tree))
            for b in _divisors(of_replica) if p.sizes is None else [b for b in sorted(set(p.sizes)) if not of_replica % b]:
                samples = b * fraction  # of a micro-batch of the schedule
                if samples.denominator > 1 or not least_samples <= samples <= most_samples:
                    continue
                for own in _own(tree, p.own):
                    for recompute in p.recompute:
                        yield Configuration(ranks, recompute, b, name, own, width, of_replica // b)


def parameters(c: Configuration, tree: n.Schedule) -> dict[str, int]:
    """Return the parameters that a configuration gives to its schedule. N counts micro-batches of the schedule's own size."""
    numerator, denominator = micro_batch_size(tree)
    given = {"D": c.ranks, "N": c.micro_batches * denominator // numerator}
    return {name: given[name] for name in names(tree) if name in given} | dict(c.own)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return parameters as the words of a command line."""
    return " ".join(f"-p {name}={value}" for name, value in sizes.items())


def names(tree: n.Schedule) -> list[str]:
    """Return the names of a schedule's parameters."""
    return [s.name.name for s in tree.statements if isinstance(s, n.Param)]


def _own(tree: n.Schedule, given: Mapping[str, Sequence[int]]) -> list[tuple[tuple[str, int], ...]]:
    """Return the combinations of values that are tried for a schedule's parameters besides D and N.

    A parameter that is not given and not used (`_used`) is left out: it keeps its default.
    """
    found: list[tuple[tuple[str, int], ...]] = [()]
    used = _used(tree)
    for name in names(tree):
        if name in ("D", "N") or (name not in given and name not in used):
            continue
        values = sorted(set(given.get(name, CHOICES)))
        found = [(*combination, (name, value)) for combination in found for value in values]
    return found


def _used(tree: n.Schedule) -> set[str]:
    """Return the names that a schedule uses outside of `param`, `require` and `recompute`."""
    found: set[str] = set()
    todo: list[object] = [s for s in tree.statements if not isinstance(s, n.Param | n.Require)]
    while todo:
        match todo.pop():
            case n.Name(name=name):
                found.add(name)
            case n.Recompute():  # a configuration says whether stages recompute
                pass
            case tuple() as parts:
                todo += parts
            case n.Node() as node:
                todo += [getattr(node, f.name) for f in fields(node)]
            case _:
                pass
    return found


def _divisors(number: int) -> list[int]:
    small = [k for k in range(1, int(number**0.5) + 1) if number % k == 0]
    return sorted({*small, *(number // k for k in small)})
