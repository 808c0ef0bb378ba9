"""Numbers of decisions: each has a unit and a source, and the tables in the docs are current."""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from autotune.analysis.policy import ANALYSIS, PROOF
from autotune.measurement.policy import GATE, MEASUREMENT
from autotune.runs.policy import RUNS
from autotune.search.policy import SEARCH
from autotune.study.policy import STUDY

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "measurement-appendix.md"
POLICIES = {
    "Search": SEARCH,
    "Measurement": MEASUREMENT,
    "Gate": GATE,
    "Analysis": ANALYSIS,
    "Proof": PROOF,
    "Runs": RUNS,
    "Study": STUDY,
}
HEADING = "## Numbers of the decisions\n"
CONSTANTS = {
    "CONFIDENCE",
    "LAST_STAGE",
    "NORMAL_95",
    "ONE_SIDED",
    "VERSION",
    "_FURTHEST",
    "_GIB",
    "_GRID",
    "_HALVINGS",
    "_HOURS_OF_A_DAY",
    "_JITTER",
    "_LEAST_RATE",
    "_MINUTE, _HOUR, _DAY",
    "_MOST_NUMBERED",
    "_NODES",
    "_NO_NOISE",
    "_PEAKS",
    "_SECONDS_PER_HOUR",
    "_STAGE",
    "_TERA",
    "_TINY",
    "_TRIAL, _BASELINE",
    "_WATTS_OF_A_KILOWATT",
}
"""Numbers that are no choice: of mathematics, units, the machine and the records."""
OF_A_MESSAGE = {
    "FINEST_GAIN",
    "_COUNTED",
    "_DRAWN",
    "_DRAWN_PER_VALUE",
    "_HIGH",
    "_MOST_TOLD",
    "_NOISE_DIGITS",
    "_ROUNDED_TO",
    "_RUNNERS_UP",
    "_SHOWN",
    "_SMALLEST_PERCENTAGE",
    "_STEPS_OF_A_PERCENTILE",
}
"""Numbers that decide what is printed, and nothing of a study."""
OF_A_LOOP = {
    "EVERY_SECONDS",
    "LARGEST_SHARE",
    "_END_AGAIN_SECONDS",
    "_FASTEST_STEP",
    "_MOST_SLOTS",
    "_OUTAGE_SECONDS",
    "_POLL_SECONDS",
    "_TELL_SECONDS",
}
"""Intervals of polling, and limits that nothing real reaches."""
DECIDING = ["search", "measurement", "analysis", "runs", "study"]
"""Packages of which every number that decides is in a policy."""


class Number(NamedTuple):
    """Number of a policy, as it is shown."""

    name: str
    value: Any
    unit: str
    meaning: str
    source: str


def numbers(policy: Any) -> Iterator[Number]:
    """Yield the numbers of a policy."""
    for one in dataclasses.fields(policy):
        told = one.metadata
        value = getattr(policy, one.name)
        yield Number(one.name, value, told["unit"], told["meaning"], told["source"])


def table(policy: Any) -> str:
    """Return the numbers of a policy as a table of Markdown."""
    head = ["| number | value | unit | meaning | source |", "|---|---|---|---|---|"]
    rows = [
        f"| `{one.name}` | {_shown(one.value)} | {one.unit} | {one.meaning} | {one.source} |"
        for one in numbers(policy)
    ]
    return "\n".join([*head, *rows])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def page() -> str:
    """Return the page with the tables of the policies as they are now."""
    before, heading, _ = PAGE.read_text().partition(HEADING)
    tables = [f"### {name}\n\n{table(policy)}\n" for name, policy in POLICIES.items()]
    intro = (
        "Made from the policies of the code (`python tests/unit/test_policies.py`). A judgement is a "
        "choice\nthat no measurement of ours supports yet.\n"
    )
    return f"{before.rstrip()}\n\n{heading or HEADING}\n{intro}\n" + "\n".join(tables)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_number_of_a_policy_has_unit_meaning_and_source(policy: Any) -> None:
    for one in numbers(policy):
        assert one.unit and one.meaning, one.name
        assert one.source.partition(":")[0] in ("measured", "literature", "judgement"), one.name


def test_tables_of_policies_in_the_docs_are_current() -> None:
    assert PAGE.read_text() == page(), "python tests/unit/test_policies.py"


def outside(package: str) -> Iterator[str]:
    """Yield the names that hold a number in the modules and classes of a package.

    A number of a class that a caller may set otherwise (a field with a default) is none of them.
    """
    for path in sorted((ROOT / "autotune" / package).glob("*.py")):
        module = ast.parse(path.read_text())
        classes = (node for node in module.body if isinstance(node, ast.ClassDef))
        own = (line for node in classes for line in node.body if isinstance(line, ast.Assign))
        for node in (*module.body, *own):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if _is_number(node.value):
                    yield ast.unparse(target).strip("()")


def _is_number(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) or _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_is_number, node.elts))
    if isinstance(node, ast.Dict):
        return any(map(_is_number, node.values))
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return is_number and node.value != 0  # none at all is no choice


@pytest.mark.parametrize("package", DECIDING)
def test_package_has_no_number_of_a_decision_outside_its_policy(package: str) -> None:
    assert {*outside(package)} <= CONSTANTS | OF_A_MESSAGE | OF_A_LOOP


def test_list_of_other_numbers_names_only_numbers_that_are_there() -> None:
    there = {name for package in DECIDING for name in outside(package)}
    assert there >= CONSTANTS | OF_A_MESSAGE | OF_A_LOOP


if __name__ == "__main__":
    PAGE.write_text(page())
