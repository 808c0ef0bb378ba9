"""Study files with mistakes: a line for each mistake, no traceback, and nothing is started.

A file under tests/bad_studies says itself what is wrong with it. `# error: A | B` stands on the line
of the mistake, and A and B are parts of its message; `# error@7: A` is about line 7.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune import config
from autotune.config import document
from autotune.errors import SpecError
from tests.support.steering import ask, autotune

FOLDER = Path(__file__).parent.parent / "bad_studies"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))

# Of CPU. On an idle core the largest take 1 to 1.5 s; what reads them in quadratic time takes minutes.
MOST_SECONDS = 15.0
MOST_BYTES = 200 * 2**20
LONGEST_MESSAGE = 500

_MARKER = re.compile(r"# error(?:@(\d+))?: (.+)$")
_INTERNALS = re.compile(
    r"\bNone\b|\bTrue\b|\bFalse\b|dictionary|instance of|\w+Spec\b|should match|\^\[|"
    r"could not convert|Input should|constrained|pydantic|e\+0\d"
)
"""Python's and pydantic's words, which mean nothing to somebody who writes YAML."""


@dataclass(frozen=True)
class Mistake:
    """What a message has to say. `line` is None where a line means nothing."""

    line: int | None
    parts: tuple[str, ...]

    def is_told_by(self, problem: str, name: str) -> bool:
        where = f"{name}: " if self.line is None else f"{name}:{self.line}: "
        return problem.startswith(where) and all(part in problem for part in self.parts)


def marked(name: str) -> list[Mistake]:
    """The mistakes that a file of the corpus says it has."""
    found = []
    for number, line in enumerate((FOLDER / f"{name}.yaml").read_text("utf-8").split("\n"), 1):
        if match := _MARKER.search(line):
            parts = tuple(match[2].split(" | "))
            found.append(Mistake(int(match[1]) if match[1] else number, parts))
    return found


START = "name: a\nworkload: gpt\n"

ALMOST = document.MAX_BYTES - 1_000
HALF = ALMOST // 2
MANY_VALUES = document.MAX_NODES - 100
MANY_FIELDS = document.MAX_NODES // 2 - 100
"""The most that a file can hold without being refused for its size."""


def _text(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(START + text, encoding="utf-8", newline="") and None


def _raw(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def _mistake(line: int | None, *parts: str) -> list[Mistake]:
    return [Mistake(line, parts)]


_BOMB = START + "env:\n  a0: &a0 [x, x]\n"
_BOMB += "".join(f"  a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))

GENERATED: dict[str, tuple[Callable[[Path], None], list[Mistake]]] = {
    "missing_file": (lambda path: None, _mistake(None, "No such file")),
    "directory": (lambda path: path.mkdir(), _mistake(None, "directory")),
    "link_to_itself": (lambda path: path.symlink_to(path), _mistake(None, "cannot be read")),
    "empty": (_raw(b""), _mistake(1, "mapping", "name", "workload")),
    "ten_megabytes": (
        _raw(b"# a line\n" * 1_200_000),
        _mistake(None, "larger", f"{document.MAX_BYTES:,}"),
    ),
    "endless": (lambda path: path.symlink_to("/dev/zero"), _mistake(None, "larger")),
    "binary": (_raw(bytes(range(256)) * 40), _mistake(2, "UTF-8")),
    "image": (_raw(b"\x89PNG\r\n\x1a\n" + bytes(500)), _mistake(1, "UTF-8")),
    "zeros": (_raw(bytes(500)), _mistake(1, "not valid YAML")),
    "control_character": (_text("export: b\aest.yaml\n"), _mistake(3, "not valid YAML")),
    "latin_1": (_raw("name: a\nworkload: prüfung\n".encode("latin-1")), _mistake(2, "UTF-8")),
    "utf_16": (_raw((START + "seed: -1\n").encode("utf-16")), _mistake(1, "UTF-8")),
    "byte_order_mark": (_raw(("\ufeff" + START + "seed: -1\n").encode()), _mistake(3, "seed:")),
    "byte_order_mark_inside": (_text("\ufeffseed: 1\n"), _mistake(3, "seed", "no such field")),
    "windows_line_ends": (
        _raw((START + "seed: -1\n").replace("\n", "\r\n").encode()),
        _mistake(3, "seed:", "got -1"),
    ),
    "alias_bomb": (_raw(_BOMB.encode()), _mistake(4, "anchors and aliases")),
    "deep_brackets": (_text("env: " + "[" * 10_000), _mistake(3, "deep")),
    "deep_braces": (_text("env: " + "{a: " * 10_000), _mistake(3, "deep")),
    "deep_blocks": (
        _text("env:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 200))),
        _mistake(document.MAX_DEPTH + 2, "deep"),
    ),
    "too_many_values": (
        _text("env: [" + "1," * HALF + "]\n"),
        _mistake(3, f"{document.MAX_NODES:,}"),
    ),
    "hexadecimal_giant": (_text(f"seed: 0x{'f' * 5000}\n"), _mistake(3, "seed")),
    "as_large_as_allowed_digits": (_text(f"seed: {'1' * ALMOST}\n"), _mistake(3, "too large")),
    "as_large_as_allowed_float": (
        _text(f"resources: {{gpus_per_worker: {'1' * ALMOST}.0}}\n"),
        _mistake(3, "resources.gpus_per_worker:"),
    ),
    "as_large_as_allowed_dots": (
        _text(f"budget: {{wall_time: '{'.' * ALMOST}s'}}\n"),
        _mistake(3, "budget.wall_time:", "90s"),
    ),
    "as_large_as_allowed_bytes": (
        _text(f"resources: {{memory_per_worker: {'1' * ALMOST}GiB}}\n"),
        _mistake(3, "resources.memory_per_worker:"),
    ),
    "as_large_as_allowed_workload": (
        _raw(b"name: a\nworkload: " + b"a." * HALF),
        _mistake(2, "workload", "module:function"),
    ),
    "as_large_as_allowed_preset": (
        _text("search_space: " + "qu" * HALF + "\n"),
        _mistake(3, "search_space:", "communication, ddp, quick, transformer"),
    ),
    "as_large_as_allowed_field": (
        _text(f'? "{"k" * ALMOST}"\n: 1\n'),
        _mistake(3, "no such field"),
    ),
    "as_large_as_allowed_knob": (
        _text(f'search_space:\n  ? "{"m" * ALMOST}"\n  : 1\n'),
        _mistake(4, "no such knob"),
    ),
    "as_large_as_allowed_tag": (_text(f"seed: !<{'a' * ALMOST}> 1\n"), _mistake(3, "tag")),
    "as_large_as_allowed_anchor": (_text(f"seed: &{'a' * ALMOST} 1\n"), _mistake(3, "anchors")),
    "as_large_as_allowed_lines": (
        _text("\n" * ALMOST + "seed: -1\n"),
        _mistake(ALMOST + 3, "seed:"),
    ),
    "as_large_as_allowed_folds": (_text("seed: [" + "a\n" * HALF + "]\n"), _mistake(3, "seed:")),
    "very_many_fields": (
        _text("".join(f"seed{i}: 1\n" for i in range(MANY_FIELDS))),
        [Mistake(i + 3, (f"seed{i}:", "no such field")) for i in range(MANY_FIELDS)],
    ),
    "very_many_values": (
        _text(f"search_space: {{micro_batch: {[*range(1, MANY_VALUES), 0]}}}\n"),
        _mistake(3, f"search_space.micro_batch[{MANY_VALUES - 1}]:"),
    ),
    "very_many_nulls": (
        _text("search_space: {micro_batch: [" + "~," * MANY_VALUES + "]}\n"),
        [Mistake(3, (f"search_space.micro_batch[{i}]:",)) for i in range(MANY_VALUES)],
    ),
}


def _place(name: str, folder: Path) -> tuple[Path, list[Mistake]]:
    """The study file in the folder, and its mistakes."""
    path = folder / "study.yaml"
    if name not in GENERATED:
        path.write_bytes((FOLDER / f"{name}.yaml").read_bytes())
        return path, marked(name)
    write, mistakes = GENERATED[name]
    write(path)
    return path, mistakes


@dataclass(frozen=True)
class Outcome:
    """What came of checking a file. `error` is None if it was accepted."""

    path: str
    mistakes: list[Mistake]
    error: Exception | None
    seconds: float
    peak_growth: int

    def problems(self) -> list[str]:
        """The messages, one by one; none if the file was wrongly accepted."""
        if self.error is None:
            return []
        if not isinstance(self.error, SpecError):
            raise self.error
        return self.error.problems


OUTCOMES: dict[str, Outcome] = {}


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(f"bad study {name}"))
        for name in (*NAMES, *GENERATED)
    ]
)
def outcome(request: pytest.FixtureRequest, tmp_path: Path) -> Outcome:
    """What came of checking a file: each of the corpus, then each that is generated."""
    if request.param not in OUTCOMES:
        OUTCOMES[request.param] = _check(*_place(request.param, tmp_path))
    return OUTCOMES[request.param]


def _check(path: Path, mistakes: list[Mistake]) -> Outcome:
    before = _reset_peak_memory()
    error, seconds = _timed_load(path)
    growth = _peak_memory() - before
    return Outcome(str(path), mistakes, error, seconds, growth)


def _timed_load(path: Path) -> tuple[Exception | None, float]:
    started = time.process_time()
    try:
        config.load(path)
    except Exception as raised:
        return raised, time.process_time() - started
    return None, time.process_time() - started


def _reset_peak_memory() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return _peak_memory()


def _peak_memory() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def test_the_corpus_is_large_and_says_what_is_wrong():
    assert len(NAMES) + len(GENERATED) >= 200
    assert [name for name in NAMES if not marked(name)] == []


@pytest.mark.fault(18)
def test_every_mistake_is_told_once_with_its_line(outcome):
    problems, mistakes = outcome.problems(), outcome.mistakes
    shown = "\n".join(problem[:300] for problem in problems[:20])
    if len(mistakes) > 100:  # then the last message may say how many more there are
        assert mistakes[0].is_told_by(problems[0], outcome.path), shown
        assert len(problems) <= len(mistakes), f"more than one line for a mistake:\n{shown}"
        return
    for mistake in mistakes:
        told = [problem for problem in problems if mistake.is_told_by(problem, outcome.path)]
        assert len(told) == 1, f"{mistake} is not told, or twice:\n{shown}"
    assert len(problems) == len(mistakes), f"more than one line for a mistake:\n{shown}"


def test_every_message_is_one_readable_line(outcome):
    for problem in outcome.problems()[:100]:
        assert problem.isprintable(), ascii(problem[:300])
        assert len(problem) - len(outcome.path) <= LONGEST_MESSAGE, problem[:300]
        assert not _INTERNALS.search(problem), problem[:300]


@pytest.mark.fault(18)
def test_checking_takes_little_time_and_memory(outcome):
    assert outcome.seconds <= MOST_SECONDS
    assert outcome.peak_growth <= MOST_BYTES


COMMAND_NAMES = {
    "baseline_outside_domain",
    "budget_endless",
    "env_number",
    "field_misspelt",
    "field_with_escape_sequence",
    "global_batch_below_ranks",
    "global_batch_not_of_baseline",
    "name_with_slash",
    "launcher_address_moved",
    "resources_null",
    "several_fields",
    "space_unknown_knob",
    "top_list",
    "wall_time_two_dots",
    "workers_small_float",
    "workload_missing",
    "yaml_escape_beyond_unicode",
    "yaml_tag_python_call",
    "yaml_tab",
    "alias_bomb",
    "binary",
    "deep_brackets",
    "directory",
    "empty",
    "hexadecimal_giant",
    "missing_file",
    "ten_megabytes",
    "utf_16",
}
"""Of the others, `make faults` has them refused by the command, too."""


@pytest.mark.sample
@pytest.mark.fault(18)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in COMMAND_NAMES else pytest.mark.slow)
        for name in (*NAMES, *GENERATED)
    ],
)
def test_start_refuses_and_leaves_nothing_behind(name, tmp_path):
    path, mistakes = _place(name, tmp_path)
    before = _contents(tmp_path)

    run = ask("start", path.name, cwd=tmp_path)

    lines = run.stderr.removeprefix("error: ").splitlines()
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert len(lines) == len(mistakes), run.stderr
    for mistake, there in zip(mistakes, lines, strict=True):
        # Most are told in their order: of thousands, each is looked for there first.
        told = mistake.is_told_by(there, path.name)
        assert told or any(mistake.is_told_by(line, path.name) for line in lines), run.stderr
    assert "\x1b" not in run.stderr
    assert _contents(tmp_path) == before


def test_the_command_ends_with_status_two(tmp_path):
    """As a process of its own; the answers above came from this one."""
    path, (mistake,) = _place("workers_small_float", tmp_path)
    run = autotune("start", path.name, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stdout == ""
    assert mistake.is_told_by(run.stderr.strip().removeprefix("error: "), path.name)


STORAGES = {
    "no_url": "'my results'",
    "empty": "''",
    "other_database": "mysql://host/results",
    "missing_driver": "postgresql+asyncpg://localhost/results",
    "port_is_no_number": "postgresql://user:hunter2@host:port/results",
    "host_for_a_file": "sqlite://host/results.db",
    "in_memory": "'sqlite:///:memory:'",
    "missing_folder": "sqlite:///no/such/folder/results.db",
}


@pytest.mark.parametrize("url", STORAGES.values(), ids=STORAGES.keys())
def test_start_refuses_a_storage_that_cannot_be_used(url, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(f"{START}storage: {url}\n")

    run = ask("start", path.name, cwd=tmp_path)

    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    assert "hunter2" not in run.stderr
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert run.stderr.startswith("error: study.yaml:3: storage"), run.stderr
    assert "sqlite:///" in run.stderr or "folder" in run.stderr
    assert _contents(tmp_path) == {"study.yaml"}


@pytest.mark.parametrize("command", ["diagnose", "doctor"])
def test_other_commands_read_a_study_file_with_the_same_care(command, tmp_path):
    path, mistakes = _place("workers_small_float", tmp_path)

    run = ask(command, path.name, cwd=tmp_path)

    assert run.returncode == 2
    assert len(mistakes) == len(run.stderr.splitlines()) == 1, run.stderr
    assert mistakes[0].is_told_by(run.stderr.strip().removeprefix("error: "), path.name)
    assert _contents(tmp_path) == {"study.yaml"}


def _contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
