"""Records that a verdict is built from, and where they were measured."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from autotune.config import StudySpec
from storage import Attempts, Blocks, Purpose, Repository, StoredAttempt, StoredNoise

EnvironmentOf = Callable[[int], dict[str, Any] | None]
"""Returns the environment of an attempt by its id."""


@dataclass(frozen=True)
class Records:
    """Records of a study.

    Attributes:
        noise: newest run-to-run noise of the study; None if it has found none.
        environment_of: returns the environment of an attempt; None if it is unknown.
    """

    attempts: Attempts
    blocks: Blocks
    environment_of: EnvironmentOf
    noise: StoredNoise | None

    @classmethod
    def of(cls, repository: Repository, attempts: Attempts, study_id: int) -> Self:
        """Return attempts of a study with what a repository has of them."""
        environment_of, noise = repository.environments.of_attempt, repository.noise.of(study_id)
        return cls(attempts, repository.attempts.blocks, environment_of, noise)

    @property
    def world_size(self) -> int:
        """Number of devices that the first measured attempt used; 1 before there is one."""
        measured = self.attempts.measured().first
        return self.blocks(measured.id)[0].world_size if measured else 1

    @property
    def environment(self) -> dict[str, Any] | None:
        """Environment of the measurements, see `measured_in`."""
        return measured_in(self.attempts, self.environment_of)

    @property
    def device(self) -> str:
        """Kind of device of the measurements, "cuda" or "cpu"."""
        return "cuda" if (self.environment or {}).get("devices") else "cpu"

    @property
    def measured_on(self) -> str:
        """Name of the machine, and whether tokens may be padding; empty if nothing was timed."""
        found = self.environment
        if not found:
            return ""
        padded = ", tokens with padding" if self._padded() else ""
        return f"{machine_name(found)}{padded}"

    def _padded(self) -> bool:
        timed = (a for a in self.attempts if a.result.throughput is not None)
        first = next(timed, None)
        blocks = self.blocks(first.id) if first else []
        return any(block.observed.get("padded") for block in blocks)


def attempts_of(recorded: Iterable[StoredAttempt], spec: StudySpec) -> Attempts:
    """Return what is recorded of a study's attempts, to be asked by its settings."""
    keeps = spec.workload.keeps_global_batch
    return Attempts(recorded, spec.full_baseline(), spec.harmless, keeps_batch=keeps)


def measured_in(
    attempts: Iterable[StoredAttempt], environment_of: EnvironmentOf
) -> dict[str, Any] | None:
    """Return the environment that an answer rests on.

    That is the one of the last run of the confirmation, as only rounds of one environment count, or
    else of the last timed run; None if nothing was timed.
    """
    timed = [a for a in attempts if a.environment is not None and a.result.throughput is not None]
    confirmed = [a for a in timed if a.purpose == Purpose.CONFIRM]
    last = [*timed, *confirmed][-1:]
    return environment_of(last[0].id) if last else None


def nodes_of(environment: Mapping[str, Any]) -> int:
    """Return the number of machines of an environment."""
    return 1 + len(environment.get("others", ()))


def machine_name(environment: Mapping[str, Any]) -> str:
    """Return the devices of a machine, or its processor, with its kind, host name and PyTorch."""
    nodes = [environment, *environment.get("others", ())]
    names = [device["name"] for node in nodes for device in node.get("devices", ())]
    several = [f"{names.count(name)}x {name}" for name in dict.fromkeys(names)]
    what = " and ".join(several) or environment.get("cpu", "an unknown processor")
    kind = "GPU" if several else "CPU"
    hosts = ", ".join(dict.fromkeys(str(node.get("host", "?")) for node in nodes))
    return f"{what} ({kind}; {hosts}, PyTorch {environment.get('torch', '?')})"
