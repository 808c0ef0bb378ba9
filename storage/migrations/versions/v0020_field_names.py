"""Fields of study files, knobs and purposes under the names that their field has for them."""

import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

_STUDY = sa.table("autotune_study", sa.column("id"), sa.column("spec", sa.Text()))
_ATTEMPT = sa.table("autotune_attempt", sa.column("purpose"), sa.column("fault"))
_WORDS = {
    "loader_workers": "num_workers",
    "fsdp_keep": "fsdp_no_reshard",
    "global_batch": "global_batch_size",
    "least_gain": "min_improvement",
}
"""Knobs, values and names in records, wherever they stand in JSON."""
_OF_VERDICT = {
    "unchecked": "unverified",
    "long_run": "soak",
    "long_failure": "soak_failure",
    "left_out": "unmeasured_leader",
}
_JSON = {
    ("autotune_study", "facts"): _WORDS,
    ("autotune_study", "verdict"): _WORDS | _OF_VERDICT,
    ("autotune_study", "standing"): _WORDS,
    ("autotune_attempt", "knobs"): _WORDS,
    ("autotune_recommendation", "body"): _WORDS | {"over_all_ranks": "global_flags"},
    ("autotune_message", "data"): _WORDS,
    ("trial_params", "distribution_json"): _WORDS,
    ("trial_system_attributes", "value_json"): _WORDS,
}
"""Columns with such JSON; the last two tables are Optuna's."""
_PARAMS = sa.table("trial_params", sa.column("param_name"))
_PURPOSES = {"attribute": "ablation", "long": "soak"}
_FIELDS = {
    "resources": {"slots": "max_concurrent_trials"},
    "objective": {"global_batch": "global_batch_size", "job_hours": "expected_job_hours"},
    "budget": {"least_gain": "min_improvement"},
    "measurement": {
        "longest": "max_measure_time",
        "search_precision": "search_ci_half_width",
        "confirm_precision": "confirm_ci_half_width",
        "attribution": "ablation_rounds",
        "unchecked_numerics": "unverified_numerics",
        "startup_deadline": "startup_timeout",
        "step_deadline": "step_timeout",
    },
    "workload": {"over_all_ranks": "global_flags"},
}
"""Renamed fields of each section of a study."""
_VALUES: dict[tuple[str, str], dict[Any, str]] = {
    ("objective", "global_batch_size"): {"keep": "fixed", None: "free"},
    ("objective", "batch_dependent"): {"refuse": "reject"},
    ("measurement", "unverified_numerics"): {"refuse": "reject"},
}
_OF_KNOBS = {"search_space", "baseline"}
"""Parts of a study that are of knobs and their values."""
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b")
_PLACEHOLDER = re.compile(rf"(?<={{)({'|'.join(_WORDS)})(?=}})")


def upgrade() -> None:
    """Rename fields in stored studies, and words in the JSON of all records."""
    connection = op.get_bind()
    for study, spec in connection.execute(sa.select(_STUDY.c.id, _STUDY.c.spec)).all():
        renamed = _STUDY.update().where(_STUDY.c.id == study)
        connection.execute(renamed.values(spec=json.dumps(_renamed(json.loads(spec)))))
    there = sa.inspect(connection).get_table_names()
    for (table, column), words in _JSON.items():
        if table in there:
            _replace_words(table, column, words)
    if _PARAMS.name in there:
        named = _PARAMS.update().where(_PARAMS.c.param_name == "loader_workers")
        op.execute(named.values(param_name="num_workers"))
    for before, after in _PURPOSES.items():
        of_purpose = _ATTEMPT.update().where(_ATTEMPT.c.purpose == before)
        op.execute(of_purpose.values(purpose=after))
    op.execute(_ATTEMPT.update().where(_ATTEMPT.c.fault == "turns").values(fault="interleaved"))


def _replace_words(table: str, column: str, words: dict[str, str]) -> None:
    """Replace each word where it is a whole text of JSON."""
    rows = sa.table(table, sa.column(column, sa.Text()))
    for before, after in words.items():
        has_it = rows.c[column].like(f'%"{before}"%')
        replaced = sa.func.replace(rows.c[column], f'"{before}"', f'"{after}"')
        op.execute(rows.update().where(has_it).values({column: replaced}))


def _renamed(study: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a study with today's names."""
    found = {name: _section(name, value) for name, value in _with_launcher(study).items()}
    for name in _OF_KNOBS & found.keys():
        found[name] = _with_words(found[name])
    if "constraints" in found:
        found["constraints"] = [_WORD.sub(_today, rule) for rule in found["constraints"]]
    return found


def _with_launcher(study: dict[str, Any]) -> dict[str, Any]:
    """Return a study with a section of its launcher, whose address once stood beside its name."""
    if "ray_address" not in study:
        return study
    rest = {name: value for name, value in study.items() if name != "ray_address"}
    address = study["ray_address"]
    return rest if address is None else {**rest, "launcher": {"kind": "ray", "address": address}}


def _section(section: str, given: Any) -> Any:
    if section not in _FIELDS or not isinstance(given, dict):
        return given
    names = _FIELDS[section]
    found = {str(names.get(name, name)): value for name, value in given.items()}
    for (of, name), words in _VALUES.items():
        if of == section and found.get(name, 0) in words:
            found[name] = words[found[name]]
    return {**found, **_of_workload(found)} if section == "workload" else found


def _of_workload(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a workload that name knobs; arguments and options are the user's words."""
    found = {
        "flags": _with_names(given.get("flags")),
        "words": _with_names(given.get("words")),
        "global_flags": _with_words(given.get("global_flags")),
        "command": [_PLACEHOLDER.sub(_today, word) for word in given.get("command") or []],
    }
    return {name: value for name, value in found.items() if name in given}


def _today(found: re.Match[str]) -> str:
    return _WORDS[found[0]]


def _with_words(value: Any) -> Any:
    """Return a value of JSON with today's words in place of whole texts."""
    if isinstance(value, dict):
        return {_with_words(name): _with_words(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_words(one) for one in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value


def _with_names(value: Any) -> Any:
    """Return a value of JSON with today's words as names alone."""
    if not isinstance(value, dict):
        return value
    return {_WORDS.get(name, name): _with_names(one) for name, one in value.items()}
