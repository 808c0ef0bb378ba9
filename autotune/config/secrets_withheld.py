"""Parts of a study that may be stored: without its storage and values that look secret.

Only the names of such variables go into the database and beside recorded tables. Their values are
read again by these names whenever the study starts: from its study file, or the environment of its
daemon.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import autotune
from autotune.config import document
from autotune.config.study import StudySpec
from autotune.errors import BadInput, OtherVersion, SpecError

WITHHELD = "(not stored)"
"""Text in the place of such a value."""
_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "KEY")
_WHOLE = {"PAT", "PWD", "AUTH", "AUTHORIZATION"}
_LAST = "CONNECTION_STRING"
_SETTING = re.compile(r"\d{1,3}|true|false|yes|no|on|off", re.IGNORECASE)
"""Value behind a last word PASS that is no password."""
_FOLDERS = {"PWD", "OLDPWD"}
_MOST_NAMED = 4
"""Fields of another version that are named."""
_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def looks_secret(name: str, value: str = "") -> bool:
    """Return whether a variable may hold a secret.

    It does if a word of its name (separated by underscores) ends in token, secret, password,
    passwd, passphrase, credential or key, in secrets or credentials, or is auth, authorization, pat or
    pwd; if its last word is pass, and the value is no truth word and no number of at most three
    digits; if it ends in connection_string; or if its value is a URL with a password.
    """
    if name in _FOLDERS:
        return False
    words = name.upper().split("_")
    plural = ("SECRETS", "CREDENTIALS")
    named = any(word.endswith((*_WORDS, *plural)) or word in _WHOLE for word in words)
    is_pass = words[-1] == "PASS" and not _SETTING.fullmatch(value)
    return named or is_pass or name.upper().endswith(_LAST) or bool(_WITH_PASSWORD.search(value))


def kept(spec: StudySpec, *, all_fields: bool = True) -> dict[str, Any]:
    """Return the settings of a study that may be stored; JSON-ready.

    Args:
        all_fields: whether to include those at their defaults.
    """
    written = spec.model_dump(mode="json", exclude={"storage"}, exclude_defaults=not all_fields)
    if spec.env:
        turned = {flag.removeprefix("$") for flag in spec.flags.values()}  # which are knobs
        written["env"] = {
            name: WITHHELD if name not in turned and looks_secret(name, value) else value
            for name, value in spec.env.items()
        }
    return written


def as_stored(stored: Mapping[str, Any]) -> StudySpec:
    """Return the settings of a study without the values that were not stored.

    Args:
        stored: result of `kept`.

    Raises:
        OtherVersion: another version has stored settings that are none of this one.
    """
    try:
        return StudySpec.model_validate(stored)
    except ValidationError as error:
        fields = [".".join(map(str, one["loc"])) for one in error.errors()]
        more = ", ..." if len(fields) > _MOST_NAMED else ""
        raise OtherVersion(
            f"its settings are of another version of autotune: {autotune.__version__} does not know "
            f"{', '.join(fields[:_MOST_NAMED])}{more}; it runs once this is upgraded, and its daemon "
            "started again"
        ) from None


def restored(
    stored: Mapping[str, Any], file: Path | None, environment: Mapping[str, str]
) -> StudySpec:
    """Return the settings of a study with the values that were not stored.

    Args:
        stored: result of `kept`.
        file: of the study, searched first for the values; None if it is not known.
        environment: searched then.

    Raises:
        BadInput: a value is in neither of them.
        OtherVersion: another version has stored settings that are none of this one.
    """
    spec = as_stored(stored)
    lacking = [name for name, value in spec.env.items() if value == WITHHELD]
    if not lacking:
        return spec
    found = {**environment, **_written(file, spec.name)}
    if missing := [name for name in lacking if name not in found]:
        where = f"{file} and " if file else ""
        raise BadInput(
            f"env: {', '.join(missing)}: looks secret, so its value is not stored with the study; it is "
            f"read from {where}the environment of the daemon, by its name, and is not there: put it "
            f"there, then: autotune resume {spec.name}"
        )
    return spec.model_copy(update={"env": {**spec.env, **{n: found[n] for n in lacking}}})


def _written(file: Path | None, name: str) -> dict[str, str]:
    """Return the variables that a study file gives this study.

    They are none if the file is gone, or of another study now.
    """
    try:
        data = document.read(file).data if file and file.is_file() else None
    except (SpecError, OSError):
        return {}
    if not isinstance(data, dict) or data.get("name") != name:
        return {}
    env = data.get("env")
    return {n: v for n, v in env.items() if isinstance(v, str)} if isinstance(env, dict) else {}
