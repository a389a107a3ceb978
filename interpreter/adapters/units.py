"""The units of a module: the submodules whose calls become the layers of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from chimerac.chimera_ir.diagnostics import did_you_mean, refuse

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def layers_of(module: nn.Module, names: Sequence[str] = ()) -> list[str]:
    """Return the paths of the layers of a module.

    Args:
        names: paths of lists of layers, such as encoder.layer, or of single modules; a * matches one part of a path. The layers
            of an nn.ModuleList, nn.ModuleDict or nn.Sequential are its elements. By default the lists are the outermost
            nn.ModuleLists with parameters or, where there is none, the outermost nn.Sequentials with parameters.

    Raises ChimeraError E851 for a name that the module does not have, for a list without layers, for a layer that is inside
    another one, and, without names, for a module that has no list.
    """
    modules = dict(module.named_modules())
    if not names:
        return _found_layers(module, modules)
    layers: dict[str, None] = {}
    for name in names:
        matching = [path for path in modules if path and _matches(path, name)]
        if not matching:
            lists = [path for path, m in modules.items() if path and isinstance(m, _LISTS) and len(m)]
            message = f"{type(module).__name__} has no module '{name}'"
            raise refuse("E851", message, notes=_shown(lists), help=did_you_mean(name, lists or modules))
        found = [layer for path in matching for layer in _elements(path, modules[path])]
        if not found:
            raise refuse("E851", f"'{name}' of {type(module).__name__} is a list without layers")
        layers.update(dict.fromkeys(found))
    inner = {path for path in layers for other in layers if path != other and is_inside(path, other)}
    if inner:
        path = min(inner)
        raise refuse("E851", f"the layer {path} is inside another layer", help="name either the inner or the outer layers")
    return list(layers)


def units_of(module: nn.Module, layers: Sequence[str]) -> dict[str, nn.Module]:
    """Return by path the layers, and the largest submodules without layers that have parameters or persistent buffers."""
    # The paths of the modules that contain a layer.
    containers = {path[:k] for path in layers for k, character in enumerate(path) if character == "."} | {""}
    units: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def visit(path: str, module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if path in layers or (path not in containers and module.state_dict(keep_vars=True)):
            units[path] = module
        elif path in containers:
            for name, child in module.named_children():
                visit(joined(path, name), child)

    visit("", module)
    return units


def _found_layers(module: nn.Module, modules: dict[str, nn.Module]) -> list[str]:
    """Return the paths of the elements of a module's outermost lists.

    Args:
        modules: its submodules by path.
    """
    kinds: tuple[type[nn.Module], ...]
    for kinds in ((nn.ModuleList,), (nn.Sequential,)):
        lists = [path for path, m in modules.items() if isinstance(m, kinds) and any(True for _ in m.parameters())]
        outermost = [path for path in lists if not any(path != other and is_inside(path, other) for other in lists)]
        if outermost:
            return [layer for path in outermost for layer in _elements(path, modules[path])]
    name = type(module).__name__
    raise refuse("E851", f"{name} has no list of layers", help="name its layers with --layers, or layers=[...] in Python")


def _elements(path: str, module: nn.Module) -> Iterator[str]:
    """Yield the paths of the elements of a list; of another module, its own path."""
    if isinstance(module, _LISTS):
        yield from (joined(path, name) for name in module._modules)
    else:
        yield path


def is_inside(path: str, outer: str) -> bool:
    """Return whether this is the path of something in the module at `outer`; the whole module has the path ''."""
    return not outer or path.startswith(f"{outer}.")


def joined(path: str, name: str) -> str:
    """Return the path of what the module at `path` calls `name`."""
    return f"{path}.{name}" if path else name


def _matches(path: str, pattern: str) -> bool:
    parts, patterns = path.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _shown(lists: Sequence[str]) -> tuple[str, ...]:
    return (f"its lists of modules: {', '.join(lists[:12])}{', ...' if len(lists) > 12 else ''}",) if lists else ()
