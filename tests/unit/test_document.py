"""The YAML reader: which value a text is, on which line it stands, and what is not read at all."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.config import document
from autotune.errors import SpecError

SCALARS = {
    # the words that YAML 1.1 takes for booleans, numbers and dates are text
    "no": "no",
    "yes": "yes",
    "on": "on",
    "Off": "Off",
    "y": "y",
    "tRUE": "tRUE",
    "1:30": "1:30",
    "1_000": "1_000",
    "2001-12-31": "2001-12-31",
    "0b101": "0b101",
    "nan": "nan",
    "inf": "inf",
    ".": ".",
    "e5": "e5",
    "1e": "1e",
    "1.2.3": "1.2.3",
    "--1": "--1",
    "0x": "0x",
    "٣": "٣",
    "=": "=",
    "<": "<",
    # booleans and null
    "true": True,
    "True": True,
    "FALSE": False,
    "null": None,
    "NULL": None,
    "~": None,
    # numbers
    "7": 7,
    "+7": 7,
    "-0": 0,
    "007": 7,
    "0x1F": 31,
    "0o17": 15,
    "1.": 1.0,
    ".5": 0.5,
    "-1.5": -1.5,
    "1e-4": 1e-4,
    "1E3": 1000.0,
    "+12.5e+2": 1250.0,
    ".inf": math.inf,
    "+.inf": math.inf,
    "-.Inf": -math.inf,
    # quotes make a text
    "'7'": "7",
    '"true"': "true",
    "''": "",
    '"caf\\u00e9"': "café",
}


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_follow_yaml_1_2(text):
    found = document.parse(f"field: {text}", "f").data["field"]
    assert found == SCALARS[text]
    assert type(found) is type(SCALARS[text])


def test_nan_is_a_number():
    assert math.isnan(document.parse("field: .NaN", "f").data["field"])


def test_an_empty_value_is_null():
    assert document.parse("a:\nb: [~, ]\n", "f").data == {"a": None, "b": [None]}


def test_block_texts_keep_their_line_ends():
    assert document.parse("a: |\n  1\n  2\nb: >-\n  1\n  2\n", "f").data == {
        "a": "1\n2\n",
        "b": "1 2",
    }


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5", "''"])
def test_field_names_are_text(key):
    assert list(document.parse(f"{key}: 1", "f").data) == [key.strip("'")]


STUDY = """\
# a comment

name: a
workload:
  name: gpt
  args: {layers: 2,
         heads: 4}
search_space:
  micro_batch:
    - 1

    - 2
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 3),
        (("name",), 3),
        (("workload",), 4),
        (("workload", "name"), 5),
        (("workload", "args", "layers"), 6),
        (("workload", "args", "heads"), 7),
        (("search_space", "micro_batch"), 9),
        (("search_space", "micro_batch", 0), 10),
        (("search_space", "micro_batch", 1), 12),
        # what is not in the file: the nearest enclosing field that is
        (("workload", "nothing"), 4),
        (("search_space", "micro_batch", 7), 9),
        (("budget", "trials"), 3),
    ],
)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_every_field_knows_its_line(path, line, line_end):
    found = document.parse(STUDY.replace("\n", line_end), "study.yaml")
    assert found.where(path) == f"study.yaml:{line}"


def test_an_empty_document_is_at_line_1():
    assert document.parse("", "study.yaml").where(("name",)) == "study.yaml:1"


def test_a_byte_order_mark_is_not_part_of_the_first_field(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\n")
    assert document.read(path).data == {"name": "a"}


def refusal(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        document.parse(text, "f")
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    "value",
    [
        "!!str 7",
        "!!int '7'",
        "!!float 7",
        "!!null ''",
        "!!bool yes",
        "!!binary aGVsbG8=",
        "!!timestamp 2001-12-31",
        "!!set {a}",
        "!!omap [a: 1]",
        "!!seq [1]",
        "!!map {a: 1}",
        "!secret x",
        "!secret {a: 1}",
        "!secret [1]",
        "! x",
        "!<tag:example.com,2000:x> x",
        "!!python/name:os.system x",
        "!!python/object/apply:os.system [ls]",
        "!!python/object:os.stat_result {}",
        "!!python/tuple [1]",
    ],
)
def test_tags_are_refused(value):
    assert "tag" in refusal(f"a: 1\nfield: {value}\n")
    assert refusal(f"a: 1\nfield: {value}\n").startswith("f:2: ")


@pytest.mark.parametrize("key", ["!secret x", "!!str x", "!!python/name:os.system x"])
def test_tags_on_field_names_are_refused(key):
    assert "tag" in refusal(f"a: 1\n{key}: 1\n")


@pytest.mark.parametrize(
    "text", ["a: &x 1", "a: &x {b: 1}", "a: &x [*x]", "a: *x", "&x a: 1", "a: &x 1\nb: *x"]
)
def test_anchors_and_aliases_are_refused(text):
    assert refusal(text).startswith("f:1: ")
    assert "anchors and aliases" in refusal(text)


@pytest.mark.parametrize("text", ["<<: {a: 1}", "a: 1\n<<: [{b: 1}, {c: 2}]", "a: {<<: {b: 1}}"])
def test_merge_keys_are_refused(text):
    assert "<<" in refusal(text)


def test_a_quoted_merge_sign_is_a_name_like_any_other():
    assert document.parse("'<<': 1", "f").data == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 2\na: 3\n", 3),
        ("a: {b: 1,\n  b: 1}\n", 2),
        ("a: [{b: 1, b: 1}]\n", 1),
        ("a: 1\n'a': 1\n", 2),
        ("1: x\n'1': x\n", 2),
    ],
)
def test_a_field_given_twice_is_refused(text, line):
    assert refusal(text).startswith(f"f:{line}: ")
    assert "twice" in refusal(text)


@pytest.mark.parametrize("text", ["[a]: 1", "{a: b}: 1", "? - a\n: 1"])
def test_a_field_name_is_a_word(text):
    assert "field name" in refusal(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a: 1\nb: "\\UFFFFFFFF"', 2),
        ('a: 1\nb: "\\U00110000"', 2),
        ('a: 1\nb: "\\q"', 2),
        ("a: 1\nb: \x00", 2),
        ("a: 1\nb: \x07", 2),
        ("a: 1\nb: \ufffe", 2),
        ("a: 1\nb:\n\t- 1", 3),
        ("a: 1\n---\nb: 1", 2),
        ("a: 1\nb: c: d", 2),
        ("a: 1\nb: 'x\n\n", 2),
        ("a: 1\nb: [1,\n  2\n\n", 2),
    ],
)
def test_broken_yaml_is_refused_with_the_line_to_look_at(text, line):
    assert refusal(text).startswith(f"f:{line}: ")


@pytest.mark.parametrize("escape", ["\\0", "\\ud800"])
def test_characters_that_no_file_or_process_takes_are_refused(escape):
    assert refusal(f'a: 1\nb: "x{escape}"').startswith("f:2: ")
    assert refusal(f'a: 1\n"b{escape}": x').startswith("f:2: ")


@pytest.mark.parametrize("number", ["9" * 40, "-" + "9" * 5000, "0x" + "f" * 5000])
def test_giant_numbers_are_refused(number):
    assert refusal(f"a: 1\nb: {number}\n").startswith("f:2: ")


def nested(depth: int) -> str:
    return "a: " + "[" * (depth - 2) + "1" + "]" * (depth - 2)


def test_depth_is_limited():
    assert document.parse(nested(document.MAX_DEPTH), "f").data
    assert "deep" in refusal(nested(document.MAX_DEPTH + 1))


def test_the_number_of_values_is_limited():
    spare = document.MAX_NODES - 3  # less the mapping, its key and the list
    assert len(document.parse(f"a: [{'1,' * spare}]", "f").data["a"]) == spare
    assert "values" in refusal(f"a: [{'1,' * (spare + 1)}]")


def test_size_is_limited(tmp_path):
    path = tmp_path / "study.yaml"
    text = b"a: 1\n#"
    path.write_bytes(text + b"x" * (document.MAX_BYTES - len(text)))
    assert document.read(path).data == {"a": 1}
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(SpecError, match="larger than"):
        document.read(path)


def test_what_cannot_be_read_is_said_with_its_name(tmp_path):
    missing = tmp_path / "missing.yaml"
    with pytest.raises(SpecError, match=r"missing\.yaml: .*No such file"):
        document.read(missing)
    with pytest.raises(SpecError, match="directory"):
        document.read(tmp_path)


NASTY = [
    *["a", "name", "a: ", "'", '"', "\\", '"\\x4"', '"\\UFFFFFFFF"', '"\\ud800"', "{", "}", "["],
    *["]", ",", ":", ": ", "? ", "- ", "|", ">", ">-", "%", "@", "`", "#", " #", "&", "&a", "*a"],
    *["!", "!!", "!a", "!!int", "!!python/name:os", "<<", "---", "...", "%YAML 1.1", "%TAG ! x"],
    *["~", "null", "true", "no", "0", "1", "9" * 50, "0x" + "f" * 6000, "1e400", ".inf", ".nan"],
    *["1e-4", "\n", "\n", "\n  ", "\n    ", "\t", " ", "\r", "\x85", "\u2028", "\ufeff", "\x00"],
]
PIECES = st.lists(st.sampled_from(NASTY), max_size=40).map("".join)
TEXTS = st.one_of(PIECES, st.text(max_size=200))
THOROUGH = settings(max_examples=400)


@THOROUGH
@given(TEXTS)
def test_any_text_is_read_or_refused_in_one_printable_line(text):
    try:
        found = document.parse(text, "f")
    except SpecError as error:
        (problem,) = error.problems
        assert problem.startswith("f:"), problem
        assert problem.isprintable(), problem
        assert len(problem) < 500
    else:
        assert repr(found.data)
        assert found.where(()).startswith("f:")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "study.yaml"


@THOROUGH
@given(content=st.one_of(st.binary(max_size=300), TEXTS.map(lambda text: text.encode("utf-16"))))
def test_any_file_is_read_or_refused(scratch, content):
    scratch.write_bytes(content)
    try:
        document.read(scratch)
    except SpecError as error:
        (problem,) = error.problems
        assert problem.startswith(f"{scratch}:")
        assert problem.isprintable()
