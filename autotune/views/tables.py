"""Tables and sections that report and page of a study share, as data; each medium has a renderer.

Code in a text stands between backticks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

NONE = "–"
"""Cell without a figure."""
MOST_OF_CAUSE = 200
"""Characters of the cause of a failure in a cell."""


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes:
        css: class of its cells on the page; `n` is that of numbers.
        label: word before a cell on a screen that is too narrow for a row of titles.
        stays: True if it is shown although all of its cells are empty.
    """

    title: str
    css: str = ""
    label: str = ""
    stays: bool = False


@dataclass(frozen=True)
class Row:
    """Row of a table, with its class on the page."""

    cells: Sequence[str]
    css: str = ""


@dataclass(frozen=True)
class ReportTable:
    """Table of a section; a column without any text is not shown, unless it says that it stays."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    note: str = ""
    css: str = ""

    @property
    def filled(self) -> "ReportTable":
        """Table without the empty columns."""
        shown = [
            at
            for at, column in enumerate(self.columns)
            if column.stays or any(row.cells[at] for row in self.rows)
        ]
        rows = [Row([row.cells[at] for at in shown], row.css) for row in self.rows]
        return replace(self, columns=[self.columns[at] for at in shown], rows=rows)


@dataclass(frozen=True)
class ReportSection:
    """Section of a study's report or page.

    Attributes:
        texts: paragraphs it begins with.
        facts: names and texts; one without a text is not shown.
        note: what its tables rest on.
    """

    title: str
    texts: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[ReportTable] = ()
    note: str = ""

    @property
    def empty(self) -> bool:
        """True if it has nothing but a title."""
        return not (self.texts or self.facts or any(one.rows for one in self.tables))


NOTHING = ReportSection("")
"""Section of which a study has nothing."""


def code(text: str) -> str:
    """Return a text as code, which cannot hold a backtick."""
    return f"`{text.replace('`', chr(39))}`"


def cell(found: Mapping[int, Any], trial: int, form: Callable[[Any], str]) -> str:
    """Return the figure of a trial; a dash if it has none."""
    return form(found[trial]) if trial in found else NONE
