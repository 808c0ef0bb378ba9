"""Variables of the environment that act on any job: `export` lines for a shell."""

import shlex
from collections.abc import Mapping
from typing import Any

from autotune.config import arguments
from autotune.export.best import BestConfig
from autotune.export.formats.telling import Fields, Knobs, Rule, Said, told
from search_spaces import defaults

ACTING = (
    *("nccl_algo", "nccl_proto", "nccl_channels", "nccl_ctas", "nccl_registration"),
    *("cuda_connections", "expandable_segments", "cpu_threads"),
)
"""Knobs that libraries read from the environment."""


def env(best: BestConfig) -> Said:
    """`export NAME=value`, a line each. Of a script also the variables that it reads a knob from."""
    fields, unsaid = told(best, {**_acting(best), **_of_script(best)})
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in fields.items()]
    return Said("".join(lines), unsaid)


def _acting(best: BestConfig) -> dict[str, Rule]:
    # Of the ranks: where this runs there may be no NCCL.
    told = str(best.provenance.get("environment", {}).get("nccl") or "")
    nccl = tuple(int(part) for part in told.split(".") if part.isdigit()) or None
    return {name: _variables_of(name, nccl) for name in ACTING}


def _variables_of(name: str, nccl: tuple[int, ...] | None) -> Rule:
    def rule(value: Any, _: Knobs) -> Fields | None:
        if name == "cpu_threads":
            return {"OMP_NUM_THREADS": str(value)} if value else None
        from autotune.worker.effects import process  # with it comes torch

        # None of them: a variable cannot be exported away.
        return dict(process.environment({**defaults(), name: value}, nccl)) or None

    return rule


def _of_script(best: BestConfig) -> dict[str, Rule]:
    if best.script is None:
        return {}
    flags: Mapping[str, str] = best.script["flags"]
    return {
        name: _as_tried(name, flags, best.script["turned"])
        for name, flag in flags.items()
        if flag.startswith(arguments.ENVIRONMENT) and arguments.FIELD not in flag
    }


def _as_tried(name: str, flags: Mapping[str, str], turned: Mapping[str, Any]) -> Rule:
    """As the trials had it."""
    return lambda value, _: dict(arguments.variables(flags, {name: turned.get(name, value)}))
