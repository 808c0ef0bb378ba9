"""Arguments of a script, as its own parser defines them, whichever that is."""

import argparse
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from autotune.worker.inject.batch_samples import is_dataclass
from autotune.worker.patches import wrapping
from autotune.worker.survey_result import Option

_SCALARS = (bool, int, float, str)
_MOST_CHOICES = 50
_MOST_HELP = 500
"""Characters of a help text that are kept."""
_MOST_LEVELS = 6
"""Levels of dataclasses in which a part is looked for."""
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
_IN_PAIRS = {"tyro"}
"""Those of them that make a pair of switches of a boolean: `--a.b` and `--a.no-b`."""


class Options:
    """Observer of parsers from `watch` on; `found` also inspects frames of its callers."""

    def __init__(self) -> None:
        self._parsed: dict[str, Option] = {}

    def watch(self) -> None:
        """Record what argparse makes of the command line, in this process and from now on."""

        @wrapping(argparse.ArgumentParser, "parse_known_args")
        def watched(
            parse: Any, parser: argparse.ArgumentParser, args: Any = None, *more: Any, **named: Any
        ) -> Any:
            found = parse(parser, args, *more, **named)
            # Two parsers often share the command line: one leaves unknown arguments to the other.
            if args is None or all(argument in sys.argv[1:] for argument in args):
                for option in _of_parser(parser, found[0]):
                    self._parsed.setdefault(option.name, option)
            return found

    def found(self) -> tuple[Option, ...]:
        """Return all options, by argparse, click, typer, Hydra or a dataclass.

        Without any of these they are variables of the script that its command line may set.
        """
        sure = [*self._parsed.values(), *_of_click(), *_of_hydra(), *_of_dataclasses()]
        return tuple(sure) if sure else tuple(_of_variables())


def _of_parser(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> Iterator[Option]:
    switches: dict[str, dict[bool, str]] = {}
    for action in parser._actions:
        if action.nargs == 0 and isinstance(action.const, bool):
            switches.setdefault(action.dest, {})[action.const] = _longest(action.option_strings)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            chosen = action.choices.get(getattr(parsed, action.dest, None) or "")
            if chosen is not None:
                yield from _of_parser(chosen, parsed)
        elif action.option_strings and hasattr(parsed, action.dest):
            option = _of_action(action, getattr(parsed, action.dest), switches)
            if option is not None:
                yield option


def _of_action(
    action: argparse.Action, value: Any, switches: Mapping[str, Mapping[bool, str]]
) -> Option | None:
    """Return an option of argparse; None where it sets no value of its own, such as `--help`.

    Args:
        value: in force.
        switches: name of a value -> the options that switch it on and off.
    """
    flag, switch = _longest(action.option_strings), action.nargs == 0
    if isinstance(action, argparse.BooleanOptionalAction):
        negative = [one for one in action.option_strings if one.startswith("--no-")]
        flag = _switch(action.option_strings[0], _longest(negative) if negative else "")
    elif switch:
        several = switches.get(action.dest, {})
        flag = _switch(several.get(True, ""), several.get(False, ""))
    elif action.nargs == "?" and isinstance(action.const, str) and value in (None, action.const):
        switch, value = True, value is not None  # `--compile` alone, without the name of a backend
    if switch and (not flag or not isinstance(value, bool)):
        return None
    text = action.help if isinstance(action.help, str) else ""
    return Option(
        flag,
        action.dest,
        _as_json(value),
        switch=switch,
        choices=_as_texts(action.choices or ()),
        help=text[:_MOST_HELP],
    )


def _longest(flags: Iterable[str]) -> str:
    """Return the option of a parser by its full name."""
    return max(flags, key=lambda text: (text.startswith("--"), len(text)))


def _switch(on: str, off: str) -> str:
    """Return the flag of a switch, by the options that switch it on and off; empty: there is none."""
    return f"{on}/{off}" if off else on


def _as_texts(choices: Iterable[Any]) -> tuple[str, ...]:
    """Return all values that an option takes; none where they are no names or too many to be some."""
    texts = tuple(map(str, itertools.islice(choices, _MOST_CHOICES + 1)))
    return texts if len(texts) <= _MOST_CHOICES else ()


def _of_click() -> Iterator[Option]:
    for name in _CLICKS:
        module = sys.modules.get(name)
        context = module.get_current_context(silent=True) if module else None
        while context is not None:
            for parameter in context.command.params:
                if any(map(_is_flag, parameter.opts)) and parameter.name in context.params:
                    yield _of_parameter(parameter, context.params[parameter.name])
            context = context.parent


def _of_parameter(parameter: Any, value: Any) -> Option:
    """Return an option of click."""
    switch = bool(getattr(parameter, "is_flag", False))
    flag = max(filter(_is_flag, parameter.opts), key=len)
    if switch and parameter.secondary_opts:
        flag = _switch(flag, max(parameter.secondary_opts, key=len))
    return Option(
        flag,
        parameter.name,
        _as_json(value),
        switch=switch,
        choices=_as_texts(getattr(parameter.type, "choices", ())),
        help=str(getattr(parameter, "help", None) or "")[:_MOST_HELP],
    )


def _is_flag(text: str) -> bool:
    return text.startswith("-")


def _of_hydra() -> Iterator[Option]:
    """Yield the entries of a Hydra configuration found in a local variable of a calling function."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or "hydra" not in sys.modules:
        return
    for frame in _frames():
        for value in frame.f_locals.values():
            if isinstance(value, omegaconf.DictConfig):
                whole = value._get_root()  # the function may have been given a part of it
                if not isinstance(whole, omegaconf.DictConfig):
                    continue  # an entry of a list of the script's own
                yield from _flat(omegaconf.OmegaConf.to_container(whole, resolve=False), "")
                return


def _flat(config: Any, prefix: str) -> Iterator[Option]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, _SCALARS):
            yield Option(f"{prefix}{key}=", str(key), value)


def _of_dataclasses() -> Iterator[Option]:
    """Yield the fields of the first dataclass that a function of the script, or the script, holds.

    A function may have been given a part: the whole is what a function that has called it holds.
    """
    library = next((name for name in _OF_DATACLASSES if name in sys.modules), None)
    held = [value for frame in _frames() if _is_of_main(frame) for value in frame.f_locals.values()]
    several = [value for value in held if is_dataclass(value)]
    if library is None or not several:
        return
    whole = several[0]
    for value in several:
        whole = value if _has_part(value, whole) else whole
    for path, option in _leaves(whole, ""):
        yield _spelt(library, path, option)


def _has_part(config: Any, part: Any, levels: int = _MOST_LEVELS) -> bool:
    """Return whether a dataclass has another one in it; a loop of them ends with the levels."""
    held = [getattr(config, field.name, None) for field in dataclasses.fields(config)]
    inner = [value for value in held if is_dataclass(value)] if levels else []
    return any(value is part or _has_part(value, part, levels - 1) for value in inner)


def _spelt(library: str, path: str, option: Option) -> Option:
    """Return the option of a field as a library spells it."""
    flag = f"--{_OF_DATACLASSES[library](path)}"
    if library not in _IN_PAIRS or not isinstance(option.value, bool):
        return dataclasses.replace(option, flag=flag)
    before, dot, last = flag.removeprefix("--").rpartition(".")
    pair = _switch(flag, f"--{before}{dot}no-{last}")
    return dataclasses.replace(option, flag=pair, switch=True)


def _is_of_main(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "__main__"


def _leaves(config: Any, prefix: str) -> Iterator[tuple[str, Option]]:
    """Yield the fields of a dataclass and of those in it, each with its path."""
    hints: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # an annotation may name what is not there
        hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name, None)
        if is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        elif isinstance(value, _SCALARS):
            kind = hints.get(field.name)
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            text = str(field.metadata.get("help", ""))[:_MOST_HELP]
            option = Option("", field.name, value, choices=_as_texts(choices), help=text)
            yield f"{prefix}{field.name}", option


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
