"""The command line of run.py, made from the fields of RunSettings.

This module does not import torch, so that --help appears at once.

The value of a setting is that of the command line, otherwise that of an environment variable if it has one (storage.py),
otherwise that of the config file, otherwise the field's default.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from chimerac.chimera_ir.arguments import Parser
from chimerac.chimera_ir.files import CONFIG_SUFFIXES
from chimerac.interpreter.adapters.own import unread_option
from chimerac.interpreter.launch.config import as_yaml, config_values, convert, field_types
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.storage import from_environment, resolved
from chimerac.interpreter.launch.workloads import model_table

# The options with which other launchers take the number of ranks.
RANK_OPTIONS = (
    "devices", "gpus", "gpus-per-node", "n-gpus", "n-procs", "n-ranks", "ngpus", "np", "nproc", "nproc-per-node", "nprocs",
    "nranks", "ntasks", "num-devices", "num-gpus", "num-processes", "num-procs", "num-ranks", "num-workers", "processes",
    "procs", "procs-per-node", "ranks", "workers", "world", "world-size",
)  # fmt: skip
RANKS_HELP = (
    "the schedule says how many ranks are started: give its parameters, such as -p D=4; --width W starts W times as many"
)

EPILOG = """\
models (NAME/BLOCKS chooses another number of blocks; one layer is before the blocks and one after them):
{models}

examples:
  python interpreter/run.py                                              as many processes as the schedule has ranks
  python interpreter/run.py schedules/chimera.sched -p D=4 -p N=8 --model gpt-small --data PATH
  python interpreter/run.py p.json --log-file run.jsonl                  a program that chimerac --emit json wrote
  python interpreter/run.py --config run.yaml --seed 1                   settings of a file, and another seed
  python interpreter/run.py plan.yaml                                    a plan that chimerac plan -o wrote
  python interpreter/run.py --timed 20                                   stages that only sleep
  torchrun --nproc-per-node 4 interpreter/run.py                         where torchrun starts the processes
  python interpreter/run.py -p D=4 --loopback                            all ranks in one process

exit status: 0; 1 for findings and failures; 2 for a wrong command line or config file; 130 after Ctrl-C; 143 after SIGTERM"""


def parse_options(arguments: Sequence[str] | None = None) -> RunSettings:
    """Return the settings of a command line, its config file and the environment.

    Exits with code 2 if the command line or the file is wrong, and with 0 after --help and --print-config.
    """
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    config, prints_config = given.pop("config", None), given.pop("print_config", False)
    if Path(given.get("schedule", "")).suffix in CONFIG_SUFFIXES:
        if config is not None:
            parser.error(f"{given['schedule']} is a config file, too: leave out --config, or give a schedule")
        config = given.pop("schedule")
    try:
        values = config_values(Path(config)) if config is not None else {}
        given = {name: _from_words(name, value) for name, value in given.items()}
        # Of the schedule's parameters, the command line overrides only those that it names.
        given["parameters"] = tuple((dict(values.get("parameters", ())) | dict(given.get("parameters", ()))).items())
        settings = settings_of(values | from_environment() | given)
    except ValueError as error:
        parser.error(str(error))
    if prints_config:
        print(as_yaml(settings), end="")
        parser.exit()
    return resolved(settings)


def settings_of(values: Mapping[str, Any]) -> RunSettings:
    """Return the settings with these values.

    Args:
        values: by field of RunSettings.

    Raises ValueError as `_check_together`.
    """
    settings = RunSettings(**values)
    _check_together(settings)
    return settings


def option_names() -> dict[str, str]:
    """Return the name of each option on the command line, by its field of RunSettings."""
    return {f.name: _name(f) for f in fields(RunSettings)}


def _name(field: Field[Any]) -> str:
    special = {"schedule": "SCHEDULE", "parameters": "-p"}
    return special.get(field.name, "--" + field.name.replace("_", "-"))


def _parser() -> Parser:
    parser = Parser(
        prog="python interpreter/run.py",
        usage="%(prog)s [SCHEDULE] [-p NAME=VALUE ...] [options]",
        description="Compile a pipeline schedule and train a model with it, one process per rank.",
        epilog=EPILOG.format(models=model_table()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # only what was given overrides the config file
    )
    parser.other_options = dict.fromkeys(RANK_OPTIONS, RANKS_HELP)
    parser.add_argument("--config", metavar="PATH", help="a YAML file of options; the command line overrides it")
    parser.add_argument("--print-config", action="store_true", help="print all settings as such a file and exit")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for field in fields(RunSettings):
        title = field.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(field.name if field.name == "schedule" else _name(field), **_argument(field))
    return parser


def _argument(field: Field[Any]) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for a field."""
    kind, _ = field_types()[field.name]
    text, default = field.metadata["help"], field.default
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    arguments: dict[str, Any] = {"default": argparse.SUPPRESS, "metavar": field.metadata["metavar"]}
    if field.name == "parameters":
        return arguments | {"dest": field.name, "action": "append", "help": text}
    if kind is bool:
        return arguments | {"action": argparse.BooleanOptionalAction, "help": text}
    arguments["help"] = text if default is None else f"{text} (default: {shown})"
    if field.name == "schedule":
        return arguments | {"nargs": "?"}
    if get_origin(kind) is Literal:
        return arguments | {"choices": get_args(kind)}
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        return arguments | {"nargs": len(get_args(kind))}
    return arguments


def _from_words(name: str, value: Any) -> Any:
    """Return the value of a field from the words of the command line. Raises ValueError, which names the option."""
    try:
        return convert(name, _parameters(value) if name == "parameters" else value, strict=False)
    except ValueError as error:
        raise ValueError(f"argument {option_names()[name]}: {error}") from None


def _parameters(words: Sequence[str]) -> dict[str, str]:
    """Return the words of -p, each NAME=VALUE, as values by name.

    Raises ValueError for a word of another form, and for a name that is given twice.
    """
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"'{word}' is not NAME=VALUE, as in -p D=2")
        if name in values:
            raise ValueError(f"{name} is given twice")
        values[name] = value
    return values


def _check_together(settings: RunSettings) -> None:
    """Raise ValueError for options that exclude or need each other, and for output to stdout.

    It is also raised if two of the trace, the timeline and the log have the same path, and for options that the model does not
    read.
    """
    s = settings
    timed, no_save_dir = s.timed is not None, s.save_dir is None
    files = {"--trace": s.trace, "--timeline": s.timeline, "--log-file": s.log_file}
    by_path: dict[Path, list[str]] = {}
    for name, path in files.items():
        if path is not None:
            by_path.setdefault(path.absolute(), []).append(name)
    same_file = next((" and ".join(names) for names in by_path.values() if len(names) > 1), "")
    written = {**files, "--export": s.export, "--save-dir": s.save_dir, "--tensorboard": s.tensorboard}
    to_stdout = next((name for name, path in written.items() if path == Path("-")), "")
    unread = unread_option(s.model, s.layers, s.head, s.loss)
    for applies, message in (
        (to_stdout, f"{to_stdout} -: stdout gets what the run prints: give a path"),
        (s.loopback and s.transport != "gloo", f"--transport {s.transport} is for ranks in processes, not for --loopback"),
        (s.machine and not s.loopback, "--machine is for --loopback: ranks in processes wait as their transport does"),
        (timed and s.loopback, "--timed needs ranks that sleep at the same time; --loopback runs one at a time"),
        (
            timed and s.transport != "gloo",
            f"--timed has stages that sleep on processors: leave out --transport {s.transport}",
        ),
        (timed and s.tensorboard, "--timed trains nothing and has no figures for TensorBoard: leave out --tensorboard"),
        (same_file, f"{same_file} are the same file: give each its own path"),
        (s.split and s.partition, "--split and --partition both fix the layers of each stage: give one of them"),
        (timed and (s.split or s.partition), "--timed has stages that sleep, and no layers: leave out --split and --partition"),
        (unread, unread),
        (s.save_every and no_save_dir, "--save-every needs --save-dir"),
        (s.keep and no_save_dir, "--keep needs --save-dir"),
        (s.async_save and no_save_dir, "--async-save needs --save-dir"),
        (s.resume == "auto" and no_save_dir, "--resume auto needs --save-dir: it takes the last checkpoint of that folder"),
    ):
        if applies:
            raise ValueError(message)
