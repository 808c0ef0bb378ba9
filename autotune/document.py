"""A YAML document with the line of every field, read with limits: no tags, no bombs, no surprises.

Scalars follow YAML 1.2: `no` is a text, `1e-4` is a number, only true and false are booleans.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from autotune.errors import SpecError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_NODES = 20_000

Path_ = tuple[str | int, ...]


@dataclass
class Document:
    """Parsed data, and where each part of it stands."""

    name: str
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)

    def where(self, path: Path_) -> str:
        """file:line of a field, or of the nearest enclosing one that exists."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return f"{self.name}:{self.lines[path[:length]]}"
        return f"{self.name}:1"


def read(path: Path) -> Document:
    """The document in a file.

    Raises:
        SpecError: it cannot be read, is too large, or is not plain YAML.
    """
    name = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError([f"{name}: cannot be read: {error.strerror or error}"]) from None
    if len(content) > MAX_BYTES:
        raise SpecError(
            [f"{name}: larger than {MAX_BYTES:,} bytes; a study file is a page of YAML"]
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SpecError([f"{name}:{line}: not UTF-8 text"]) from None
    return parse(text, name)


def parse(text: str, name: str) -> Document:
    """The document in a text; `name` stands for the file in messages.

    Raises:
        SpecError: it is not plain YAML.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise SpecError([f"{name}:{line}: not valid YAML: {error.problem}"]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SpecError([f"{name}: not valid YAML: {reason}"]) from None
    document = Document(name)
    if root is not None:
        document.data = _Builder(document).build(root, ())
    return document


class _Loader(yaml.SafeLoader):
    """Composes nodes only; refuses what a study file has no use for while it does."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._refuse("anchors and aliases are not used here; write the value out", event)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._refuse(f"more than {MAX_NODES:,} values", event)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep", event)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _refuse(self, problem: str, event: Any) -> None:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


class _Builder:
    """Nodes -> plain data, noting lines; any mistake carries its line."""

    _INT = re.compile(r"[-+]?[0-9]+")
    _HEX = re.compile(r"0x[0-9a-fA-F]+")
    _FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
    _SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}  # noqa: RUF012
    _WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}  # noqa: RUF012
    _LONGEST_INT = 30

    def __init__(self, document: Document) -> None:
        self._document = document

    def build(self, node: Node, path: Path_) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            self._plain(node, "tag:yaml.org,2002:seq")
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node)

    def _mapping(self, node: MappingNode, path: Path_) -> dict[str, Any]:
        self._plain(node, "tag:yaml.org,2002:map")
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise self._error(key_node, "a field name must be a plain word")
            key = str(key_node.value)
            if key in built:
                raise self._error(key_node, f"the field {key!r} is given twice")
            self._document.lines[(*path, key)] = key_node.start_mark.line + 1
            built[key] = self.build(value_node, (*path, key))
        return built

    def _scalar(self, node: ScalarNode) -> Any:
        text = node.value
        explicit = not node.tag.startswith("tag:yaml.org,2002:")
        if explicit or node.tag.endswith((":binary", ":set", ":omap", ":python")):
            raise self._error(node, f"the tag {node.tag!r} is not allowed")
        if node.style in ("'", '"', "|", ">"):
            return text
        if text.lower() in self._WORDS and text in (text.lower(), text.title(), text.upper()):
            return self._WORDS[text.lower()]
        if self._INT.fullmatch(text):
            if len(text) > self._LONGEST_INT:
                raise self._error(node, "the number is too large")
            return int(text)
        if self._HEX.fullmatch(text):
            return int(text, 16)
        if self._FLOAT.fullmatch(text):
            return float(text)
        return self._SPECIAL.get(text.lower(), text)

    def _plain(self, node: Node, tag: str) -> None:
        if node.tag != tag:
            raise self._error(node, f"the tag {node.tag!r} is not allowed")

    def _error(self, node: Node, problem: str) -> SpecError:
        return SpecError([f"{self._document.name}:{node.start_mark.line + 1}: {problem}"])
