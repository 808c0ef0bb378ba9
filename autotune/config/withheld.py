"""What may be kept of a study: neither where it is stored nor the values of variables that look secret.

Only the names of such variables go into the database and beside recorded tables. Their values are read
again by these names whenever the study starts: from its study file, or the environment of its daemon.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.config import document
from autotune.config.study import StudySpec
from autotune.errors import BadInput, SpecError

WITHHELD = "(not stored)"
"""Stands for such a value."""
_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "KEY")
_ABBREVIATED = {"PAT", "PWD", "AUTH"}
_FOLDERS = {"PWD", "OLDPWD"}
_AGAIN = re.compile(r"(-\d{8}-\d{6})*$")
"""Behind the name of a study that was queued once more: see `autotune.service.resubmit`."""
_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable may hold a secret.

    That is so if a word of its name (underscores part them) ends in token, secret, password, passwd,
    passphrase, credential or key, in secrets or credentials, or is auth, pat or pwd; or if its value is
    a URL with a password.
    """
    if name in _FOLDERS:
        return False
    words = name.upper().split("_")
    plural = ("SECRETS", "CREDENTIALS")
    named = any(word.endswith((*_WORDS, *plural)) or word in _ABBREVIATED for word in words)
    return named or bool(_WITH_PASSWORD.search(value))


def kept(spec: StudySpec, *, all_fields: bool = True) -> dict[str, Any]:
    """The settings of a study as they may be written down; JSON-ready.

    Args:
        all_fields: those at their defaults, too.
    """
    written = spec.model_dump(mode="json", exclude={"storage"}, exclude_defaults=not all_fields)
    if spec.env:
        turned = {flag.removeprefix("$") for flag in spec.flags.values()}  # which are knobs
        written["env"] = {
            name: WITHHELD if name not in turned and looks_secret(name, value) else value
            for name, value in spec.env.items()
        }
    return written


def restored(
    stored: Mapping[str, Any], file: Path | None, environment: Mapping[str, str]
) -> StudySpec:
    """The settings of a study with the values that were not stored.

    Args:
        stored: what `kept` gave.
        file: the study's own, where they are looked for first; None if it is not known.
        environment: where they are looked for then.

    Raises:
        BadInput: a value is in neither of them.
    """
    spec = StudySpec.model_validate(stored)
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
    """The variables that a study file gives this study, or the one that it repeats; none if it is gone,
    or of another study now."""
    try:
        data = document.read(file).data if file and file.is_file() else None
    except (SpecError, OSError):
        return {}
    if not isinstance(data, dict) or data.get("name") not in (name, _AGAIN.sub("", name)):
        return {}
    env = data.get("env")
    return {n: v for n, v in env.items() if isinstance(v, str)} if isinstance(env, dict) else {}
