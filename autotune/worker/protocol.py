"""Messages between the tuner, the node agents and the ranks: frozen dataclasses <-> JSON lines."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from autotune.worker.decoding import decoder
from autotune.worker.python_command import Program

COMPRESSION_WARM_UP = 3
"""Steps of a trial before gradient compression begins.

The user's own job has more, as PyTorch advises: later throughput is the same.
"""

STEPS_WITHOUT_DROPOUT = 2
"""Number of first steps of a trajectory that run without dropout and are compared by tensor."""

CHECKED_STEPS = 6
"""Number of a script's first optimizer steps whose rows and gradients are checked.

They end with the first block, which has five steps after the first one and is not timed.
"""

Knobs = dict[str, Any]
"""A configuration: knob name -> value."""


PROTOCOL = 15
"""Version of the protocol. Raise it when an older side would misunderstand a message."""


PYTHON, TORCHRUN = "python", "torchrun"
TORCH_LAUNCH, DEEPSPEED = "torch.distributed.launch", "deepspeed"
SPAWN = "torch.multiprocessing.spawn"
"""Launchers of training scripts whose conventions a rank can follow; SPAWN: the script itself."""
PLAIN = (PYTHON, SPAWN)
"""Launchers under which no variable calls a process a rank."""


class Outcome(StrEnum):
    """Outcome of a trial."""

    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    OOM = "OOM"
    HANG = "HANG"
    CRASH = "CRASH"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Message:
    """Message that travels as one line of JSON; its `kind` names the class."""

    def to_line(self) -> bytes:
        """Return the message as one line of JSON, newline included."""
        body = {"kind": type(self).__name__, **dataclasses.asdict(self)}
        return json.dumps(body, allow_nan=True, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True)
class BlockPlan:
    """Division of a rank's training into timed blocks.

    A block holds at least `min_steps` optimizer steps and lasts about `seconds`. Where so many
    steps would take more than `longest` seconds it holds fewer, down to a single one. The ranks go
    on until the tuner ends them, or `max_blocks` are done.
    """

    seconds: float = 1.0
    min_steps: int = 5
    max_blocks: int = 1000
    longest: float = math.inf
    leads_in: bool = True
    """False: no block on CUDA begins while an untimed step is under way, as its energy counts."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds without progress after which a trial counts as hung."""

    startup: float = 300.0
    step: float = 60.0


@dataclass(frozen=True)
class TimeLimit:
    """Time of one run, in seconds from its launch; the default has no end.

        limit = TimeLimit(soft=30.0, hard=37.5)
        limit.shared(2)          # soft=15.0 for each of two interleaved runs, hard=37.5 for both
        limit.after_launch(4.0)  # soft=26.0, counted from the first step

    Attributes:
        soft: time after which the run is to be over; it begins no block that would end later.
        hard: time after which the run is ended, whatever it does.
        compiling: time beyond `soft` that is for blocks in which something is compiled, and no others.
    """

    soft: float = math.inf
    hard: float = math.inf
    compiling: float = 0.0

    def shared(self, count: int) -> "TimeLimit":
        """Return the limit of each of several interleaved runs, which have this time together."""
        return dataclasses.replace(self, soft=self.soft / count)

    def after_launch(self, seconds: float) -> "TimeLimit":
        """Return the limit whose soft part counts from the first step, after a launch of so long."""
        return dataclasses.replace(self, soft=max(0.0, self.soft - seconds))

    def charged(self, seconds: float, compiled: float) -> float:
        """Return what counts against `soft` of so many seconds of blocks.

        Args:
            compiled: seconds of those blocks in which something was compiled.
        """
        return seconds - min(compiled, self.compiling)


NO_LIMIT = TimeLimit()


@dataclass(frozen=True)
class FileCopy:
    """Changed copy of a settings file, written on every node before ranks start."""

    file: str
    """File that the script would read, as it names it."""
    path: str
    """Absolute path of the copy."""
    text: str
    stands_in: bool = False
    """True if opening the file opens the copy; otherwise the script is given the copy's path."""


@dataclass(frozen=True)
class Script(Program):
    """Training script of the user, unmodified; the path of its file is from the trial's folder on."""

    launch: str = TORCHRUN
    """Launcher whose rules the process follows: one of those above."""
    changes: tuple[str, ...] = ()
    """Names of knobs that act on the script from outside; it sets all others itself."""
    baseline: dict[str, Any] = field(default_factory=dict)
    """Values of `changes` in the baseline, and of num_workers."""
    constructed: dict[str, Any] = field(default_factory=dict)
    """Arguments with which it constructs objects of a framework: `Class(argument)` -> value."""
    samples: int = 0
    """Samples per rank and optimizer step if the configuration determines them, else 0."""
    draws_none: bool = False
    """True if the user states that `samples` holds for a script that uses no DataLoader."""
    fixed_samples: bool = False
    """True if `samples` holds even where a DataLoader was seen: ranks may share its batches."""
    kept: tuple[str, ...] = ()
    """Names of searched knobs whose values the script must have by itself."""
    counts: str = "samples"
    """Unit that the study counts: samples, tokens or steps."""
    turned: tuple[str, ...] = ()
    """Arguments that differ from the baseline's, each with its value."""
    derived: str = ""
    """Knob that it has to derive otherwise than in the baseline; empty: none."""
    batches_per_epoch: int = 0
    """Batches after which every epoch of every loader ends; 0: the script decides."""
    survey: int = 0
    """Optimizer steps of a survey, after which its result is written; 0: the script is timed."""


@dataclass(frozen=True)
class Command:
    """Command that trains with ranks of its own, and the source of its throughput.

    Without file or pattern it calls autotune.report.
    """

    argv: tuple[str, ...]
    folder: str
    """Folder that it writes to, made anew for the trial."""
    json_lines: str = ""
    """File with a report in each line."""
    pattern: str = ""
    """Regular expression with one group, the rate, for each line of its output."""
    tokens: bool = False
    """True if reports count tokens instead of samples."""


@dataclass(frozen=True)
class TrialRequest:
    """Everything that ranks need to run one trial."""

    trial: str
    """Name that no other trial of the launcher has; its ranks rendezvous under it.

    An attempt of a study is `<study id>/<trial>-<purpose><round>-<attempt>/<epoch of the lease>`.
    """
    factory: str
    """`module:function` that builds the workload; empty where a script trains."""
    args: dict[str, Any]
    knobs: Knobs
    world_size: int
    seed: int
    device: str
    """'cpu' or 'cuda'."""
    devices_per_rank: float = 0.0
    """CUDA devices per rank; below one, ranks share a device."""
    cpus_per_rank: int = 1
    memory_per_rank: int | None = None
    """Memory limit of a rank in bytes; None: no limit.

    It limits host memory on 'cpu', and the memory of each of its devices on 'cuda'.
    """
    replicas: int = 1
    """Devices that one rank drives by itself, each with a micro-batch of its own."""
    blocks: BlockPlan = field(default_factory=BlockPlan)
    timeouts: Timeouts = field(default_factory=Timeouts)
    trajectory: int = 0
    """Optimizer steps of a trajectory: one block per step, nothing timed; 0: none.

    Each block reports loss, gradient norm and how far the replicas of the model lie apart.
    """
    autocast: bool = False
    """True if forward and loss run under torch.autocast in bf16, which is no effect of `knobs`."""
    profile: int = 0
    """When above 0: no timing; so many optimizer steps under the profiler, reported as one block."""
    limit: TimeLimit = NO_LIMIT
    """Time of the trial, of which `soft` counts from the first step. A profile for which even a few
    steps take longer reports the first step alone; after `hard` the trial is ended."""
    workdir: str = "."
    import_paths: tuple[str, ...] = ()
    """Folders put before sys.path in every rank, as python does with a script's folder."""
    env: dict[str, str] = field(default_factory=dict)
    log_dir: str = ""
    """Folder on each node for the ranks' output."""
    script: Script | None = None
    """Script that trains instead of a workload."""
    command: Command | None = None
    """Command that trains instead of both, as the only rank of the trial."""
    copies: tuple[FileCopy, ...] = ()
    """Changed copies of files that a script or a command reads."""
    may_write: bool = True
    """True if files that it changes stay changed; otherwise no file of the user changes."""
    longest: bool = False
    """True if it trains on the longest samples alone, which the workload names (Workload.longest).
    """
    strict_fp32: bool = False
    """True if the study's baseline computes in fp32 where the devices could in TF32: the workload's own
    code must not have it otherwise."""
    interleaved: bool = False
    """True if it is interleaved: it trains a block when it is given a turn."""
    alone: bool = False
    """True if no other trial runs on its nodes at the same time: their energy is its own."""
    stays: bool = False
    """True if its ranks become warm workers, which wait for another configuration.

    Only a workload can.
    """

    @property
    def has_devices_alone(self) -> bool:
        """Return whether no other process is on the devices of a rank."""
        return self.devices_per_rank >= 1 and not self.interleaved


@dataclass(frozen=True)
class Placement:
    """Ranks of a trial on one node, and the store through which all its ranks rendezvous."""

    node: int
    first_rank: int
    local_world_size: int
    store_host: str
    store_port: int
    interface: str
    """Network interface for collectives, e.g. 'lo'."""
    secret: str = ""
    """Random part of the name under which ranks rendezvous, as the store authenticates no client.
    """


@dataclass(frozen=True)
class StartTrial(Message):
    """Launcher -> agent: run these ranks of this trial."""

    request: TrialRequest
    placement: Placement


@dataclass(frozen=True)
class EndTrial(Message):
    """Launcher -> agent: end the ranks of the running trial."""

    trial: str
    hung: str = ""
    """Hang that another node has found; each rank's progress is recorded before its end."""
    on_purpose: bool = False
    """True if nothing has failed: errors that ranks raise from now on come of this end."""


@dataclass(frozen=True)
class Turn(Message):
    """Launcher -> agent -> ranks of an interleaved trial: train for a block, then wait."""

    trial: str
    number: int
    """Number of the turn, ascending from 1 over all trials that are interleaved."""
    rested: bool = False
    """True if other trials have trained since its last turn."""
    left_out: int = 0
    """Untimed steps before the block: other trials have displaced its caches."""


@dataclass(frozen=True)
class Configure(Message):
    """Launcher -> agent -> waiting ranks of a warm worker: measure this from the next turn on."""

    trial: str
    """Name under which the ranks were launched; turns, end and reports of their nodes use it."""
    request: TrialRequest
    """Request whose name the blocks carry. It differs in what search_spaces.constraints allows."""


@dataclass(frozen=True)
class Waiting(Message):
    """Rank -> agent: the rank waits for a turn, and no timeout applies meanwhile."""

    after: int
    """Number of its last turn; 0 before the first."""


@dataclass(frozen=True)
class Preload(Message):
    """Launcher -> agent, before all else: what to import besides torch, once for all trials."""

    modules: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that all ranks of all trials have."""
    private: tuple[str, ...] = ()
    """Names of variables that have another value in each rank."""
    changed: dict[str, str | None] = field(default_factory=dict)
    """Variables that building the workload changes, with their new value."""
    workdir: str = "."
    may_write: bool = True
    """True if importing may write files of the user."""
    import_paths: tuple[str, ...] = ()
    """Folders searched before sys.path, and those that building the workload has added to it."""
    host: str = ""
    """Address of the store through which the ranks of all nodes rendezvous."""
    energy_of: str = ""
    """Devices whose energy has to be readable, 'cpu' or 'cuda'; empty: it is not asked for."""


@dataclass(frozen=True)
class WorkloadBuilt(Message):
    """First rank of a node -> launcher: the workload is built; what could be imported beforehand."""

    trial: str
    node: int
    seconds: float
    preload: Preload


@dataclass(frozen=True)
class Hello(Message):
    """Agent -> launcher, once: ready. `environment` is the node's fingerprint."""

    pid: int
    store_port: int
    interface: str
    """Network interface that carries the agent's address, e.g. 'lo'."""
    environment: dict[str, Any]
    devices: tuple[str, ...] = ()
    """Unique names of the visible CUDA devices."""
    unfit: str = ""
    """Why nothing should be forked from what the agent has imported; empty if all is well."""
    protocol: int = 0
    """Version of the agent's protocol; 0 for an agent older than version numbers."""
    energy_unreadable: str = ""
    """Reason why the energy of trials cannot be read there; empty if it can, or was not asked for."""
    cannot_start: str = ""
    """Reason why the agent ends at once; then the rest says nothing. Empty: it is ready."""


class Observed(TypedDict, total=False):
    """Observations of a block besides its time. A key is missing where it could not be observed."""

    step_p50: float
    """Median step time of the slowest rank, seconds; on CUDA between events of the device."""
    step_p95: float
    step_max: float
    step_moments: list[float]
    """Digest of the steps of the slowest rank, on CUDA; see worker.observers.moments.StepMoments."""
    exposed_seconds: list[float]
    """Communication of one optimizer step that the backward pass did not hide, per rank.

    DDP logs one step in ten, on CUDA in the first blocks only. The rank with the least is the one
    that the others wait for.
    """
    ready_batches: list[float]
    """Number of batches at the block's end that a loader's workers had ready, per rank."""
    foreign_cpu: float
    """Share of a node's processors that other processes used, on the node where it was largest."""
    idle_cpu: float
    """Share of that node's processors that was idle."""
    compilations: int
    """Graphs that torch.compile compiled in the block."""
    compile_seconds: float
    alloc_retries: int
    """Number of times that the CUDA allocator freed its cache and tried again."""
    clock_mhz: float
    """Clock of the slowest NVIDIA device at the end of the block; so are power, throttled (1 or 0).
    """
    throttled: float
    power_watts: float
    energy_joules: float
    """Energy of all devices of the trial over the block; on the CPU, of the nodes' processors."""
    foreign_processes: float
    """Number of other processes on a device of the trial."""
    tells_longest: int
    """1 where the workload says which samples are the longest; first block only."""
    turn: int
    """Number of the block's turn in interleaved trials, in the order of time."""
    left_out_seconds: float
    """Time of the untimed steps at the beginning of that turn."""
    stood_still: float
    """Seconds for which a node of the trial was suspended in the block."""
    waiting_cpu: float
    """Most processor time that other threads of a rank used as it waited for that turn, seconds."""
    consumed: dict[str, Any]
    """Rows of a script's first CHECKED_STEPS over all ranks, as sums and digests of hashes.

    See autotune.worker.inject.rows.together.
    """
    unused_parameters: int
    """Parameters under DistributedDataParallel that had no gradient in one of these steps."""
    batch_dependent: str
    """Operations over all rows of a micro-batch together, in words; empty where there are none."""
    epochs: int
    """Epochs of a script that began with the loader workers of an earlier one."""
    stale: list[str]
    """Changes that the script had made to the dataset by then, which these workers do not see."""
    first_gradient: float
    """Norm of the gradient of a script's first step, as its first optimizer has it.

    Of ranks that hold other gradients, or parts of them, it is the root mean square.
    """
    learning_rates: list[float]
    """Learning rate of the optimizer's first group in each of a script's first CHECKED_STEPS."""
    optimizer: str
    """Class of a script's first optimizer."""
    gradient_norm: float
    """Gradient norm of the whole model, before the update; trajectories only."""
    replica_spread: float
    """Largest relative difference of the parameters' sums between ranks.

    For trajectories, and for a script under DistributedDataParallel after its first CHECKED_STEPS.
    """
    gradient: list[list[Any]]
    """Gradient of each tensor in the first STEPS_WITHOUT_DROPOUT of a trajectory, before clipping.

    Every entry is name, elements, norm and the buckets of its sketch (rank.sketch).
    """
    not_compared: str
    """Reason why a gradient is not told, in words; trajectories only."""
    convolutions: int
    """1 if a parameter of the model has more than two dimensions.

    It is in the first block, and in that of a script's first CHECKED_STEPS.
    """
    start: str
    """Digest of the first weights and rows; a script may begin with others in each run."""
    parts: dict[str, list[float]]
    """Share of a step by part, one per rank: see autotune.worker.rank.trace.PARTS; profiles only.
    """
    peaks: list[int]
    """Peak bytes of each rank, or of each device of a rank that drives several; profiles only."""
    batch_moves: dict[str, str]
    """Module -> how it moves the batch out of the outermost dimension; profiles only."""
    look_seconds: float
    """Seconds from the end of the first step to the report; profiles only."""
    lacks: list[str]
    """Targets of knobs that the workload has not, see autotune.worker.effects.apply; profiles only."""
    padded: int
    """1 where padding may be among the tokens; scripts only."""
    replicas: int
    """Devices that each rank drives by itself, where that is more than one."""
    flops_per_sample: float
    """Operations of forward and backward pass, by torch.utils.flop_counter; trajectories only."""


@dataclass(frozen=True)
class BlockReport(Message):
    """Rank 0 -> tuner: one timed block of whole optimizer steps over all ranks."""

    trial: str
    index: int
    steps: int
    samples: int
    """Samples over all ranks."""
    tokens: int
    """Tokens over all ranks; 0 where a sample has none."""
    seconds: float
    """Wall seconds of the slowest rank."""
    rank_seconds: tuple[float, ...]
    wait_seconds: float
    """Seconds the slowest-fed rank waited for its data loader."""
    loss: float
    """Mean over ranks of the last loss read in the block."""
    peak_bytes: int
    """Largest peak memory of any rank since the trial began.

    Resident memory on the CPU; on CUDA the use of a device, context and NCCL's buffers included.
    """
    observed: Observed = field(default_factory=Observed)

    @property
    def taken_seconds(self) -> float:
        """Seconds of the block and of the untimed steps before it."""
        return self.seconds + self.observed.get("left_out_seconds", 0.0)


@dataclass(frozen=True)
class RankEnd(Message):
    """End of one rank by itself; `outcome` is None when it finished or was ended by request."""

    rank: int
    outcome: Outcome | None
    cause: str
    log_tail: str = ""
    at: float = 0.0
    """Time by the node's clock, seconds since the epoch: among equals the first is the cause."""
    progress: int = 0
    """Forward passes and steps of a hung rank so far. The rank with the least holds up the others.
    """
    stopped: bool = False
    """True if a signal has stopped the process of a hung rank."""
    ended_after: int | None = None
    """Measured steps after which a script ended by itself and without an error, reports of a command.

    None: it did not end so.
    """
    contradicted: bool = False
    """True if the script was seen to be not what the configuration says: another run ends alike."""


@dataclass(frozen=True)
class NodeReport(Message):
    """Agent -> launcher: no process of this trial is left on the node, except those it names."""

    trial: str
    node: int
    ends: tuple[RankEnd, ...]
    agent_leaves: bool = False
    """True if the agent cannot fork any more, so that the next trial needs a new one."""
    stuck: str = ""
    """Processes of the trial that cannot be killed, in words: nothing can be measured beside them.
    """


@dataclass(frozen=True)
class Heartbeat(Message):
    """Agent -> launcher, every few seconds while a trial runs: the agent watches its ranks."""

    trial: str
    still: float = 0.0
    """Seconds, by the agent's clock, for which the node was suspended; 0: it was not."""


@dataclass(frozen=True)
class TrialReport:
    """Report of a finished trial from the launcher to the tuner, in the same process.

    `outcome` is None when nothing went wrong: the tuner decides whether it is COMPLETE or PRUNED.
    """

    trial: str
    outcome: Outcome | None
    cause: str
    blocks: tuple[BlockReport, ...]
    wall_seconds: float
    log_tail: str = ""
    lost_agent: bool = False
    """True if the agent died: the trial says nothing about the configuration and may be repeated.
    """
    not_its_own: str = ""
    """Event of a node or the cluster under the trial, in words: it was lost or suspended.

    No configuration causes that, and times from then are no measurements.
    """
    resident_of: str = ""
    """Trial whose warm worker it reused; empty if it was launched itself."""
    ended_after: int | None = None
    """See `RankEnd.ended_after`."""
    contradicted: bool = False
    """See `RankEnd.contradicted`."""


KINDS: dict[str, type[Message]] = {
    cls.__name__: cls
    for cls in (
        Preload,
        Hello,
        StartTrial,
        EndTrial,
        Turn,
        Configure,
        Waiting,
        WorkloadBuilt,
        Heartbeat,
        BlockReport,
        RankEnd,
        NodeReport,
    )
}
"""Message classes by the kind in their line."""


def from_line(line: bytes | str) -> Message:
    """Return the message that `to_line` wrote.

    Raises:
        ValueError: the line is not a known message.
    """
    body = json.loads(line)
    kind = body.pop("kind", None) if isinstance(body, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"unknown message kind {kind!r}")
    known: Any = KINDS[kind]
    message: Message = decoder(known)(body)
    return message
