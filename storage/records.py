"""What the repository gives and takes: plain frozen records, never live database objects."""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_KEY_LETTERS = 8


class StudyState(StrEnum):
    """Where a study stands."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        """Whether no daemon will touch it unless somebody asks."""
        return self not in (StudyState.QUEUED, StudyState.RUNNING)


@dataclass(frozen=True)
class Lease:
    """The right to run the studies of one cluster. A higher epoch takes it from a lower one.

    Attributes:
        predecessor: process id of who had it before on the same host.
        predecessor_started: see storage.holders; None if that is not known.
        token: of this holder alone: a database that was restored may give out an epoch again.
    """

    cluster: str
    epoch: int
    predecessor: int | None = None
    predecessor_started: int | None = None
    token: str | None = None


@dataclass(frozen=True)
class LeaseState:
    """Who holds, or last held, a cluster's lease."""

    cluster: str
    epoch: int
    host: str
    pid: int
    seconds_left: float
    """Negative once it has run out, by the database's clock."""
    gone: bool = False
    """Its process is known to be dead."""

    @property
    def machine(self) -> str:
        """The host's name."""
        return self.host.split()[0]


@dataclass(frozen=True)
class StoredStudy:
    """A study as submitted, and where it stands. Times are seconds since the epoch."""

    id: int
    name: str
    cluster: str
    spec: dict[str, Any]
    workdir: str
    state: StudyState
    stop_requested: bool
    error: str | None
    verdict: dict[str, Any] | None
    facts: dict[str, Any] | None
    """search_spaces.Facts of the machine that it runs on; None before it has run."""
    search_ended: str | None
    """Why, in words; None while it goes on."""
    elapsed: float
    created: float
    retry_at: float | None = None
    """Queued, but not to be claimed before then, by the database's clock: `error` says why."""
    retries: int = 0
    """How many tries in a row have failed."""
    file: str | None = None
    """That its settings are from, where it is known."""

    @property
    def key(self) -> str:
        """What tells it from others of its name, in another database or in one that is no more."""
        return hashlib.sha256(f"{self.id} {self.created!r}".encode()).hexdigest()[:_KEY_LETTERS]


@dataclass(frozen=True)
class Retry:
    """Why a study could not run, and when it is to be tried again.

    Attributes:
        seconds: from now.
        count: of tries in a row that have failed, this one among them.
    """

    why: str
    seconds: float
    count: int


class Purpose(StrEnum):
    """What an attempt is for."""

    SEARCH = "search"
    CALIBRATE = "calibrate"
    """The baseline once more, in new processes: how far do equal runs lie apart?"""
    PACE = "pace"
    """The baseline beside a trial of the search, with which it takes turns: that trial is its round."""
    REFERENCE = "reference"
    """A loss trajectory of the baseline in fp32."""
    NUMERICS = "numerics"
    """A loss trajectory of a finalist, to be held against a reference."""
    CONFIRM = "confirm"
    LONG = "long"
    """The chosen one, or the baseline, for minutes: does its speed stay?"""
    ATTRIBUTE = "attribute"
    """The winner, whole or with one knob back at the baseline: what does each knob bring?"""
    PROFILE = "profile"
    """A few steps under the profiler, to see what a step is made of."""
    FIT = "fit"
    """A few steps of the baseline with a larger micro-batch: does it fit in memory?"""
    EPOCHS = "epochs"
    """A few steps of a finalist whose loader workers stay, in short epochs: do they see all changes?"""
    LONGEST = "longest"
    """A few steps of the chosen one on the longest samples of its data: does it still fit?"""


class AttemptState(StrEnum):
    """How an attempt stands, or ended."""

    RUNNING = "RUNNING"
    ABANDONED = "ABANDONED"
    """Its daemon died, or the study was stopped; to be repeated."""
    LOST = "LOST"
    """Its agent died; to be repeated."""
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    """Ended early: it could not catch up with the best."""
    OOM = "OOM"
    HANG = "HANG"
    CRASH = "CRASH"
    ERROR = "ERROR"
    REFUSED = "REFUSED"
    """A loss trajectory that leaves its reference."""

    @property
    def recorded(self) -> bool:
        """Whether it is a result: the attempt is neither under way, nor given up, nor lost."""
        return self not in (AttemptState.RUNNING, AttemptState.ABANDONED, AttemptState.LOST)


NOT_ITS_OWN = "not of its own making: "
"""Beginning of the cause of an attempt that was lost with its node or its cluster: it counts against
nothing."""
DAEMON_DIED = "its daemon died"
"""Cause of an attempt that was given up for that, and not because somebody wanted it."""

TRAJECTORIES = (Purpose.REFERENCE, Purpose.NUMERICS)
"""Attempts whose blocks are single steps, to be compared and not to be timed."""

UNTIMED = (*TRAJECTORIES, Purpose.PROFILE, Purpose.FIT, Purpose.EPOCHS, Purpose.LONGEST)
"""Attempts that say nothing about speed."""


@dataclass(frozen=True)
class StoredNoise:
    """Run-to-run noise as a study found it.

    Attributes:
        sigma_run: relative standard deviation between runs in new processes, blocks' own scatter
            taken out.
        runs: how many it rests on.
        drift_per_hour: relative change of the throughput of equal runs; None if not known.
    """

    sigma_run: float
    runs: int
    drift_per_hour: float | None


@dataclass(frozen=True)
class AttemptResult:
    """What came of one attempt.

    Attributes:
        throughput: of the study's objective, per second; None if nothing usable was measured.
        half_width: relative half-width of its 95 % interval, scatter of blocks and of runs together;
            None as above.
        block_half_width: the same, of the blocks alone.
        block_freedom: degrees of freedom of Student's t in that; None if not known.
        sigma_run: relative standard deviation between runs, as it was known at the time.
        contended: blocks count that others disturbed, because all repetitions were disturbed too.
        resident_of: id of the attempt whose processes it ran in, after that one; None: in its own.
    """

    state: AttemptState
    cause: str = ""
    log_tail: str = ""
    throughput: float | None = None
    half_width: float | None = None
    block_half_width: float | None = None
    block_freedom: float | None = None
    sigma_run: float | None = None
    contended: bool = False
    steady: bool = True
    peak_bytes: int = 0
    wall_seconds: float = 0.0
    resident_of: int | None = None


@dataclass(frozen=True)
class StoredBlock:
    """One timed block of an attempt, as measured."""

    index: int
    steps: int
    samples: int
    tokens: int
    seconds: float
    rank_seconds: list[float]
    wait_seconds: float
    loss: float
    peak_bytes: int
    kept: bool
    """False: warm-up, or disturbed and repeated; not part of the estimate."""
    contended: bool = False
    """Others disturbed it."""
    observed: dict[str, Any] = field(default_factory=dict)
    """See autotune.worker.protocol.Observed."""

    @property
    def workers(self) -> int:
        """Devices (on the CPU: shares of it) that worked together, over all ranks."""
        return len(self.rank_seconds) * int(self.observed.get("replicas", 1))


@dataclass(frozen=True)
class Recommended:
    """What a study has recommended.

    Attributes:
        study: its name.
        spec: as it was submitted.
        body: the content of best.yaml.
    """

    study: str
    spec: dict[str, Any]
    body: dict[str, Any]


class MessageKind(StrEnum):
    """What a message tells."""

    SAID = "said"
    """Something that has happened, or why."""
    WAITING = "waiting"
    """Whom the study waits for."""
    DOING = "doing"
    """How far what runs has come: one message, written over whenever that changes."""
    SLOTS = "slots"
    """How many slots can work, see autotune.study.alive: one message, written over as well."""


@dataclass(frozen=True)
class Summary:
    """Where a study stands, as the database counts it.

    Attributes:
        searched: recorded trials of the search, by how they ended.
        running: attempts under way.
        confirming: round of the confirmation that was begun last; 0 before there is one.
        first: the complete run of the first trial; None while there is none.
        best: the complete run with the highest throughput; None while there is none.
    """

    searched: dict[AttemptState, int]
    running: int
    confirming: int
    first: "StoredAttempt | None"
    best: "StoredAttempt | None"


@dataclass(frozen=True)
class StoredMessage:
    """What the daemon had to say, and when."""

    number: int
    at: float
    text: str
    kind: MessageKind = MessageKind.SAID


@dataclass(frozen=True)
class StoredAttempt:
    """One execution of a trial.

    Attributes:
        trial: Optuna's number.
        round: of a comparison in turn (purposes CONFIRM and ATTRIBUTE); number of the seed
            (REFERENCE and NUMERICS); trial of the search (PACE); 0 elsewhere.
        attempt: from 1, among those of the same trial, purpose and round.
        started: seconds since the epoch, by the database's clock; so is `ended`.
    """

    id: int
    trial: int
    purpose: Purpose
    round: int
    attempt: int
    knobs: dict[str, Any]
    started: float
    ended: float | None
    result: AttemptResult
    environment: int | None = None
    """Id of where it ran, once it has ended."""

    @property
    def name(self) -> str:
        """Of the attempt within its study, also of its folder: `<trial>-<purpose><round>-<attempt>`."""
        return f"{self.trial}-{self.purpose}{self.round or ''}-{self.attempt}"

    @property
    def running(self) -> bool:
        """Whether it has not been recorded yet."""
        return self.result.state == AttemptState.RUNNING

    @property
    def recorded(self) -> bool:
        """Whether it has a result of its own: it was neither given up nor lost with its agent."""
        return self.result.state.recorded
