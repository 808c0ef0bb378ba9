"""Records of the repository: plain and frozen, never live database objects."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.paths import StudyPaths

_KEY_LETTERS = 8


class StudyState(StrEnum):
    """State of a study."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"

    @property
    def ended(self) -> bool:
        """True if no daemon will touch the study unless it is resumed."""
        return self not in (StudyState.QUEUED, StudyState.RUNNING)


@dataclass(frozen=True)
class Lease:
    """The right to write of one study, or of a daemon to be the one that its queue is known by.

    A higher epoch takes it from a lower one.

    Attributes:
        key: what it is for: `study:ID`, or the name of a queue.
        predecessor: id of the process that held it before on the same host; None if there was none.
        predecessor_started: start time of that process, see storage.host; None if unknown.
        token: identifies this holder, as a restored database may give out an epoch again.
    """

    key: str
    epoch: int
    predecessor: int | None = None
    predecessor_started: int | None = None
    token: str | None = None


@dataclass(frozen=True)
class LeaseState:
    """Present or last holder of a lease."""

    key: str
    epoch: int
    host: str
    pid: int
    seconds_left: float
    """Negative once the lease has expired, by the database's clock."""
    gone: bool = False
    """True if the holder's process is known to be dead."""

    @property
    def machine(self) -> str:
        """Name of the host."""
        return self.host.split()[0]


@dataclass(frozen=True)
class LeaseHolder:
    """Process that takes leases.

    Attributes:
        host: value of storage.host.this_host.
        seconds: duration of its leases.
    """

    host: str
    pid: int
    seconds: float


@dataclass(frozen=True)
class StoredStudy:
    """A study as submitted, with its progress. Times are seconds since the epoch."""

    id: int
    name: str
    queue: str
    spec: dict[str, Any]
    workdir: str
    state: StudyState
    stop_requested: bool
    error: str | None
    verdict: dict[str, Any] | None
    facts: dict[str, Any] | None
    """search_spaces.Facts of the machine that the study runs on; None before it has run."""
    search_ended: str | None
    """Reason why the search ended; None while it goes on."""
    elapsed: float
    created: float
    retry_at: float | None = None
    """Earliest time of the next try of a queued study, by the database's clock; `error` has the
    reason."""
    retries: int = 0
    """Number of tries in a row that have failed."""
    file: str | None = None
    """File with the study's settings; None if unknown."""
    owner: str = ""
    """Account that has submitted it; empty if unknown."""
    priority: int = 0
    """Studies of a higher priority come first."""
    held: bool = False
    """True if no daemon may begin it before it is released."""
    standing: dict[str, Any] | None = None
    """Where it stood when its daemon last stored that, with what it rests on; None: it did not."""

    @property
    def key(self) -> str:
        """Identifier that differs from that of any other study, even one of the same name.

        The other may be in another database, or in one that no longer exists.
        """
        return hashlib.sha256(f"{self.id} {self.created!r}".encode()).hexdigest()[:_KEY_LETTERS]

    @property
    def paths(self) -> StudyPaths:
        """Folders of its output."""
        return StudyPaths(Path(self.workdir), self.name, self.key)


@dataclass(frozen=True)
class Claim:
    """A study that a daemon has taken to run, and its lease."""

    study: StoredStudy
    lease: Lease


@dataclass(frozen=True)
class Retry:
    """Reason why a study could not run, and time of the next try.

    Attributes:
        seconds: time until the next try.
        count: number of tries in a row that have failed, this one included.
    """

    why: str
    seconds: float
    count: int


class EventKind(StrEnum):
    """Change of a study that its history tells."""

    SUBMITTED = "submitted"
    RESUMED = "resumed"
    """Queued again on request."""
    MOVED = "moved"
    """Put into another queue. Detail: the queue."""
    PRIORITY = "priority"
    """Detail: the new one."""
    HELD = "held"
    RELEASED = "released"
    STOP_REQUESTED = "stop requested"
    STOPPED = "stopped"
    DELETED = "deleted"
    BEGUN = "begun"
    """Claimed by a daemon; after a try that failed, once it can run there. Detail: the process."""
    TAKEN_OVER = "taken over"
    """Claimed while it ran: its daemon had died. Detail: the new process and the one before."""
    REQUEUED = "requeued"
    """Put back into the queue by its daemon. Detail: the reason, if it is to be tried later."""
    DONE = "done"
    FAILED = "failed"
    """Detail: the error."""


@dataclass(frozen=True)
class StoredEvent:
    """An event of a study.

    Attributes:
        at: seconds since the epoch, by the database's clock.
        study_id: id of the study: a later one may have the name of a deleted one.
        account: account of the process that wrote it.
        role: session user of PostgreSQL; None on SQLite.
        command: command of autotune that wrote it.
        what: an EventKind, or one of a later version.
    """

    id: int
    at: float
    study: str
    study_id: int
    account: str
    role: str | None
    host: str
    version: str
    command: str
    what: str
    detail: str


@dataclass(frozen=True)
class Quota:
    """Limits of what the studies of an owner may take; None: no limit.

    Attributes:
        studies: number of studies that run at a time.
        device_hours: device hours of attempts in the last `days`.
        weight: of the owner's share of a cluster, relative to other owners; None: 1.
    """

    owner: str
    studies: int | None = None
    device_hours: float | None = None
    days: float = 1.0
    weight: float | None = None

    @property
    def is_set(self) -> bool:
        """True if it has a limit or a weight."""
        return any(one is not None for one in (self.studies, self.device_hours, self.weight))


class Purpose(StrEnum):
    """Purpose of an attempt."""

    SEARCH = "search"
    CALIBRATE = "calibrate"
    """The baseline again, to measure how far equal runs lie apart."""
    PAIRED = "paired"
    """The baseline interleaved with a trial of the search."""
    REFERENCE = "reference"
    """A loss trajectory of the baseline in fp32."""
    AUTOCAST = "autocast"
    """First steps of that reference under torch.autocast in bf16: how far rounding deviates its
    gradient."""
    NUMERICS = "numerics"
    """A loss trajectory of a finalist, to be compared with a reference."""
    CONFIRM = "confirm"
    REPEAT = "repeat"
    """The baseline once more in new processes, besides the rounds: its processes lie far apart."""
    SOAK = "soak"
    """A soak run of the chosen configuration or the baseline, for minutes, to see whether its speed
    lasts."""
    ABLATION = "ablation"
    """The winner, complete or with one knob back at the baseline's value."""
    PROFILE = "profile"
    """A few steps under the profiler, for the composition of a step."""
    FIT = "fit"
    """A few steps of the baseline with a larger micro-batch, to see whether it fits in memory."""
    EPOCHS = "epochs"
    """A few steps of a finalist with persistent loader workers, in short epochs, to see whether they
    follow changes of the dataset."""
    LONGEST = "longest"
    """A few steps of the chosen configuration on the longest samples, to see whether it still
    fits."""


class AttemptState(StrEnum):
    """State of an attempt."""

    RUNNING = "RUNNING"
    ABANDONED = "ABANDONED"
    """To be repeated: the daemon died, or the study was stopped."""
    LOST = "LOST"
    """To be repeated: it says nothing about its configuration, as the agent died or the disk was full.
    """
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    """Ended early: too slow to be the best, or by its time, before it had shown anything."""
    OOM = "OOM"
    HANG = "HANG"
    CRASH = "CRASH"
    ERROR = "ERROR"
    POWER = "POWER"
    """Its devices took more power than the study allows."""
    REFUSED = "REFUSED"
    """A loss trajectory that leaves its reference, or is none that others can be compared with."""

    @property
    def recorded(self) -> bool:
        """True if it is a result: the attempt is neither running, nor abandoned, nor lost."""
        return self not in (AttemptState.RUNNING, AttemptState.ABANDONED, AttemptState.LOST)

    @property
    def ended_well(self) -> bool:
        """True for an end that is no failure."""
        return self in (AttemptState.COMPLETE, AttemptState.PRUNED)

    @property
    def may_pass(self) -> bool:
        """True for a failure of which a connection or a node may be the reason."""
        return self in (AttemptState.ERROR, AttemptState.CRASH, AttemptState.HANG)


class Fault(StrEnum):
    """Part of the system that the failure of an attempt is attributed to."""

    TRIAL = "trial"
    """The attempt itself: its configuration, its script, or an agent that died under it."""
    INTERLEAVED = "interleaved"
    """The attempt itself, or one that took turns with it on the same devices."""
    WORKER = "worker"
    """The warm worker of another attempt that it reused."""
    NODE = "node"
    """Its node or its cluster, which stalled or was lost."""
    DAEMON = "daemon"
    """The daemon, which died."""
    DISK = "disk"
    """A disk without room."""
    STUDY = "study"
    """The study, which says something else of its script than the script does."""

    @property
    def excuses(self) -> bool:
        """True if such a failure by itself counts against no configuration."""
        return self in (Fault.WORKER, Fault.NODE)


TRAJECTORIES = (Purpose.REFERENCE, Purpose.AUTOCAST, Purpose.NUMERICS)
"""Attempts whose blocks are single steps, to be compared and not to be timed."""

SOFTWARE = ("autotune", "python", "torch")
"""Entries of an environment that name what trains: they are the same on all nodes of a study."""

CHECKS = (*TRAJECTORIES, Purpose.EPOCHS, Purpose.LONGEST)
"""Attempts that show whether a finalist trains as it should: by the software that trained it."""

TRIAL_RUNS = (Purpose.SEARCH, Purpose.CALIBRATE)
"""Attempts that run as trials do: the trials of the search, and the baseline again. The noise is that
of trials as they are: where these take over warm workers, the baseline does as well."""

SEARCH_RUNS = (*TRIAL_RUNS, Purpose.PAIRED)
"""Timed attempts of the search: its trials, and the baseline beside them and again."""

COMPARED_RUNS = (Purpose.CONFIRM, Purpose.REPEAT, Purpose.ABLATION)
"""Timed attempts that are compared after the search, if they ran in one environment."""

UNTIMED = (*CHECKS, Purpose.PROFILE, Purpose.FIT)
"""Attempts that say nothing about speed."""


@dataclass(frozen=True)
class StoredNoise:
    """Run-to-run noise as a study found it.

    Attributes:
        sigma_run: relative standard deviation between runs, without the scatter of
            blocks.
        drift_per_hour: relative change of the throughput of equal runs; None if unknown.
    """

    sigma_run: float
    runs: int
    drift_per_hour: float | None


@dataclass(frozen=True)
class AttemptResult:
    """Result of one attempt.

    Attributes:
        throughput: units of the study's objective per second (per joule where that is the objective), as
            trials are compared by it; None if nothing usable was measured.
        raw_throughput: as its own blocks have it, where `throughput` follows from `ratio`.
        ratio: over the baseline interleaved with it; `throughput` is this times the rate of the
            baseline's own trial. None: it ran without one.
        half_width: relative half-width of its 95 % interval, from blocks and runs together; None
            likewise.
        block_half_width: relative half-width of the 95 % interval from the blocks alone.
        block_freedom: degrees of freedom of Student's t in `block_half_width`; None if unknown.
        sigma_run: relative standard deviation between runs, as estimated at that time.
        contended: True if disturbed blocks count, because all repetitions were disturbed too.
        resident_of: id of the attempt whose worker processes it reused; None: it had its own.
        fault: what a failure is attributed to; meaningless where nothing failed.
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
    raw_throughput: float | None = None
    ratio: float | None = None
    fault: Fault = Fault.TRIAL

    @property
    def rate(self) -> float | None:
        """Units per second or joule as measured; None if nothing usable was."""
        return self.throughput if self.raw_throughput is None else self.raw_throughput

    @property
    def may_pass(self) -> bool:
        """True for a failure that another run may not have: one of the finals is repeated once."""
        return self.state.may_pass and self.fault != Fault.STUDY


@dataclass(frozen=True)
class RunDigest:
    """Observations in a run besides its rate, by the blocks that count; None: not observed.

    Attributes:
        steps: number of steps that count.
        disturbed_share: share of the blocks after the warm-up that other processes disturbed.
        foreign_cpu: share of a node's processors that other processes took, mean.
        clock_mhz: clock of the slowest device, median.
        watts: power of all devices together, mean.
        sample_joules: energy of a sample, all devices together.
        step_mean: seconds of a step: of the slowest rank, as the next two.
        step_median: median over blocks of the median within one.
        step_p95: 95th percentile.
        step_correlation: correlation of neighbouring steps, where they were timed one by one.
    """

    steps: int | None = None
    disturbed_share: float | None = None
    foreign_cpu: float | None = None
    clock_mhz: float | None = None
    watts: float | None = None
    sample_joules: float | None = None
    step_mean: float | None = None
    step_median: float | None = None
    step_p95: float | None = None
    step_correlation: float | None = None


NO_DIGEST = RunDigest()


class ChoiceReason(StrEnum):
    """Reason why a trial is a finalist, or why it is not."""

    FINALIST = "finalist"
    """It is measured again."""
    REFUSED = "refused"
    """A check refuses it: numerics, data, memory."""
    PASSED_OVER = "passed_over"
    """It is behind beyond doubt, or there is no time for its check."""
    BEYOND = "beyond"
    """There is no room for it: `measurement.finalists`, or the time."""


@dataclass(frozen=True)
class FinalistChoice:
    """Decision whether a trial is measured again.

    Attributes:
        expected: ratio of rates over the baseline that the model of a step expected of it then; None if
            the model was not asked.
        expected_low: lower end of the 95 % interval of that by the model; None if unknown, so is
            `expected_high`.
        detail: why a check refuses it; empty for any other reason.
    """

    trial: int
    reason: ChoiceReason
    detail: str = ""
    expected: float | None = None
    expected_low: float | None = None
    expected_high: float | None = None


@dataclass(frozen=True)
class StoredBlock:
    """A timed block of an attempt, as measured."""

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
    """False for warm-up blocks and disturbed, repeated ones; these are not part of the estimate."""
    contended: bool = False
    """True if other processes disturbed it."""
    observed: dict[str, Any] = field(default_factory=dict)
    """See autotune.worker.protocol.Observed."""

    @property
    def world_size(self) -> int:
        """Number of devices (on the CPU: shares of it) that worked together, over all ranks."""
        return len(self.rank_seconds) * int(self.observed.get("replicas", 1))


Blocks = Callable[[int], Sequence[StoredBlock]]
"""Source of the blocks of an attempt, by its id."""


@dataclass(frozen=True)
class Recommended:
    """Recommendation of a study.

    Attributes:
        spec: settings of the study as submitted.
        body: content of best.yaml.
    """

    study: str
    spec: dict[str, Any]
    body: dict[str, Any]


@dataclass(frozen=True)
class SlotHealth:
    """Slots of a running study.

    Attributes:
        alive: number of slots that can work.
        planned: number of slots that the study is to have.
        away: what is unreachable, in words, and since when, in seconds since the epoch.
    """

    alive: int
    planned: int
    away: dict[str, float]


class MessageKind(StrEnum):
    """Kind of a message."""

    SAID = "said"
    """An event, or the reason for one."""
    WAITING = "waiting"
    """Reason why the study waits."""
    DOING = "doing"
    """Progress of the running attempts: one message, replaced at each change."""


class MessageCode(StrEnum):
    """Meaning of a message whose facts are read again."""

    NONE = ""
    SPACE = "space"
    """Size of the search space."""
    LEFT_OUT = "left_out"
    """Values that are not tried. Data: reason."""
    EXPECTATION = "expectation"
    """Expectation of the model when the search ends. Data: knobs, value, gain."""
    SEARCH_END = "search_end"
    """Reason why the search ends. Data: cause, a SearchEndCause."""
    FINALISTS = "finalists"
    """Choice of the trials that are measured again, see FinalistChoice."""


class SearchEndCause(StrEnum):
    """Cause that ends the search of a study."""

    TRIALS = "trials"
    """The number of trials that the budget allows is spent."""
    DEVICE_HOURS = "device_hours"
    """The device hours of the budget are spent."""
    WALL_TIME = "wall_time"
    """The wall time has room for the proof only, or for nothing."""
    MIN_IMPROVEMENT = "min_improvement"
    """Another trial is expected to bring less than the user asks for."""
    NOT_WORTH_IT = "not_worth_it"
    """Another trial is expected to bring less than it costs."""
    ALL_TRIED = "all_tried"
    """No feasible configuration is left."""
    ALL_FAIL = "all_fail"
    """Every trial ends in an error."""
    PROOF_BEGUN = "proof_begun"
    """The proof had begun when the study went on."""


@dataclass(frozen=True)
class NewMessage:
    """Message to be stored.

    Attributes:
        data: facts that the text tells, by name.
    """

    text: str
    code: MessageCode = MessageCode.NONE
    data: dict[str, Any] | None = None

    @classmethod
    def of(cls, said: "str | NewMessage") -> "NewMessage":
        """Return a message; a plain text has no code."""
        return cls(said) if isinstance(said, str) else said


@dataclass(frozen=True)
class StoredMessage:
    """Message of the daemon, with its time."""

    number: int
    at: float
    text: str
    kind: MessageKind = MessageKind.SAID
    code: MessageCode = MessageCode.NONE
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredAttempt:
    """An execution of a trial.

    Attributes:
        trial: Optuna's number of the trial.
        round: of a comparison (CONFIRM, ABLATION); `seed` or `beside` where it is one; 0 elsewhere.
        attempt: number from 1, among attempts of the same trial, purpose and round.
        started: seconds since the epoch, by the database's clock; `ended` likewise.
        epoch: epoch of the lease under which it began: another where another daemon went on with the
            study.
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
    """Id of its environment, once the attempt has ended."""
    digest: RunDigest = NO_DIGEST
    epoch: int = 0
    software: tuple[str, ...] | None = None
    """Versions of what trains, see `SOFTWARE`, once the attempt has ended."""

    @property
    def seed(self) -> int | None:
        """Number of the seed of a run of the numerics gate, from 0; None for any other purpose."""
        return self.round if self.purpose in TRAJECTORIES else None

    @property
    def beside(self) -> int | None:
        """Trial of the search beside which the baseline ran; None for any other purpose."""
        return self.round if self.purpose == Purpose.PAIRED else None

    @property
    def name(self) -> str:
        """Name within the study and of its folder: `<trial>-<purpose><round>-<attempt>`."""
        return f"{self.trial}-{self.purpose}{self.round or ''}-{self.attempt}"

    @property
    def running(self) -> bool:
        """True if the attempt has not been recorded yet."""
        return self.result.state == AttemptState.RUNNING

    @property
    def recorded(self) -> bool:
        """True if the attempt has a result of its own.

        It was neither abandoned nor lost with its agent.
        """
        return self.result.state.recorded

    @property
    def in_vain(self) -> bool:
        """True if its time was over before it had shown anything of its configuration."""
        return self.result.state == AttemptState.PRUNED and self.result.throughput is None
