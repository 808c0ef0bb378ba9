"""Numbers of decisions: each has a unit and a source, and the tables in the docs are current."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.measurement.policy import MEASUREMENT, PROOF
from autotune.policy import numbers, table
from autotune.search.policy import SEARCH

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "measurement-appendix.md"
POLICIES = {"Search": SEARCH, "Measurement": MEASUREMENT, "Proof": PROOF}
HEADING = "## Numbers of the decisions\n"
CONSTANTS = {"_JITTER", "_MOST_NUMBERED", "_ROOT_2PI", "NORMAL_95"}
"""Numbers that are no choice: of mathematics and of the machine."""
OF_A_MESSAGE = {"_COUNTED", "_DRAWN", "_DRAWN_PER_VALUE"}
"""Numbers that decide what is printed, and nothing of a study."""


def page() -> str:
    """Return the page with the tables of the policies as they are now."""
    before, heading, _ = PAGE.read_text().partition(HEADING)
    tables = [f"### {name}\n\n{table(policy)}\n" for name, policy in POLICIES.items()]
    intro = (
        "Made from the policies of the code (`python tests/unit/test_policies.py`). A judgement is a "
        "choice that\nno measurement of ours supports yet.\n"
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
    """Yield the module-level names of a package that hold a number."""
    for path in sorted((ROOT / package).glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if _is_number(node.value):
                    yield ast.unparse(target)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) or _is_number(node.right)
    if isinstance(node, ast.Tuple):
        return any(map(_is_number, node.elts))
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


@pytest.mark.parametrize("package", ["autotune/search"])
def test_package_has_no_number_of_a_decision_outside_its_policy(package: str) -> None:
    assert {*outside(package)} <= CONSTANTS | OF_A_MESSAGE


if __name__ == "__main__":
    PAGE.write_text(page())
