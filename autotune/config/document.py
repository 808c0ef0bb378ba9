"""YAML document with the line of every field, read with limits: no tags, no aliases.

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
    """Parsed data, with the line of each part."""

    name: str
    data: Any = None
    lines: dict[Path_, int] = field(default_factory=dict)

    def where(self, path: Path_) -> str:
        """Return file:line of a field, or of the nearest enclosing one that exists."""
        return f"{self.name}:{self.line(path)}"

    def line(self, path: Path_) -> int:
        """Return the line of a field, or of the nearest enclosing one that exists."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1


def read(path: Path) -> Document:
    """Read the document in a file.

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
    """Parse a document; `name` stands for the file in messages.

    Raises:
        SpecError: it is not plain YAML.
    """
    try:
        root = _compose(text)
    except _Broken as broken:
        raise SpecError([f"{name}:{broken.line}: not valid YAML: {broken}"]) from None
    document = Document(name)
    if root is not None:
        document.data = _Builder(document).build(root, ())
    return document


class _Broken(Exception):
    def __init__(self, line: int, problem: str) -> None:
        super().__init__(shown(problem))
        self.line = line


def _compose(text: str) -> Node | None:
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _Broken(line, f"the character U+{error.character:04X} is not allowed") from None
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        if error.context_mark and (mark is None or mark.index >= len(text.rstrip())):
            mark = (
                error.context_mark
            )  # the bracket that is still open, instead of the end of the file
        problem = error.problem or "cannot be read"
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        raise _Broken(mark.line + 1 if mark else 1, problem) from None
    except (ValueError, OverflowError):
        raise _Broken(loader.line + 1, "there is no such character") from None
    finally:
        loader.dispose()


def shown(text: str) -> str:
    """Return a text of the user's as part of a one-line message."""
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# Plain scalars of YAML 1.2's core schema.
_OCT = re.compile(r"0o[0-7]+")
_INT = re.compile(r"[-+]?[0-9]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = {
    ".inf": float("inf"),
    "+.inf": float("inf"),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_LONGEST_INT = 30


class _Loader(yaml.SafeLoader):
    """Loader that composes nodes only, and refuses features that a study file does not need."""

    nodes = 0
    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self._refuse("anchors and aliases are not used here; write the value out", event)
        if getattr(event, "tag", None):
            self._refuse("tags are not used here", event)
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
    """Builder of plain data from nodes, which records lines; any mistake carries its line."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def build(self, node: Node, path: Path_) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, str(path[-1]) if path else "study")

    def _mapping(self, node: MappingNode, path: Path_) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise self._error(key_node, "a field name must be a plain word")
            key = self._text(key_node, str(key_node.value))
            if key == "<<" and key_node.style is None:
                raise self._error(
                    key_node, "merge keys (<<) are not used here; write the values out"
                )
            if key in built:
                raise self._error(key_node, f"the field {shown(key)!r} is given twice")
            self._document.lines[(*path, key)] = key_node.start_mark.line + 1
            built[key] = self.build(value_node, (*path, key))
        return built

    def _text(self, node: ScalarNode, name: str) -> str:
        text = str(node.value)
        if any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
            raise self._error(node, f"{shown(name)}: has a character that no file can hold")
        return text

    def _scalar(self, node: ScalarNode, name: str) -> Any:
        text = self._text(node, name)
        if node.style in ("'", '"', "|", ">"):
            return text
        if text.lower() in _WORDS and text in (text.lower(), text.title(), text.upper()):
            return _WORDS[text.lower()]
        for pattern, base in ((_INT, 10), (_HEX, 16), (_OCT, 8)):
            if pattern.fullmatch(text):
                if len(text) > _LONGEST_INT:
                    raise self._error(node, f"{shown(name)}: the number is too large")
                return int(text, base)
        if _FLOAT.fullmatch(text):
            return float(text)
        return _SPECIAL.get(text.lower(), text)

    def _error(self, node: Node, problem: str) -> SpecError:
        return SpecError([f"{self._document.name}:{node.start_mark.line + 1}: {problem}"])
