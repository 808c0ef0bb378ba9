"""Settings files of YAML, JSON and TOML: read a field, and change it alone. Pure."""

import copy
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.worker.survey_result import SETTINGS
from search_spaces.knob import KnobValue, written

_Keys = tuple[str | int, ...]
_YAML_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
"""Anchor and tag in front of a scalar, within its marks."""


class Unusable(Exception):
    """File or field that cannot be read or changed; the text says what to do."""


def read(text: str, suffix: str, field: str) -> Any:
    """Return the value of a field.

    Args:
        suffix: of its name: one of SETTINGS.
        field: keys with dots between them, numbers for places in lists.

    Raises:
        Unusable: there is no such field, or it holds more than one value.
    """
    data = _parsed(text, suffix)
    return _at(data, _keys(data, field))


def scalars(text: str, suffix: str) -> Iterator[tuple[str, Any]]:
    """Yield every field that holds a single value, with it; none where a file cannot be read."""
    try:
        yield from _flat(_parsed(text, suffix), ())
    except Unusable:
        return


def changed(text: str, suffix: str, field: str, value: KnobValue) -> str:
    """Return the text with another value in a field, of the present value's type if possible.

    Comments, order and other content of the file stay (of JSON, its spacing does not).

    Raises:
        Unusable: there is no such field, or it cannot be changed alone.
    """
    data = _parsed(text, suffix)
    keys = _keys(data, field)
    new = _alike(value, _at(data, keys))
    wanted = copy.deepcopy(data)
    _put(wanted, keys, new)
    for candidate in _CHANGES[suffix.lower()](text, wanted, keys, new):
        # A text that looks like the field may be another one, and an anchor stands for several.
        if _same(_tried(candidate, suffix), wanted):
            return candidate
    raise Unusable(
        f"{field} cannot be changed without changing something else; write its value out there, in a "
        "line of its own"
    )


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in value and type: 1, 1.0 and true all differ."""
    return repr(one) == repr(other)


def _tried(text: str, suffix: str) -> Any:
    try:
        return _parsed(text, suffix)
    except Unusable:
        return None


# Fields


def _keys(data: Any, field: str) -> _Keys:
    """Return the keys of a field; a key may have dots in it."""
    found = _resolved(data, field.split("."))
    if found is None:
        raise Unusable(f"there is no field {field}{_nearest(data, field)}")
    return found


def _resolved(data: Any, parts: list[str]) -> _Keys | None:
    if not parts:
        return ()
    if isinstance(data, list):
        place = int(parts[0]) if parts[0].isdecimal() else len(data)
        rest = _resolved(data[place], parts[1:]) if place < len(data) else None
        return None if rest is None else (place, *rest)
    if not isinstance(data, dict):
        return None
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        for key in data:
            rest = _resolved(data[key], parts[length:]) if str(key) == name else None
            if rest is not None:
                return (key, *rest)
    return None


def _nearest(data: Any, field: str) -> str:
    """Return a hint at fields of that name, or at all fields."""
    last = field.rpartition(".")[2]
    fields = [name for name, _ in _flat(data, ())]
    alike = [name for name in fields if name.rpartition(".")[2] == last]
    if alike:
        return f"; did you mean {' or '.join(alike[:3])}?"
    return f"; it has {', '.join(fields[:10])}" if fields else ""


def _flat(data: Any, keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(value, (*keys, str(key)))
    elif not isinstance(data, list) and keys:
        yield ".".join(keys), data


def _at(data: Any, keys: _Keys) -> Any:
    for key in keys:
        data = data[key]
    if isinstance(data, dict | list):
        field = ".".join(map(str, keys))
        raise Unusable(f"{field} is no single value; name a field in it, such as {field}.name")
    return data


def _put(data: Any, keys: _Keys, value: Any) -> None:
    for key in keys[:-1]:
        data = data[key]
    data[keys[-1]] = value


def _alike(value: KnobValue, present: Any) -> Any:
    """Return the value with the present one's type: text stays text, a float stays a float."""
    if isinstance(present, str) and not isinstance(value, str):
        return written(value)
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and isinstance(present, float) else value


# Formats


def _parsed(text: str, suffix: str) -> Any:
    if suffix.lower() not in SETTINGS:
        raise Unusable(f"only fields of {', '.join(SETTINGS)} can be changed")
    try:
        return _READERS[suffix.lower()](text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Unusable(f"line {line}: not valid YAML: {error.problem}") from None
    except json.JSONDecodeError as error:
        raise Unusable(f"line {error.lineno}: not valid JSON: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        raise Unusable(f"not valid TOML: {error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unusable(f"cannot be read: {error}") from None


class _TagLoader(yaml.SafeLoader):
    """Loader that takes values with tags of the user's program for what they look like."""


def _of_any_tag(loader: yaml.SafeLoader, _: str, node: Node) -> Any:
    if isinstance(node, MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, ScalarNode)
    return loader.construct_scalar(node)


_TagLoader.add_multi_constructor("", _of_any_tag)
_TagLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789")
)  # a number of YAML 1.2, as OmegaConf reads it


def _yaml(text: str) -> Any:
    return yaml.load(text, _TagLoader)


def _yaml_changes(text: str, _: Any, keys: _Keys, value: Any) -> Iterator[str]:
    node = _node(yaml.compose(text, _TagLoader), keys)
    if node is None:
        return  # its value is merged from another node, by `<<`
    start, end = node.start_mark.index, node.end_mark.index
    properties = _YAML_PROPERTIES.match(text, start, end)
    assert properties is not None
    for spelt in _yaml_spellings(value):
        yield text[: properties.end()] + spelt + text[end:]


def _node(node: Node | None, keys: _Keys) -> ScalarNode | None:
    for key in keys:
        if isinstance(node, SequenceNode):
            node = node.value[int(key)]
        elif isinstance(node, MappingNode):
            named = [v for k, v in node.value if k.value == str(key)]
            node = named[-1] if named else None
    return node if isinstance(node, ScalarNode) else None


def _yaml_spellings(value: Any) -> Iterator[str]:
    """Yield a plain spelling, then a quoted one; a float in YAML 1.1 has a dot."""
    if isinstance(value, float):
        number = repr(value)
        yield number if "." in number or "e" not in number else number.replace("e", ".0e")
    else:
        yield written(value)
    yield json.dumps(value, ensure_ascii=False)


def _json_changes(_: str, wanted: Any, __: _Keys, ___: Any) -> Iterator[str]:
    yield json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"


def _toml_changes(text: str, _: Any, keys: _Keys, value: Any) -> Iterator[str]:
    import tomlkit  # here: few studies change a file of TOML
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
    except TOMLKitError:
        return
    holder: Any = document
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    yield tomlkit.dumps(document)


_READERS: dict[str, Callable[[str], Any]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".json": json.loads,
    ".toml": tomllib.loads,
}
_CHANGES: dict[str, Callable[[str, Any, _Keys, Any], Iterator[str]]] = {
    ".yaml": _yaml_changes,
    ".yml": _yaml_changes,
    ".json": _json_changes,
    ".toml": _toml_changes,
}
