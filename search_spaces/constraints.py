"""Reasons why a configuration cannot run, or cannot follow another in warm processes. Pure functions."""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from search_spaces.batch import BATCH_KNOBS, global_batch_size
from search_spaces.catalogue import CATALOGUE
from search_spaces.expressions import Expression, parse
from search_spaces.knob import STEP, Knob, KnobValue, NotWith, OnlyWith, changed_knobs, written
from search_spaces.needs import CUDA, FLASH, FP8, HOPPER, IN_DDP, NCCL, SHARDED, SWITCH, TF32

_CAPABILITIES = {TF32: (8, 0), FLASH: (8, 0), FP8: (8, 9), SWITCH: (9, 0)}
"""Need -> the lowest compute capability that meets it."""
_HOPPER_CAPABILITY = (9, 0)
Values = Mapping[str, KnobValue]


@dataclass(frozen=True)
class Conflict:
    """Two knobs that cannot both have such values.

    Attributes:
        first: the knob whose entry says so.
        second: another one.
        holds: tells whether a configuration has it.
        device: the only one on which they conflict; empty: any.
        runs: they run together, only never faster: such a pair is not tried unless it is the user's own.
        given: further knobs on which it depends.
    """

    first: str
    second: str
    holds: Callable[[Values], bool]
    reason: str
    device: str = ""
    runs: bool = False
    given: tuple[str, ...] = ()

    @property
    def pair(self) -> tuple[str, str]:
        """Return both knobs."""
        return self.first, self.second


def _has(name: str, values: tuple[KnobValue, ...], knobs: Values) -> bool:
    return CATALOGUE[name].among(knobs[name], values)


def _only_with(knob: Knob, only: OnlyWith) -> Conflict:
    def holds(knobs: Values) -> bool:
        return _has(knob.name, (), knobs) and not _has(only.other, only.values, knobs)

    return Conflict(knob.name, only.other, holds, only.reason)


def _not_with(knob: Knob, told: NotWith) -> Conflict:
    def holds(knobs: Values) -> bool:
        return (
            _has(knob.name, told.values, knobs)
            and _has(told.other, told.of_other, knobs)
            and all(knobs[name] == value for name, value in told.given)
        )

    given = tuple(name for name, _ in told.given)
    return Conflict(knob.name, told.other, holds, told.reason, told.device, told.runs, given)


def conflicts_of(knobs: Iterable[Knob]) -> Iterator[Conflict]:
    """Yield the conflicts that the entries of these knobs tell of."""
    for knob in knobs:
        yield from (_only_with(knob, only) for only in knob.only_with)
        yield from (_not_with(knob, told) for told in knob.conflicts)


CONFLICTS = (*conflicts_of(CATALOGUE.values()),)


@dataclass(frozen=True)
class Facts:
    """Facts about the machine and the study that a constraint may ask for.

    Attributes:
        device: 'cpu' or 'cuda'.
        world_size: ranks of a trial.
        capability: lowest CUDA compute capability among the devices; None on the CPU.
        global_batch_size: samples per optimizer step that the study holds fixed; None: free.
        backend: of the collectives: 'gloo' or 'nccl'.
        nodes: that a trial spans.
        rules: the study's own constraints, each as the user wrote it.
        slow_pairs: pairs of values that run together, only never faster, are tried as well: the user's
            own configuration is one.
        own_ll128: LL128 is the protocol of NCCL in the baseline.
    """

    device: str
    world_size: int
    capability: tuple[int, int] | None = None
    global_batch_size: int | None = None
    backend: str = "gloo"
    nodes: int = 1
    rules: tuple[str, ...] = ()
    slow_pairs: bool = False
    own_ll128: bool = False


def infeasible(knobs: Values, facts: Facts) -> list[str]:
    """Return why this configuration cannot run or may not compete; empty: it can.

    Args:
        knobs: a value for every knob of the catalogue, and for those of the study's own.
        facts: about the machine and the study.
    """
    return [
        *unmet_needs(knobs, facts),
        *_ranks(knobs, facts),
        *_buckets(knobs),
        *conflict_reasons(knobs, facts.device, slow_pairs=facts.slow_pairs),
        *_global_batch(knobs, facts),
        *(rule.broken(asked_of(knobs, facts.world_size)) for rule in broken(knobs, facts)),
    ]


def broken(knobs: Values, facts: Facts) -> Iterator[Expression]:
    """Yield the study's own constraints that do not hold."""
    if facts.rules:
        values = asked_of(knobs, facts.world_size)
        yield from (rule for rule in map(parse, facts.rules) if rule.broken(values))


def asked_by(rule: Expression, knobs: Values) -> set[str]:
    """Return the knobs that a study's own constraint is about."""
    batch = {*BATCH_KNOBS} if "global_batch_size" in rule.names else set()
    return batch | (knobs.keys() & {*rule.names})


def asked_of(knobs: Values, world_size: int) -> Values:
    """Return all that a study's own constraints and the words of an export may ask for, by name."""
    batch = global_batch_size(knobs, world_size)
    return {**knobs, "world_size": world_size, "global_batch_size": batch}


def unmet_needs(knobs: Values, facts: Facts) -> Iterator[str]:
    """Yield reasons that lie in one knob alone: what its value needs is not there."""
    for name, value in knobs.items():
        # Nothing is known of what a study's own knobs need.
        for need in _demands(CATALOGUE[name], value) if name in CATALOGUE else ():
            if not _available(need, facts):
                yield f"{name}={written(value)} needs {need}; this study runs on {_place(facts)}"
                break  # one reason is enough


def has_tf32(facts: Facts) -> bool:
    """Return whether fp32 matrix products could run in TF32."""
    return _available(TF32, facts)


def conflicts_in(knobs: Values) -> Iterator[Conflict]:
    """Yield the conflicts that a configuration has on every device."""
    return (conflict for conflict in CONFLICTS if conflict.holds(knobs))


def runs_slowly(knobs: Values) -> bool:
    """Return whether two values of this configuration run together, only never faster."""
    return any(conflict.runs for conflict in conflicts_in(knobs))


def conflict_reasons(
    knobs: Values, device: str, *, slow_pairs: bool = False, among: Collection[str] | None = None
) -> Iterator[str]:
    """Yield reasons that lie in two knobs together.

    Args:
        knobs: a value for every knob.
        device: 'cpu' or 'cuda'.
        slow_pairs: pairs that run together, only never faster, are no reason.
        among: knobs that have these values for certain, without which nothing is a reason; None: all.
    """
    for conflict in conflicts_in(knobs):
        if conflict.device not in ("", device) or (conflict.runs and slow_pairs):
            continue
        if among is not None and not {*conflict.pair, *conflict.given} <= {*among}:
            continue
        first, second = (f"{name}={written(knobs[name])}" for name in conflict.pair)
        place = f" on {conflict.device.upper()}" if conflict.device else ""
        yield f"{first} does not go with {second}{place}: {conflict.reason}"


def _ranks(knobs: Values, facts: Facts) -> Iterator[str]:
    on_cuda = facts.device == "cuda"
    if knobs["parallelism"] == "none" and facts.world_size > 1:
        yield f"parallelism=none is for one rank; this study has {facts.world_size}"
    if knobs["parallelism"] == "data_parallel" and (facts.nodes > 1 or facts.world_size == 1):
        yield (
            "parallelism=data_parallel drives several devices of one node; this study has "
            f"{facts.world_size} rank(s) on {facts.nodes} node(s)"
        )
    if knobs["nccl_proto"] == "LL128" and not (facts.own_ll128 and facts.nodes == 1):
        yield (
            "nccl_proto=LL128 can corrupt data on links that do not carry it, and what links are here "
            "is not known; auto takes it where it is safe (NCCL's documentation of NCCL_PROTO)"
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


def _buckets(knobs: Values) -> Iterator[str]:
    """Yield a reason where torch.compile, which cuts the graph as DDP cuts its buckets, refuses them."""
    compiles = knobs["compile"] != "none" and knobs["parallelism"] in IN_DDP
    if compiles and float(knobs["first_bucket_mb"]) > float(knobs["bucket_cap_mb"]):
        yield (
            f"compile={knobs['compile']} needs a first bucket that is no larger than the others: "
            f"first_bucket_mb is {knobs['first_bucket_mb']}, bucket_cap_mb {knobs['bucket_cap_mb']}"
        )


def _global_batch(knobs: Values, facts: Facts) -> Iterator[str]:
    actual = global_batch_size(knobs, facts.world_size)
    if facts.global_batch_size is not None and actual != facts.global_batch_size:
        yield (
            f"micro_batch {knobs['micro_batch']} x accumulation_steps "
            f"{knobs['accumulation_steps']} x {facts.world_size} ranks is a global batch of "
            f"{actual}, not the fixed {facts.global_batch_size}"
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
        return need == FLASH
    if need == HOPPER:
        return facts.capability == _HOPPER_CAPABILITY
    return facts.capability >= _CAPABILITIES[need]


def _place(facts: Facts) -> str:
    if facts.capability is None:
        return "the CPU"
    return f"CUDA devices of compute capability {facts.capability[0]}.{facts.capability[1]}"


def why_not_taken_over(now: Values, following: Values) -> str:
    """Return why processes that have trained one configuration cannot take another; empty: they can.

    Args:
        now: a value for every knob, a study's own among them.
        following: likewise.
    """
    changed = changed_knobs(following, now).keys()
    reasons = (
        _irreversible(changed, following),
        _with_a_history(following),
        _lasting(changed, now, following),
        _bound(changed, following),
    )
    return next(filter(None, reasons), "")


def _irreversible(changed: Iterable[str], following: Values) -> str:
    for name in sorted(changed):
        if name not in CATALOGUE:
            return f"{name} is a knob of the study's own"
        knob = CATALOGUE[name]
        if knob.acts_on != STEP and following["parallelism"] not in knob.reversible:
            return f"{name} acts on the {knob.acts_on}"
    return ""


def _with_a_history(following: Values) -> str:
    for name, knob in CATALOGUE.items():
        if knob.stateful is not None and knob.among(following[name], knob.stateful):
            return f"{name}={written(following[name])} goes with a training from its first step on"
    return ""


def _lasting(changed: Container[str], now: Values, following: Values) -> str:
    for name, knob in CATALOGUE.items():
        kept = [values[name] for values in (now, following) if values[name] in knob.lasting]
        if name in changed and kept:
            return f"{name}={written(kept[0])} stays for as long as its process"
    return ""


def _bound(changed: Container[str], following: Values) -> str:
    for maker, knob in CATALOGUE.items():
        for name in knob.made_for:
            if name in changed and knob.among(following[maker], knob.lasting):
                return f"{name} is part of what was made for {maker}"
    return ""
