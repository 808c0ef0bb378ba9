"""Study files without a mistake, of any content, and what comes of reading a text as one."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings
from hypothesis import strategies as st

from autotune import config
from autotune.errors import SpecError
from search_spaces import CATALOGUE, preset_names
from search_spaces.knob import Choice
from tests.support.steering import tiny_study

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*.yaml"))
TEMPLATE = ROOT / "autotune" / "study_template.yaml"
THOROUGH = settings(max_examples=200)

BARE = {"name": "a", "workload": "gpt"}


def load_text(folder: Path, text: str) -> config.StudySpec:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return config.load(path)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_text(folder, text)
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


START = "name: a\nworkload: gpt\n"

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Co", "Cn"])).map(
    lambda text: f"v{text}"  # `1e5` is a number to our reader, but not to the library that writes
)
SECONDS = st.floats(min_value=1e-3, max_value=1e9) | st.integers(1, 10**9)
FRACTIONS = st.floats(min_value=1e-6, max_value=1, exclude_max=True)


def knob_values(name: str) -> st.SearchStrategy[Any]:
    domain = CATALOGUE[name].domain
    if isinstance(domain, Choice):
        return st.sampled_from(domain.values)
    whole = st.integers(math.ceil(domain.low), int(domain.high))
    return whole if domain.integer else whole | st.floats(domain.low, domain.high)


def space_of(names: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: st.lists(knob_values(name), min_size=1, max_size=4, unique=True) for name in names}
    )


SPACES = st.sampled_from(preset_names()) | st.sets(
    st.sampled_from(sorted(CATALOGUE)), min_size=1
).flatmap(space_of)
BASELINES = st.fixed_dictionaries({}, optional={name: knob_values(name) for name in CATALOGUE})
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
WORKLOADS = st.sampled_from(["gpt", "transformer", "tiny:build", "my.package.train:_make"])
LAUNCHERS = st.fixed_dictionaries(
    {},
    optional={
        "launcher": st.sampled_from(["local", "ray", {"kind": "local"}, {"kind": "ray"}])
        | st.just({"kind": "ray", "address": "auto"})
    },
)
RESOURCES = st.fixed_dictionaries(
    {},
    optional={
        "workers": st.integers(1, 65536) | st.just("auto"),
        "gpus_per_worker": st.none() | st.integers(0, 1) | st.floats(0, 1),
        "cpus_per_worker": st.integers(1, 4096),
        "memory_per_worker": st.none() | st.integers(2**20, 2**50) | st.just("4GiB"),
        "max_concurrent_trials": st.none() | st.integers(1, 10_000),
    },
)
BUDGETS = st.fixed_dictionaries(
    {"trials": st.integers(1, 10**6)},
    optional={
        "wall_time": SECONDS | st.just("30m"),
        "device_hours": st.floats(min_value=1e-3, max_value=1e9),
    },
)
MEASUREMENTS = st.fixed_dictionaries(
    {},
    optional={
        "block_seconds": SECONDS,
        "min_steps": st.integers(1, 10_000),
        "warmup": SECONDS | st.just("20s"),
        "max_measure_time": SECONDS,
        "search_ci_half_width": FRACTIONS,
        "confirm_ci_half_width": FRACTIONS,
        "finalists": st.integers(1, 20),
        "rounds": st.integers(2, 50),
        "startup_timeout": SECONDS,
        "step_timeout": SECONDS,
    },
)


@st.composite
def studies(draw: st.DrawFn) -> dict[str, Any]:
    """A study file's content without a mistake."""
    study = tiny_study(
        name=draw(NAMES),
        workload=draw(
            WORKLOADS
            | st.fixed_dictionaries(
                {"name": WORKLOADS},
                optional={"args": st.dictionaries(NAMES, JSON_VALUES, max_size=3)},
            )
        ),
        resources=draw(RESOURCES),
        search_space=draw(SPACES),
        baseline=draw(BASELINES),
        budget=draw(BUDGETS),
        measurement=draw(MEASUREMENTS),
        sampler=draw(st.sampled_from(["model", "tpe", "gp", "random", "grid"])),
        env=draw(st.dictionaries(NAMES, WORDS, max_size=3)),
        seed=draw(st.integers(0, 2**31 - 1)),
        export=draw(WORDS),
        **draw(LAUNCHERS),
    )
    if draw(st.booleans()):
        workers = draw(st.integers(1, 64))
        baseline = {"micro_batch": 8, "accumulation_steps": 1, **study["baseline"]}
        study["resources"]["workers"] = workers
        study["objective"] = {
            "metric": draw(st.sampled_from(["samples_per_second", "tokens_per_second"])),
            "global_batch_size": draw(
                st.just(baseline["micro_batch"] * baseline["accumulation_steps"] * workers)
                | st.sampled_from(["fixed", "free"])
            ),
        }
    return json.loads(json.dumps(study))  # no list twice: YAML would write it as an alias


def as_json(study: Any) -> str:
    return json.dumps(study, indent=1, ensure_ascii=False)


def as_yaml(study: Any) -> str:
    """Strings in quotes: PyYAML leaves them off where YAML 1.1 would not see a number but 1.2 does."""
    return yaml.dump(study, Dumper=_Quoting, allow_unicode=True)


class _Quoting(yaml.SafeDumper):
    pass


_Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def exact(value: Any) -> str:
    """Comparable without mercy: True == 1 == 1.0 in Python, but not to a trainer."""
    return json.dumps(value, sort_keys=True)
