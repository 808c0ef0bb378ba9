"""Where a study's answer was measured."""

from collections.abc import Iterable, Mapping
from typing import Any

from storage import Attempts, Purpose, Repository, StoredAttempt


def measured_in(repository: Repository, attempts: Iterable[StoredAttempt]) -> dict[str, Any] | None:
    """The environment that an answer rests on: that of the last run of the confirmation, as only rounds
    of one environment count, or else of the last run that was timed.

    Returns:
        None if nothing has been timed.
    """
    timed = [a for a in attempts if a.environment is not None and a.result.throughput is not None]
    confirmed = [a for a in timed if a.purpose == Purpose.CONFIRM]
    last = [*timed, *confirmed][-1:]
    return repository.environments.of_attempt(last[0].id) if last else None


def measured_on(repository: Repository, attempts: Attempts) -> str:
    """Say where an answer was measured, and whether in tokens that may be padding; empty if nothing has
    been timed."""
    found = measured_in(repository, attempts)
    if not found:
        return ""
    padded = ", tokens with padding" if _padded(repository, attempts) else ""
    return f"{in_words(found)}{padded}"


def _padded(repository: Repository, attempts: Attempts) -> bool:
    timed = (a for a in attempts if a.result.throughput is not None)
    first = next(timed, None)
    blocks = repository.attempts.blocks(first.id) if first else []
    return any(block.observed.get("padded") for block in blocks)


def in_words(environment: Mapping[str, Any]) -> str:
    """A machine: its devices, or its processor where it has none, its name, its PyTorch."""
    nodes = [environment, *environment.get("others", ())]
    names = [device["name"] for node in nodes for device in node.get("devices", ())]
    several = [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
    what = " and ".join(several) or environment.get("cpu", "a CPU")
    hosts = ", ".join(dict.fromkeys(str(node.get("host", "?")) for node in nodes))
    return f"{what} ({hosts}, PyTorch {environment.get('torch', '?')})"
