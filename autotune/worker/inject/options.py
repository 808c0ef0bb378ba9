"""Arguments of a script, as its own parser defines them, whichever that is."""

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from autotune.worker.survey_result import Option

_SCALARS = (bool, int, float, str)
_CLICKS = ("click.globals", "typer._click.globals")
"""Modules that know which command runs; a script that uses them has imported them."""

_OF_DATACLASSES: Mapping[str, Callable[[str], str]] = {
    "tyro": lambda path: path.replace("_", "-"),
    "simple_parsing": lambda path: path.rpartition(".")[2],
    "draccus": lambda path: path,
    "pyrallis": lambda path: path,
}
"""Libraries that make a command line of a dataclass -> how they spell the option of a field, given the
path to it."""


class Options:
    """Observer of parsers from `watch` on; `found` also inspects frames of its callers."""

    def __init__(self) -> None:
        self._parsed: dict[str, Option] = {}

    def watch(self) -> None:
        """Record what argparse makes of the command line, in this process and from now on."""
        parse = argparse.ArgumentParser.parse_known_args

        @functools.wraps(parse)
        def watched(
            parser: argparse.ArgumentParser, args: Any = None, *more: Any, **named: Any
        ) -> Any:
            found = parse(parser, args, *more, **named)
            # Two parsers often share the command line: one leaves unknown arguments to the other.
            if args is None or all(argument in sys.argv[1:] for argument in args):
                for option in _of_parser(parser, found[0]):
                    self._parsed.setdefault(option.name, option)
            return found

        argparse.ArgumentParser.parse_known_args = watched  # type: ignore[method-assign, assignment]

    def found(self) -> tuple[Option, ...]:
        """Return all options, by argparse, click, typer, Hydra or a dataclass.

        Without any of these they are variables of the script that its command line may set.
        """
        sure = [*self._parsed.values(), *_of_click(), *_of_hydra(), *_of_dataclasses()]
        return tuple(sure) if sure else tuple(_of_variables())


def _of_parser(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> Iterator[Option]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(getattr(parsed, action.dest, None) or "")
            if chosen is not None:
                yield from _of_parser(chosen, parsed)
        elif action.option_strings and hasattr(parsed, action.dest):
            value = getattr(parsed, action.dest)
            flag = max(action.option_strings, key=lambda text: (text.startswith("--"), len(text)))
            if isinstance(action, argparse.BooleanOptionalAction):
                flag = action.option_strings[0]
            switch = action.nargs == 0
            if switch and value is not True and value is not False:
                continue
            yield Option(flag, action.dest, _as_json(value), switch=switch)


def _of_click() -> Iterator[Option]:
    for name in _CLICKS:
        module = sys.modules.get(name)
        context = module.get_current_context(silent=True) if module else None
        while context is not None:
            for parameter in context.command.params:
                flags = [text for text in parameter.opts if text.startswith("-")]
                if flags and parameter.name in context.params:
                    switch = bool(getattr(parameter, "is_flag", False))
                    value = _as_json(context.params[parameter.name])
                    yield Option(max(flags, key=len), parameter.name, value, switch=switch)
            context = context.parent


def _of_hydra() -> Iterator[Option]:
    """Yield the entries of a Hydra configuration found in a local variable of a calling function."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or "hydra" not in sys.modules:
        return
    for frame in _frames():
        for value in frame.f_locals.values():
            if isinstance(value, omegaconf.DictConfig):
                yield from _flat(omegaconf.OmegaConf.to_container(value, resolve=False), "")
                return


def _flat(config: Any, prefix: str) -> Iterator[Option]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, _SCALARS):
            yield Option(f"{prefix}{key}=", str(key), value)


def _of_dataclasses() -> Iterator[Option]:
    """Yield the fields of the first dataclass that a function of the script, or the script, holds."""
    spelt = next((spell for name, spell in _OF_DATACLASSES.items() if name in sys.modules), None)
    if spelt is None:
        return
    for frame in _frames():
        for value in frame.f_locals.values():
            if _is_instance(value) and _is_of_main(frame):
                for path, told in _leaves(value, ""):
                    yield Option(f"--{spelt(path)}", path.rpartition(".")[2], told)
                return


def _is_instance(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass, and no class itself."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_of_main(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "__main__"


def _leaves(config: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        if _is_instance(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        elif isinstance(value, _SCALARS):
            yield f"{prefix}{field.name}", value


def _of_variables() -> Iterator[Option]:
    """Yield variables of the script's module.

    Scripts without a parser often let `--name=value` set them.
    """
    for frame in _frames():
        if _is_of_main(frame):
            for name, value in frame.f_globals.items():
                if not name.startswith("_") and isinstance(value, _SCALARS):
                    yield Option(f"--{name}=", name, value, sure=False)
            return


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it."""
    return value if value is None or isinstance(value, _SCALARS) else str(value)
