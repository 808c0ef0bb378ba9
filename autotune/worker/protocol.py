"""What travels between the tuner, the node agents and the ranks: frozen dataclasses <-> JSON lines."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypedDict

from autotune.worker.decoding import decoder

SCRIPT_ENDED = "the script ended after"
"""Begins the cause of a timed run whose script ended by itself, without an error, too early."""
COMPRESSION_WARM_UP = 3
"""Steps before gradient compression begins. Real training has more: later throughput is the same."""

QUIET_STEPS = 2
"""Of a trajectory: the first, which are taken without dropout and looked at tensor by tensor."""

CHECKED_STEPS = 6
"""Of a script: the first optimizer steps, whose rows and gradients are looked at. They are over with the
first block, which has five steps after the first one and is not timed."""

Knobs = dict[str, Any]
"""A configuration: knob name -> value."""


PROTOCOL = 9
"""Number of what travels here: to be raised when an older side would misunderstand it."""


PYTHON, TORCHRUN = "python", "torchrun"
TORCH_LAUNCH, DEEPSPEED = "torch.distributed.launch", "deepspeed"
"""Launchers of training scripts whose rules a rank can follow."""


class Outcome(StrEnum):
    """How a trial ended."""

    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    OOM = "OOM"
    HANG = "HANG"
    CRASH = "CRASH"
    ERROR = "ERROR"


@dataclass(frozen=True)
class Message:
    """A dataclass that travels as one line of JSON; `kind` tells the receiver which."""

    def to_line(self) -> bytes:
        """The message as one line of JSON, newline included."""
        body = {"kind": type(self).__name__, **dataclasses.asdict(self)}
        return json.dumps(body, allow_nan=True, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True)
class BlockPlan:
    """How a rank cuts its training into timed blocks.

    A block holds at least `min_steps` optimizer steps and lasts about `seconds`. Where so many steps
    would take more than `longest` seconds it holds fewer, down to a single one. The ranks go on until
    the tuner has seen enough and ends them, or `max_blocks` are done.
    """

    seconds: float = 1.0
    min_steps: int = 5
    max_blocks: int = 1000
    longest: float = math.inf


@dataclass(frozen=True)
class Deadlines:
    """Seconds without progress after which a trial counts as hung."""

    startup: float = 300.0
    step: float = 60.0


@dataclass(frozen=True)
class FileCopy:
    """A file of settings with other values, written on every node before ranks start."""

    file: str
    """That the script would read, as it names it."""
    path: str
    """Of the copy, absolute."""
    text: str
    stands_in: bool = False
    """Whether whoever opens the file gets the copy; else the script is told its path."""


@dataclass(frozen=True)
class Script:
    """A training script that nobody has changed."""

    path: str
    """Of the file, from the trial's folder on; or the dotted name of a module, as for `python -m`."""
    args: tuple[str, ...] = ()
    is_module: bool = False
    launch: str = TORCHRUN
    """PYTHON, TORCHRUN, TORCH_LAUNCH or DEEPSPEED: its process has the variables that this one sets."""
    changes: tuple[str, ...] = ()
    """Names of knobs that are to act on it from outside; all others are as it has them."""
    samples: int = 0
    """Per rank and optimizer step, where the configuration says how many there must be; 0: it does
    not."""
    draws_none: bool = False
    """Whether the user has said so: `samples` are those of a step for which no DataLoader was seen."""
    told: bool = False
    """Whether `samples` count even where a DataLoader was seen: ranks may share what one yields."""
    kept: tuple[str, ...] = ()
    """Names of knobs of the search that the script must have as the configuration does, by itself."""
    counts: str = "samples"
    """What the study counts: samples, tokens or steps."""
    turned: tuple[str, ...] = ()
    """Its arguments that differ from the baseline's, each with its value."""
    batches_per_epoch: int = 0
    """After so many batches every epoch of every loader ends; 0: where the script has it end."""
    survey: int = 0
    """Optimizer steps after which what was seen of it is written down; 0: it is timed."""


@dataclass(frozen=True)
class Command:
    """Any command that trains with ranks of its own, and where its throughput is read: without file or
    pattern it calls autotune.report."""

    argv: tuple[str, ...]
    folder: str
    """For what it writes; made anew for the trial."""
    json_lines: str = ""
    """File with a report in each line."""
    pattern: str = ""
    """Regular expression with one group, the rate, over each line of its output."""
    tokens: bool = False
    """What is counted: tokens instead of samples."""


@dataclass(frozen=True)
class TrialRequest:
    """All that ranks need to know to run one trial."""

    trial: str
    """A name that no other trial of the launcher has: its ranks meet under it. An attempt of a study is
    `<study id>/<trial>-<purpose><round>-<attempt>/<epoch of the lease>`."""
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
    """Bytes a rank may take (host memory on 'cpu', memory of each of its devices on 'cuda'); None: no
    limit."""
    replicas: int = 1
    """Devices that one rank drives by itself, each with a micro-batch of its own."""
    blocks: BlockPlan = field(default_factory=BlockPlan)
    deadlines: Deadlines = field(default_factory=Deadlines)
    trajectory: int = 0
    """When above 0: no timing; so many single optimizer steps, each a block that reports its loss,
    gradient norm and how far the replicas of the model lie apart."""
    profile: int = 0
    """When above 0: no timing; so many optimizer steps under the profiler, reported as one block."""
    profile_seconds: float | None = None
    """That they and those before them may take; None: no limit. Where even a few would take longer, the
    first step alone is reported."""
    seconds: float | None = None
    """So long after its launch the trial is ended with what it has shown; None: only whoever watches it
    ends it."""
    workdir: str = "."
    import_paths: tuple[str, ...] = ()
    """Put before sys.path in every rank, as python does with a script's folder."""
    env: dict[str, str] = field(default_factory=dict)
    log_dir: str = ""
    """Folder on each node for the ranks' output."""
    script: Script | None = None
    """What trains instead of a workload."""
    command: Command | None = None
    """What trains instead of both, as the only rank of the trial."""
    copies: tuple[FileCopy, ...] = ()
    """Of files that a script or a command reads."""
    may_write: bool = True
    """Whether what it writes stays; else no file of the user changes."""
    longest: bool = False
    """It trains on the longest samples alone, which the workload names (Workload.longest)."""
    takes_turns: bool = False
    """Others are resident with it: it trains a block whenever it is given a turn, and is silent
    between them."""
    stays: bool = False
    """Once enough has been seen of it, or of all that take turns with it, its ranks wait, silent, for
    another configuration. Only of a workload."""

    @property
    def has_devices_alone(self) -> bool:
        """Whether no other process is on the devices of a rank."""
        return self.devices_per_rank >= 1 and not self.takes_turns


@dataclass(frozen=True)
class Placement:
    """Which ranks of a trial a node runs, and where all ranks meet."""

    node: int
    first_rank: int
    local_world_size: int
    store_host: str
    store_port: int
    interface: str
    """Network interface for collectives, e.g. 'lo'."""
    secret: str = ""
    """Of this launch: ranks meet under it, at a store that asks nobody who they are."""


@dataclass(frozen=True)
class StartTrial(Message):
    """Launcher -> agent: run these ranks of this trial."""

    request: TrialRequest
    placement: Placement


@dataclass(frozen=True)
class EndTrial(Message):
    """Launcher -> agent: end the ranks of the running trial; enough has been seen."""

    trial: str
    hung: str = ""
    """What another node saw take too long: say first how far the ranks here have come."""
    on_purpose: bool = False
    """Nothing has failed: what ranks raise from now on comes of this end."""


@dataclass(frozen=True)
class Turn(Message):
    """Launcher -> agent -> ranks of a trial that takes turns: train for a block, then wait for the
    next."""

    trial: str
    number: int
    """Ascending over all trials that take turns with each other, from 1."""
    rested: bool = False
    """Others have trained since its last one."""
    left_out: int = 0
    """Steps before the block that are not timed: others have had the caches meanwhile."""


@dataclass(frozen=True)
class Configure(Message):
    """Launcher -> agent -> ranks of a trial that stays, while they wait for a turn: what they measure
    from the next turn on."""

    trial: str
    """Under which they were launched: turns, their end and what is left of them go by that name."""
    request: TrialRequest
    """Blocks are reported under its name. It differs in what search_spaces.residency allows."""


@dataclass(frozen=True)
class Waiting(Message):
    """Rank -> agent: it waits for a turn, and no deadline holds meanwhile."""

    after: int
    """Number of its last turn; 0 before the first."""


@dataclass(frozen=True)
class Preload(Message):
    """Launcher -> agent, before all else: what to import besides torch, once for all trials."""

    modules: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that all ranks of all trials have."""
    private: tuple[str, ...] = ()
    """Names of variables that each rank has a value of its own for."""
    changed: dict[str, str | None] = field(default_factory=dict)
    """Variables that changed while the workload was built, with their value afterwards."""
    workdir: str = "."
    may_write: bool = True
    """Whether importing may write files of the user."""
    import_paths: tuple[str, ...] = ()
    """What ranks search before sys.path, and what building the workload has added to that."""
    host: str = ""
    """Address at which the ranks of all nodes meet."""


@dataclass(frozen=True)
class Built(Message):
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
    """Of each visible CUDA device, the name that no other device has."""
    unfit: str = ""
    """Why nothing should be forked from what it has imported; empty if all is well."""
    protocol: int = 0
    """PROTOCOL as the agent knows it; 0 of one that was before there were numbers."""


class Observed(TypedDict, total=False):
    """What was seen of a block besides its time. A key is there when it could be observed."""

    step_p50: float
    """Median step time of the slowest rank, seconds; on CUDA between events of the device."""
    step_p95: float
    step_max: float
    step_moments: list[float]
    """Digest of the steps of the slowest rank, on CUDA; see worker.observers.moments.StepMoments."""
    exposed_seconds: list[float]
    """Per rank: communication of one optimizer step that the backward pass did not hide, as DDP has last
    logged it: of one step in ten, on CUDA of the first blocks only. The rank with the least is the one
    that the others wait for."""
    foreign_cpu: float
    """Share of a node's processors that other processes used, on the node where it was largest."""
    idle_cpu: float
    """Share of that node's processors that was idle."""
    compilations: int
    """Graphs that torch.compile compiled in the block."""
    compile_seconds: float
    alloc_retries: int
    """How often the CUDA allocator had to free its cache and try again."""
    clock_mhz: float
    """Of the slowest NVIDIA device at the end of the block; so are power, throttled (1 or 0)."""
    throttled: float
    power_watts: float
    energy_joules: float
    """Of all devices of the trial over the block."""
    foreign_processes: float
    """Other processes on a device of the trial."""
    tells_longest: int
    """1 where the workload says which samples are the longest; of the first block only."""
    turn: int
    """Number of the turn that it was trained in, where trials took turns on the slot: neighbouring
    numbers are neighbours in time."""
    left_out_seconds: float
    """Of steps at the beginning of that turn, which are not timed."""
    consumed: dict[str, Any]
    """The rows of the first CHECKED_STEPS of a script over all ranks, as sums and digests of hashes: see
    autotune.worker.inject.rows.together."""
    unused_parameters: int
    """Parameters under DistributedDataParallel that had no gradient in one of these steps."""
    batch_dependent: str
    """What computes over the rows of a micro-batch together, in words; empty where nothing does."""
    epochs: int
    """Epochs of a script that began with the loader workers of an earlier one."""
    stale: list[str]
    """What it had changed in the dataset by then, which these workers do not see."""
    gradient_norm: float
    """Of the whole model, before the update; trajectories only."""
    replica_spread: float
    """Largest relative difference of the parameters' sums between ranks; trajectories, and of a script
    under DistributedDataParallel after its first CHECKED_STEPS."""
    gradient: list[list[Any]]
    """Of the whole model, before the update and before clipping, of the first QUIET_STEPS of a
    trajectory:
    for every tensor its name, elements, norm and the buckets of its sketch (rank.sketch)."""
    moved: list[list[Any]]
    """The same of the change of the weights over these steps, on the last of them."""
    weights: list[float]
    """Norm of every tensor before these steps, in the same order."""
    start: str
    """Digest of what they began with; of a script, which may begin with other weights and rows each time
    that it runs."""
    parts: dict[str, list[float]]
    """Share of a step by part, one per rank: see autotune.worker.rank.trace.PARTS; profiles only."""
    peaks: list[int]
    """Peak bytes of each rank, or of each device of one that drives several; profiles only."""
    batch_moves: dict[str, str]
    """Module -> how it moves the batch out of the outermost dimension; profiles only."""
    look_seconds: float
    """From the end of its first step to its report; profiles only."""
    unusable: list[str]
    """Knobs that have nothing to act on in the workload; profiles only."""
    padded: int
    """Padding may be among the tokens: 1; of scripts only."""
    replicas: int
    """Devices that each rank drives by itself, where that is more than one."""
    flops_per_sample: float
    """Of forward and backward pass, as torch.utils.flop_counter counts them; trajectories only."""


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
    """Largest peak memory of any rank since the trial began: resident on the CPU; on CUDA what it has of
    a device, context and NCCL's buffers included."""
    observed: Observed = field(default_factory=Observed)


@dataclass(frozen=True)
class RankEnd(Message):
    """How one rank ended on its own: `outcome` is None when it finished or was told to end."""

    rank: int
    outcome: Outcome | None
    cause: str
    log_tail: str = ""
    at: float = 0.0
    """When, by the node's clock, seconds since the epoch: of equals the first is the cause."""
    progress: int = 0
    """Of a rank that hung: forward passes and steps so far. The least one holds up the others."""
    stopped: bool = False
    """Of a rank that hung: a signal has stopped its process."""


@dataclass(frozen=True)
class NodeReport(Message):
    """Agent -> launcher: no process of this trial is left on the node, but for those that it names."""

    trial: str
    node: int
    ends: tuple[RankEnd, ...]
    agent_leaves: bool = False
    """The agent cannot fork any more; the next trial needs a new one."""
    stuck: str = ""
    """Processes of the trial that cannot be killed, in words: nothing can be measured beside them."""


@dataclass(frozen=True)
class Alive(Message):
    """Agent -> launcher, every few seconds while a trial runs: somebody watches over it."""

    trial: str
    still: float = 0.0
    """Longest time by the agent's own clock, in seconds, for which nothing ran on its node: it was
    suspended."""


@dataclass(frozen=True)
class TrialReport:
    """What a launcher tells the tuner of a finished trial, in the same process.

    `outcome` is None when nothing went wrong: whether it is COMPLETE or PRUNED is the tuner's to say.
    """

    trial: str
    outcome: Outcome | None
    cause: str
    blocks: tuple[BlockReport, ...]
    wall_seconds: float
    log_tail: str = ""
    lost_agent: bool = False
    """The agent itself died: the trial says nothing about the configuration and may be repeated."""
    not_its_own: str = ""
    """What has happened to a node or the cluster under it, in words: it was lost, or stood still. No
    configuration does that, and nothing that was timed meanwhile is a measurement."""
    resident_of: str = ""
    """Name of the trial whose processes it took over; empty: it was launched itself."""


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
        Built,
        Alive,
        BlockReport,
        RankEnd,
        NodeReport,
    )
}
"""Every message, by the name that its line gives."""


def from_line(line: bytes | str) -> Message:
    """The message that `to_line` wrote.

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
