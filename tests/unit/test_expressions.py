"""Constraints as users write them: what they mean, and what is refused, with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import Facts, defaults, infeasible
from search_spaces.expressions import Mixed, Unreadable, parse

VALUES = {"a": 2, "b": 4, "share": 0.5, "mode": "full", "on": True, "off": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a * b <= 8", True),
        ("a * b < 8", False),
        ("1 < a < b < 5", True),
        ("1 < b < a", False),
        ("b % a == 0 and not b // a == 3", True),
        ("a > 3 or b > 3", True),
        ("-a + b == 2", True),
        ("b / 8 == share", True),
        ("min(a, b) == 2 and max(a, b, 9) == 9 and abs(a - b) == 2", True),
        ("a in [1, 2] and b not in (1, 2)", True),
        ("mode == 'full' and mode != \"none\" and mode in ['full', 'selective']", True),
        ("mode < 'g'", True),
        ("on and not off", True),
        ("on == true and off == False", True),
        ("on == 1", False),
        ("a == 'full'", False),
        ("off or a == 2", True),
        ("off and a % 0 == 1", False),
        ("a % 0 == 1", False),
        ("  a ==\n  2", True),
        ("(a ==\n2)", True),
    ],
)
def test_they_mean_what_python_means(text: str, expected: bool) -> None:
    assert parse(text).holds(VALUES) is expected
    assert bool(parse(text).broken(VALUES)) is not expected


@pytest.mark.parametrize(
    ("text", "column", "told"),
    [
        ("", 1, "is no expression"),
        ("a *", 4, "is no expression"),
        ("a = 2", 3, "is no expression"),
        ("a <= b <=", 10, "is no expression"),
        ("a == 2; b", 7, "is no expression"),
        ("a * b", 1, "is no condition"),
        ("3", 1, "is no condition"),
        ("a and b * 2", 1, "is no condition"),
        ("a ** 9 == 1", 1, "holds what is not allowed"),
        ("a << 2 == 1", 1, "holds what is not allowed"),
        ("~a == 1", 1, "holds what is not allowed"),
        ("a.real == 1", 1, "holds what is not allowed"),
        ("a[0] == 1", 1, "holds what is not allowed"),
        ("b == a.__class__", 6, "holds what is not allowed"),
        ("(lambda: 1) == 1", 2, "holds what is not allowed"),
        ("[x for x in [1]] == 1", 1, "holds what is not allowed"),
        ("(a := 2) == 2", 2, "holds what is not allowed"),
        ("f'{a}' == 'x'", 1, "holds what is not allowed"),
        ("a if b else a", 1, "holds what is not allowed"),
        ("await a == 1", 1, "holds what is not allowed"),
        ("a == [1]", 6, "holds what is not allowed"),
        ("'é' == a.b", 8, "holds what is not allowed"),
        ("__import__('os') == 1", 1, "may call min, max, abs only"),
        ("a == eval('1')", 6, "may call"),
        ("max(a, key=b) == 1", 1, "may call"),
        ("max(*a) == 1", 1, "max takes at least two"),
        ("min(a).b() == 1", 1, "may call"),
        ("abs(a, b) == 1", 1, "abs takes one argument"),
        ("min() == 1", 1, "min takes at least two"),
        ("a is b", 6, "not with `is`"),
        ("a in b", 6, "wants a list behind `in`"),
        ("a == 1j", 6, "numbers, texts, true and false only"),
        ("a == None", 6, "numbers, texts, true and false only"),
        ("a == b'x'", 6, "numbers, texts, true and false only"),
        ("a == ...", 6, "numbers, texts, true and false only"),
        ("1" * 1001, 1001, "longer than 1000"),
        ("(" * 500, None, "is no expression"),
        ("not " * 240 + "a.b", None, ""),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_column(
    text: str, column: int | None, told: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        parse(text)
    assert told in str(refused.value)
    assert column is None or refused.value.column == column


@pytest.mark.parametrize(
    "text", ["mode * 2 == 4", "mode < 3", "a and on", "not a", "on + 1 == 2", "min(mode, a) == 1"]
)
def test_kinds_are_not_mixed(text: str) -> None:
    with pytest.raises(Mixed):
        parse(text).holds(VALUES)
    assert "makes no sense" in parse(text).broken(VALUES)


def test_names_come_with_their_places() -> None:
    assert dict(parse("  b % a == 0 and b > 'c'").columns) == {"b": 3, "a": 7}


@given(st.text(max_size=60) | st.text("ab01 .()[]'<>=*/%,+-", max_size=30))
def test_no_text_does_anything_else(text: str) -> None:
    try:
        rule = parse(text)
    except Unreadable as refused:
        assert 1 <= refused.column <= len(text) + 1
        return
    values = {**VALUES, **dict.fromkeys(set(rule.names) - set(VALUES), 1)}
    assert isinstance(rule.broken(values), str)


def test_a_constraint_that_does_not_hold_is_the_reason() -> None:
    facts = Facts("cpu", 8, rules=("tp * pp <= world_size", "global_batch_size == 64"))
    knobs = {**defaults(), "tp": 4, "pp": 4}
    assert infeasible({**knobs, "pp": 2}, facts) == []
    assert infeasible(knobs, facts) == [
        "the constraint `tp * pp <= world_size` does not hold: tp=4, pp=4, world_size=8"
    ]
    assert "global_batch_size=128" in infeasible({**knobs, "pp": 1, "micro_batch": 16}, facts)[0]
