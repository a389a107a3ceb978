"""A worker of the playground, as a process: python -m chimerac.compiler.command.served. `chimerac serve` starts it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from chimerac.compiler.analyze.memory import NO_STATE
from chimerac.compiler.command.emit import EMITTERS, EmitOptions
from chimerac.compiler.playground.setting import setting_of
from chimerac.compiler.playground.worker import work

COLUMNS = 120  # of a timeline as text


def export(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a product for download: the name of its file, and its bytes in base64.

    Args:
        request: the product (`emit`), the suffix of its file, the text, and the fields of a `Setting`.

    Raises ChimeraError with the findings about the text, the costs or the product.
    """
    emitter = EMITTERS[request["emit"]]
    if emitter.make is None:
        assert emitter.make_alone is not None, "an emitter has `make` or `make_alone`"
        return _download("program", request["suffix"], emitter.make_alone())
    setting = setting_of(request)
    found, costs = setting.compiled(request["text"]), setting.cost_numbers()
    program, name = found.program, found.program.header.schedule
    path, words = f"{name}{request['suffix']}", (*setting.words(), *setting.cost_words())
    options = EmitOptions(
        costs=costs,
        durations=None,
        model=None,
        state=NO_STATE,
        output=path,
        columns=COLUMNS,
        colour=False,
        name=name,
        command=("chimerac", f"{name}.sched", *words, "--emit", request["emit"]),
        ordered=found.ordered,
    )
    return _download(name, request["suffix"], emitter.make(program, options))


def _download(name: str, suffix: str, product: str | bytes) -> dict[str, Any]:
    data = product.encode() if isinstance(product, str) else product
    return {"name": f"{name}{suffix}", "data": b64encode(data).decode()}


if __name__ == "__main__":
    work(export)
