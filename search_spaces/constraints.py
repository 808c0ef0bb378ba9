"""Which configurations can run, and the reason why one cannot. Pure functions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from search_spaces.catalogue import CATALOGUE
from search_spaces.expressions import Expression, parse
from search_spaces.knob import Knob, KnobValue, written
from search_spaces.needs import CUDA, FP8, HOPPER, NCCL, SWITCH, TF32

_CAPABILITIES = {TF32: (8, 0), FP8: (8, 9), SWITCH: (9, 0)}
"""The lowest that is enough."""
_HOPPER_CAPABILITY = (9, 0)
Values = Mapping[str, KnobValue]


@dataclass(frozen=True)
class Conflict:
    """Two knobs that cannot both have such values.

    Attributes:
        first: a knob.
        second: another one.
        clash: whether they clash in a configuration.
        reason: why.
        device: on which alone they clash; empty: on any.
        runs: they run together, only never faster: such a pair is not tried unless it is the user's own.
    """

    first: str
    second: str
    clash: Callable[[Values], bool]
    reason: str
    device: str = ""
    runs: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        """Both knobs."""
        return self.first, self.second


_OF_DDP = (
    "bucket_cap_mb",
    "first_bucket_mb",
    "gradient_as_bucket_view",
    "gradient_compression",
    "static_graph",
    "find_unused_parameters",
    "broadcast_buffers",
    "nccl_algo",
)
_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Ways to compile that replay graphs, whose results lie in memory of the graphs' own."""
_HALF_ONLY = ("flash", "cudnn", "flash3")
_BF16 = ("bf16", "pure_bf16")
SHARDED = ("fsdp", "fsdp_keep", "hsdp")
"""Values of parallelism with which each rank holds a part of the weights."""
_WITHOUT_DDP = ("none", "data_parallel", *SHARDED)
_OF_FSDP = ("fsdp_prefetch", "fsdp_reduce_dtype")
_OF_ONE_COPY = (
    "compile",
    "qkv_streams",
    "activation_checkpointing",
    "layer_keep",
    "channels_last",
)


def _changed(name: str, values: Values) -> bool:
    return values[name] != CATALOGUE[name].default


def _not_beside(
    name: str, other: str, refused: Callable[[KnobValue], bool], reason: str, device: str = ""
) -> Conflict:
    """A knob that stays at its default where another one has such a value."""
    return Conflict(name, other, lambda v: refused(v[other]) and _changed(name, v), reason, device)


def _only_beside(name: str, other: str, wanted: KnobValue) -> Conflict:
    reason = f"it acts beside {other}={written(wanted)} only"
    return _not_beside(name, other, lambda value: value != wanted, reason)


def _never_both(first: str, second: str, reason: str) -> Conflict:
    return Conflict(first, second, lambda v: _changed(first, v) and _changed(second, v), reason)


CONFLICTS = (
    *(
        _not_beside(name, "parallelism", lambda v: v in _WITHOUT_DDP, "it acts on DDP only")
        for name in _OF_DDP
    ),
    *(
        _not_beside(name, "parallelism", lambda v: v not in SHARDED, "it acts on FSDP2 only")
        for name in _OF_FSDP
    ),
    *(
        _not_beside(
            name,
            "parallelism",
            lambda v: v == "data_parallel",
            "it is tied to one copy of the model, and every forward pass makes new ones",
            "cuda",
        )
        for name in _OF_ONE_COPY
    ),
    Conflict(
        "attention",
        "precision",
        lambda v: v["attention"] in _HALF_ONLY and v["precision"] in ("fp32", "tf32"),
        "its kernels are for half precision",
        "cuda",
    ),
    *(
        _not_beside(name, "loader_workers", lambda v: v == 0, "it acts on loader workers only")
        for name in ("persistent_workers", "prefetch_factor")
    ),
    _not_beside("compile_scope", "compile", lambda v: v == "none", "nothing is compiled"),
    _not_beside(
        "float8", "precision", lambda v: v not in _BF16, "its products are rounded from and to bf16"
    ),
    Conflict(
        "float8",
        "compile",
        lambda v: _changed("float8", v) and v["compile"] == "none",
        "only compiled code fuses the scaling into its products; without it 130,000 tokens/s were "
        "measured where bf16 has 409,000 (GPT-2 124M, H200, torch 2.11)",
        runs=True,
    ),
    _not_beside(
        "float8",
        "parallelism",
        lambda v: v == "data_parallel",
        "torchao's layers cannot be copied for every forward pass",
    ),
    _not_beside(
        "fsdp_reduce_dtype",
        "precision",
        lambda v: v == "pure_bf16",
        "gradients of bf16 weights are bf16 already",
    ),
    _never_both("nccl_ctas", "nccl_channels", "both say how many thread blocks NCCL takes"),
    _never_both(
        "nccl_registration",
        "expandable_segments",
        "PyTorch switches registration off where segments grow",
    ),
    _never_both("numa_binding", "cpu_affinity", "both say on which processors a rank runs"),
    _not_beside(
        "numa_binding",
        "parallelism",
        lambda v: v == "data_parallel",
        "one process drives devices of several NUMA nodes",
    ),
    _only_beside("powersgd_rank", "gradient_compression", "powersgd"),
    _only_beside("loss_placement", "parallelism", "data_parallel"),
    _not_beside(
        "curriculum_share",
        "curriculum_start",
        lambda v: v == 1,
        "samples always have their whole length",
    ),
    _never_both("layer_keep", "compile", "every choice of blocks would be compiled anew"),
    _never_both("curriculum_start", "compile", "every length would be compiled anew"),
    _never_both("layer_keep", "static_graph", "other parameters get a gradient in every step"),
    Conflict(
        "gradient_compression",
        "parallelism",
        lambda v: v["gradient_compression"] == "one_bit" and v["parallelism"] == "zero1",
        "both replace the optimizer",
    ),
    Conflict(
        "gradient_compression",
        "precision",
        lambda v: (
            (v["gradient_compression"], v["precision"])
            in (("one_bit", "fp16"), ("one_bit", "pure_bf16"), ("powersgd", "fp16"))
        ),
        "an overflow (fp16) would stay in what was lost in sending, which needs fp32 to be kept",
    ),
    _not_beside(
        "layer_keep",
        "gradient_compression",
        lambda v: v in ("powersgd", "one_bit"),
        "what is left over from one step belongs to the same parameters in the next",
    ),
    _never_both(
        "first_bucket_mb",
        "bucket_cap_mb",
        "DDP has a first bucket of its own only with its own bucket size",
    ),
    Conflict(
        "compile",
        "accumulation_steps",
        lambda v: v["compile"] in _CUDA_GRAPHS and v["accumulation_steps"] != 1,
        "its CUDA graphs write gradients where those of the micro-batch before still lie "
        "(pytorch#169545)",
        "cuda",
    ),
    Conflict(
        "compile",
        "set_to_none",
        lambda v: v["compile"] in _CUDA_GRAPHS and not v["set_to_none"],
        "its CUDA graphs write gradients where those of the step before, only set to zero, still lie "
        "(pytorch#96693)",
        "cuda",
    ),
    Conflict(
        "find_unused_parameters",
        "static_graph",
        lambda v: bool(v["find_unused_parameters"] and v["static_graph"]),
        "a static graph finds them in its first step",
    ),
    Conflict(
        "precision",
        "parallelism",
        lambda v: v["precision"] == "fp16" and v["parallelism"] in SHARDED,
        "gradients that ranks hold in parts would each be checked for overflow alone",
    ),
    Conflict(
        "optimizer_kernels",
        "parallelism",
        lambda v: (
            (v["optimizer_kernels"], v["parallelism"], v["precision"]) == ("fused", "zero1", "fp16")
        ),
        "under precision=fp16 the scale of the loss, which a fused update takes off by itself, does not "
        "reach the optimizer inside ZeroRedundancyOptimizer",
    ),
    _not_beside(
        "static_graph",
        "accumulation_steps",
        lambda v: v != 1,
        "DDP learns the graph from its first backward pass, which no_sync hides from it (torch 2.13)",
    ),
)


@dataclass(frozen=True)
class Facts:
    """What a constraint may ask about the machine and the study.

    Attributes:
        device: 'cpu' or 'cuda'.
        world_size: ranks of a trial.
        capability: lowest CUDA compute capability among the devices; None on the CPU.
        global_batch: samples per optimizer step that the study holds fixed; None: free.
        backend: of the collectives: 'gloo' or 'nccl'.
        nodes: that a trial spans.
        rules: the study's own constraints, each as the user wrote it.
        slow_pairs: pairs of values that run together, only never faster, are tried as well: the user's
            own configuration is one.
    """

    device: str
    world_size: int
    capability: tuple[int, int] | None = None
    global_batch: int | None = None
    backend: str = "gloo"
    nodes: int = 1
    rules: tuple[str, ...] = ()
    slow_pairs: bool = False


def infeasible(knobs: Values, facts: Facts) -> list[str]:
    """Reasons why this configuration cannot run or may not compete; empty: it can.

    Args:
        knobs: a value for every knob of the catalogue, and for those of the study's own.
        facts: about the machine and the study.
    """
    return [
        *unmet_needs(knobs, facts),
        *_ranks(knobs, facts),
        *conflicts(knobs, facts.device, slow_pairs=facts.slow_pairs),
        *_global_batch(knobs, facts),
        *(rule.broken(asked_of(knobs, facts.world_size)) for rule in broken(knobs, facts)),
    ]


def broken(knobs: Values, facts: Facts) -> Iterator[Expression]:
    """The study's own constraints that do not hold."""
    if facts.rules:
        values = asked_of(knobs, facts.world_size)
        yield from (rule for rule in map(parse, facts.rules) if rule.broken(values))


def asked_by(rule: Expression, knobs: Values) -> set[str]:
    """The knobs that a study's own constraint is about."""
    batch = {"micro_batch", "accumulation_steps"} if "global_batch" in rule.names else set()
    return batch | (knobs.keys() & {*rule.names})


def asked_of(knobs: Values, world_size: int) -> Values:
    """All that a study's own constraints may ask for, by name."""
    batch = global_batch(knobs, world_size)
    return {**knobs, "world_size": world_size, "global_batch": batch}


def unmet_needs(knobs: Values, facts: Facts) -> Iterator[str]:
    """Reasons that lie in one knob alone: what its value needs is not there."""
    for name, value in knobs.items():
        # Nothing is known of what a study's own knobs need.
        for need in _demands(CATALOGUE[name], value) if name in CATALOGUE else ():
            if not _available(need, facts):
                yield f"{name}={written(value)} needs {need}; this study runs on {_place(facts)}"
                break  # one reason is enough


def clashing(knobs: Values) -> Iterator[Conflict]:
    """Those that this configuration has, on whatever device."""
    return (conflict for conflict in CONFLICTS if conflict.clash(knobs))


def runs_slowly(knobs: Values) -> bool:
    """Return whether two values of this configuration run together, only never faster."""
    return any(conflict.runs for conflict in clashing(knobs))


def conflicts(knobs: Values, device: str, *, slow_pairs: bool = False) -> Iterator[str]:
    """Yield reasons that lie in two knobs together.

    Args:
        slow_pairs: pairs that run together, only never faster, are no reason.
    """
    for conflict in clashing(knobs):
        if conflict.device not in ("", device) or (conflict.runs and slow_pairs):
            continue
        first, second = (f"{name}={written(knobs[name])}" for name in conflict.pair)
        place = f" on {conflict.device.upper()}" if conflict.device else ""
        yield f"{first} does not go with {second}{place}: {conflict.reason}"


def global_batch(knobs: Values, world_size: int) -> int:
    """Samples over all ranks per optimizer step."""
    return int(knobs["micro_batch"]) * int(knobs["accumulation_steps"]) * world_size


def refused_global_batch(wanted: int, world_size: int) -> str | None:
    """Why this global batch cannot be trained on so many ranks, with advice; None if it can."""
    if wanted < world_size:
        return (
            f"a global batch of {wanted} leaves {world_size - wanted} of {world_size} ranks without "
            f"a sample; use at least {world_size} (and far more for throughput), or fewer workers"
        )
    if wanted % world_size:
        below = wanted - wanted % world_size
        return (
            f"a global batch of {wanted} cannot be split evenly over {world_size} ranks; "
            f"use {below} or {below + world_size}"
        )
    return None


def _ranks(knobs: Values, facts: Facts) -> Iterator[str]:
    on_cuda = facts.device == "cuda"
    if knobs["parallelism"] == "none" and facts.world_size > 1:
        yield f"parallelism=none is for one rank; this study has {facts.world_size}"
    if knobs["parallelism"] == "data_parallel" and (facts.nodes > 1 or facts.world_size == 1):
        yield (
            "parallelism=data_parallel drives several devices of one node; this study has "
            f"{facts.world_size} rank(s) on {facts.nodes} node(s)"
        )
    if knobs["nccl_proto"] == "LL128" and facts.nodes > 1:
        yield (
            "nccl_proto=LL128 can corrupt data where a trial spans several nodes; this study has "
            f"{facts.nodes} (NCCL's documentation of NCCL_PROTO)"
        )
    if knobs["nccl_algo"] == "NVLSTree" and facts.nodes == 1:
        yield "nccl_algo=NVLSTree is for several nodes; this study has 1 (NVLS is for one)"
    alone = (*SHARDED, "data_parallel")
    if on_cuda and facts.backend == "gloo" and knobs["parallelism"] in alone:
        yield f"parallelism={knobs['parallelism']} needs {NCCL}; here ranks share a device"
    if knobs["parallelism"] == "hsdp" and (facts.nodes == 1 or facts.world_size == facts.nodes):
        yield (
            "parallelism=hsdp shards over the ranks of a node and replicates over nodes: it needs "
            f"several of both, and this study has {facts.world_size} rank(s) on {facts.nodes} node(s); "
            "on one node fsdp does the same"
        )


def _global_batch(knobs: Values, facts: Facts) -> Iterator[str]:
    actual = global_batch(knobs, facts.world_size)
    if facts.global_batch is not None and actual != facts.global_batch:
        yield (
            f"micro_batch {knobs['micro_batch']} x accumulation_steps "
            f"{knobs['accumulation_steps']} x {facts.world_size} ranks is a global batch of "
            f"{actual}, not the fixed {facts.global_batch}"
        )


def _demands(knob: Knob, value: KnobValue) -> Iterator[str]:
    needy = value in knob.needs_for if knob.needs_for else value != knob.default
    if knob.needs and needy:
        yield knob.needs
    yield from (need for known, need in knob.also_needs if value == known)


def _available(need: str, facts: Facts) -> bool:
    if need == NCCL:
        return facts.backend == "nccl"
    if need == CUDA:
        return facts.device == "cuda"
    if facts.capability is None:
        return False
    if need == HOPPER:
        return facts.capability == _HOPPER_CAPABILITY
    return facts.capability >= _CAPABILITIES[need]


def _place(facts: Facts) -> str:
    if facts.capability is None:
        return "the CPU"
    return f"CUDA devices of compute capability {facts.capability[0]}.{facts.capability[1]}"
