"""Messages survive their journey as lines of JSON; what is no message is refused."""

import dataclasses
import json
import math
import types
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.worker.decoding import decoder
from autotune.worker.protocol import (
    KINDS,
    BlockPlan,
    BlockReport,
    EndTrial,
    Hello,
    NodeReport,
    Outcome,
    Placement,
    Preload,
    RankEnd,
    StartTrial,
    Timeouts,
    TrialRequest,
    from_line,
)
from tests.support.trials import of_one_rank

THOROUGH = settings(max_examples=100)
FOR_EACH_KIND = settings(max_examples=40)

# Any text that Python can hold, lone surrogates too: logs and error messages come from anywhere.
text = st.text(st.characters(), max_size=30)
count = st.integers(0, 2**53)
number = st.floats(allow_nan=False)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), number, text)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=8,
)
tables = st.dictionaries(text, json_values, max_size=4)

SCALARS = {bool: st.booleans(), int: count, float: number, str: text, Any: json_values}


def values(hint):
    """Any value of a field of this type."""
    arguments = get_args(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if dataclasses.is_dataclass(hint):
        return st.builds(hint, **fields(hint))
    if is_typeddict(hint):
        return st.fixed_dictionaries({}, optional=fields(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if get_origin(hint) is types.UnionType:
        return st.one_of(st.none(), values(arguments[0]))
    if get_origin(hint) is dict:
        return st.dictionaries(text, values(arguments[1]), max_size=3)
    lists = st.lists(values(arguments[0]), max_size=3)
    return lists.map(tuple) if get_origin(hint) is tuple else lists


def fields(hint):
    return {name: values(of) for name, of in get_type_hints(hint).items()}


messages = st.one_of(*map(values, KINDS.values()))

ENDED = RankEnd(1, Outcome.OOM, "rank 1: out of memory", "the\nlast\nlines")
BLOCK = BlockReport("t", 0, 1, 4, 0, 0.5, (0.5, 0.4), 0.1, 2.0, 1000)


@pytest.mark.parametrize("kind", KINDS.values())
@FOR_EACH_KIND
@given(data=st.data())
def test_every_message_arrives_as_it_was_sent(kind, data):
    message = data.draw(values(kind))
    assert from_line(message.to_line()) == message


@THOROUGH
@given(messages)
def test_every_message_is_one_line(message):
    line = message.to_line()
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line.splitlines()) == 1


@THOROUGH
@given(messages)
def test_what_arrives_has_the_types_that_were_sent(message):
    arrived = from_line(message.to_line())
    assert type(arrived) is type(message)
    if isinstance(arrived, StartTrial):
        assert type(arrived.request.blocks) is BlockPlan
        assert type(arrived.request.timeouts) is Timeouts
        assert type(arrived.request.import_paths) is tuple
        assert type(arrived.request) is TrialRequest
        assert type(arrived.placement) is Placement
    if isinstance(arrived, NodeReport):
        assert all(type(end) is RankEnd for end in arrived.ends)
    if isinstance(arrived, RankEnd):
        assert arrived.outcome is None or type(arrived.outcome) is Outcome
    if isinstance(arrived, BlockReport):
        assert type(arrived.rank_seconds) is tuple


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_travels(loss):
    sent = BlockReport("t", 0, 1, 4, 0, 0.5, (0.5,), 0.1, loss, 1000)
    assert str(from_line(sent.to_line()).loss) == str(loss)


def test_text_and_bytes_are_both_read():
    line = ENDED.to_line()
    assert from_line(line) == from_line(line.decode()) == ENDED


@pytest.mark.parametrize(
    "message", [ENDED, BLOCK, EndTrial("t"), Hello(1, 2, "lo", {}), Preload(("a",), {"b": "c"})]
)
def test_fields_of_a_newer_version_are_ignored(message):
    body = json.loads(message.to_line())
    body["colour"] = "green"
    assert from_line(json.dumps(body)) == message


def test_nested_fields_of_a_newer_version_are_ignored():
    request = of_one_rank({}, world_size=2)
    message = StartTrial(request, Placement(0, 0, 2, "127.0.0.1", 1, "lo"))
    body = json.loads(message.to_line())
    for part in (body["request"], body["request"]["blocks"], body["placement"]):
        part["colour"] = "green"
    assert from_line(json.dumps(body)) == message


@pytest.mark.parametrize("outcome", Outcome)
def test_an_outcome_arrives_as_itself(outcome):
    assert from_line(RankEnd(0, outcome, "why").to_line()).outcome is outcome


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"not json",
        b"\xff\xfe",
        b'{"kind": "Hello"',
        b"{}",
        b'{"kind": null}',
        b'{"kind": "Goodbye"}',
        b'{"kind": "Message"}',
        b'{"kind": ["Hello"]}',
        b"3",
        b"null",
        b'"Hello"',
        b'[{"kind": "Hello"}]',
        b'{"kind": "EndTrial"}',
        b'{"kind": "RankEnd", "rank": 0, "outcome": "SURPRISE", "cause": ""}',
        b'{"kind": "RankEnd", "rank": 0}',
        b'{"kind": "NodeReport", "trial": "t", "node": 0, "ends": [1]}',
        b'{"kind": "NodeReport", "trial": "t", "node": 0, "ends": "ends"}',
        b'{"kind": "Preload", "modules": {"a": 1}}',
        b'{"kind": "Preload", "environment": ["a"]}',
        b'{"kind": "Preload", "environment": null}',
        b'{"kind": "StartTrial", "request": {}, "placement": {}}',
        b'{"kind": "StartTrial", "request": 3, "placement": []}',
    ],
)
def test_a_line_that_is_no_message_is_a_value_error(line):
    with pytest.raises(ValueError):
        from_line(line)


def test_what_a_version_before_did_not_send_has_its_default():
    assert from_line(b'{"kind": "EndTrial", "trial": "t"}') == EndTrial("t", hung="")
    assert from_line(b'{"kind": "Preload", "modules": ["a"]}') == Preload(("a",))


def test_tuple_of_a_fixed_length_has_a_type_for_each_place():
    pair = decoder(tuple[Outcome, int | None])
    assert pair(["OOM", None]) == (Outcome.OOM, None)
    with pytest.raises(ValueError):
        pair(["OOM"])


@pytest.mark.parametrize("hint", [set[int], int | str, complex])
def test_a_type_that_json_cannot_hold_is_no_field_of_a_message(hint):
    with pytest.raises(TypeError):
        decoder(hint)
