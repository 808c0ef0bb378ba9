"""The entry of a knob in the catalogue: all that is known of it, as data."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KnobValue = bool | int | float | str
Knobs = Mapping[str, Any]
Fields = dict[str, Any]
Rule = Callable[[Any, Knobs], Fields | None]
"""From the value of a knob, and all that a constraint may ask for, to fields of the consumer.

None: it has no word for the value. No fields at all: it does so without being told, unless a script told
it something else before.
"""

PRESSURE = "pressure"
PARTS = (
    "compute",
    "communication",
    "optimizer",
    "loader",
    "copies",
    "synchronisation",
    "launching",
    PRESSURE,
)
"""Parts of the time of a step, in the words of a profile (autotune.worker.rank.trace).

compute: forward and backward pass; communication: exchange of gradients; optimizer: the update; loader:
waiting for a batch; copies: of batches to the device; synchronisation: reading the loss on the host;
launching: what every micro-batch costs whatever its size. pressure is what no profile tells from
compute: what a sample costs more in a larger micro-batch (caches).
"""


PROCESS, MODEL, WRAPPER, STEP = "process", "model", "wrapper", "step"
"""Where a knob acts, in the order in which a rank comes to it.

process: on the environment, threads or global settings, before a model is built; model: on the bare
model; wrapper: on what shares it among ranks; step: on what every step does, and on what feeds it.
"""


VARIABLES, SETTINGS, DDP, SHARDING, ROOT, LOADER, OPTIMIZER = (
    "variables of the environment",
    "settings of the process",
    "DistributedDataParallel",
    "fully_shard",
    "root module",
    "DataLoader",
    "Optimizer",
)
"""Objects of a script, or of its process, that a knob can be injected through.

Variables are read when a process starts, and `autotune export --format env` writes them. The root module
is the one whose call a loss comes from.
"""


ANY_WORKLOAD = ""
(
    ATTENTION,
    BLOCKS,
    BUFFERS,
    CHUNKED_LOSS,
    CONVOLUTIONS,
    DATASET,
    FLOAT8_LAYERS,
    IMAGE_CONVOLUTIONS,
    OWN_OPTIMIZER,
    SHORTENED_SAMPLES,
    SPLIT_PROJECTIONS,
) = (
    "attention",
    "blocks",
    "buffers",
    "chunked loss",
    "convolutions",
    "dataset",
    "float8 layers",
    "image convolutions",
    "optimizer",
    "shortened samples",
    "split projections",
)
"""Targets of knobs in a workload. A rank reports those that a workload lacks
(autotune.worker.effects.apply)."""


NUMBERS, DATA, GRAPH, STATISTICS = (
    "number format",
    "data",
    "gradient graph",
    "batch statistics",
)
"""Changes that a knob may make to the training.

number format: the format in which numbers are computed or sent, or the order in which they are summed;
data: the rows that a step trains on; gradient graph: the parameters that get a gradient, and when
gradients are exchanged; batch statistics: the rows over which a layer or a loss computes together.
"""
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choice:
    """A domain of named values."""

    values: tuple[KnobValue, ...]

    def problem(self, value: object) -> str:
        """Return what is wrong with the value; empty: nothing."""
        # True == 1 in Python: a boolean is not a number here, nor the other way round.
        if any(value == known and type(value) is type(known) for known in self.values):
            return ""
        return f"must be one of {', '.join(written(known) for known in self.values)}"

    def describe(self) -> str:
        """Return the domain in words."""
        return ", ".join(written(value) for value in self.values)


ON_OR_OFF = Choice((False, True))


@dataclass(frozen=True)
class Range:
    """A domain of numbers from `low` to `high`, both included."""

    low: float
    high: float
    integer: bool = True

    def problem(self, value: object) -> str:
        """Return what is wrong with the value; empty: nothing."""
        kinds = (int,) if self.integer else (int, float)
        if isinstance(value, kinds) and not isinstance(value, bool) and self._holds(value):
            return ""
        return f"must be {self.describe()}"

    def _holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def describe(self) -> str:
        """Return the domain in words."""
        noun = "a whole number" if self.integer else "a number"
        return f"{noun} from {self.low} to {self.high}"


@dataclass(frozen=True)
class OnlyWith:
    """Values of another knob beside which a knob acts; beside all others it stays at its default.

    Attributes:
        values: of the other knob; empty: every value but its default.
        reason: why it does not act beside other values.
    """

    other: str
    values: tuple[KnobValue, ...]
    reason: str


@dataclass(frozen=True)
class NotWith:
    """Values of a knob that do not go with values of another knob.

    Attributes:
        values: of the knob itself; empty: every value but its default.
        of_other: values of the other knob; empty: every value but its default.
        given: a third knob, and its value without which they do go together.
        device: the only one on which they conflict; empty: any.
        runs: they run together, only never faster: such a pair is not tried unless it is the user's own.
    """

    other: str
    reason: str
    values: tuple[KnobValue, ...] = ()
    of_other: tuple[KnobValue, ...] = ()
    given: tuple[tuple[str, KnobValue], ...] = ()
    device: str = ""
    runs: bool = False


@dataclass(frozen=True)
class Via:
    """Way from outside by which a script gets a knob that it does not turn by itself.

    Attributes:
        through: VARIABLES, SETTINGS, DDP, SHARDING, ROOT, LOADER or OPTIMIZER.
        values: that can be set from outside; empty: all.
        baseline: the value that the script must have by itself, as any other cannot be taken away; None:
            any value can be changed.
    """

    through: str
    values: tuple[KnobValue, ...] = ()
    baseline: KnobValue | None = None


@dataclass(frozen=True)
class Words:
    """Words in which one consumer of a recommendation is told a knob (`autotune export`).

    Attributes:
        by_itself: from all knobs, what the consumer does without being told; None: PyTorch's default.
    """

    say: Rule
    by_itself: Callable[[Knobs], Any] | None = None


def _anywhere(_: Knobs) -> bool:
    return True


def field(name: str, where: Callable[[Knobs], bool] = _anywhere) -> Words:
    """Return a field that takes the value as it is.

    Args:
        where: beside which other values there is such a field.
    """
    return Words(lambda value, knobs: {name: value} if where(knobs) else None)


def one_of(
    fields: Mapping[Any, Fields],
    where: Callable[[Knobs], bool] = _anywhere,
    by_itself: Callable[[Knobs], Any] | None = None,
) -> Words:
    """Return fields for each value that the consumer knows; `where` and `by_itself` as elsewhere."""
    return Words(lambda value, knobs: fields.get(value) if where(knobs) else None, by_itself)


def without(by_itself: Callable[[Knobs], Any]) -> Words:
    """Return that a consumer has no word for a knob, and what it does by itself."""
    return Words(lambda *_: None, by_itself)


@dataclass(frozen=True)
class Named:
    """Options by which scripts turn a knob themselves, as they are usually named.

    Attributes:
        names: of these options, the most telling first, in lower case with underscores.
        seen_by: what of a script shows the knob's value.
        phrases: of their help texts, in lower case.
        spellings: conventions of naming the values: word -> value.
        is_number: whether such an option is given the knob's value; else a word for it, or a switch.
    """

    names: tuple[str, ...]
    seen_by: str
    phrases: tuple[str, ...] = ()
    spellings: tuple[Mapping[str, KnobValue], ...] = ()
    is_number: bool = False


@dataclass(frozen=True)
class Knob:
    """One search parameter, as data.

    Attributes:
        name: as in study.yaml, SQL and best.yaml.
        domain: the values that make sense at all.
        default: what PyTorch, or a plain training script, does.
        changes: what it may change of the training, of NUMBERS, DATA, GRAPH and STATISTICS; each has a
            check: see autotune.analysis.gate and autotune.analysis.sameness.
        acts_on: PROCESS, MODEL, WRAPPER or STEP: how much is made anew where its value changes; see
            search_spaces.constraints.
        target: what of a workload it acts on, such as BLOCKS; ANY_WORKLOAD: every workload has it.
        inject: how a script gets it from outside; None: by an argument of the script only.
        named: options by which scripts turn it themselves; None: none is looked for.
        applied: the constructor argument, context or setting that it acts through.
        source: where the knowledge comes from.
        parts: of the time of a step that it acts on; see PARTS.
        only_with: values of other knobs beside which alone it acts.
        conflicts: values of it that do not go with values of other knobs.
        exports: format of `autotune export` -> its words for the knob; others have none. A knob that is
            injected through VARIABLES has words in the format env by that alone.
        needs: what of the machine a value other than the default (or those in `needs_for`) requires.
        needs_for: the values that require it; empty: every value but the default.
        also_needs: single values, each with what it requires instead of `needs` or besides.
        promising: the value that an expert would try first, or the one nearest to it.
        ordered: whether neighbouring values behave alike.
        memory: whether it changes how much memory a rank takes.
        of_host: whether that is memory of the host alone, and none of a device.
        number_format: whether it says in which number format something is computed or sent: a reference
            run has its default.
        always_said: whether no library has a default that a job could rely on, so that every export says
            the value.
        same_statistics: groups of values between which the batch statistics do not change.
        schedule: whether it changes, on purpose, what is trained: a reference run has it, too.
        variables: of the environment, which it sets; the allocator's is not only its own.
        reversible: values of parallelism beside which running processes can undo a knob of the model,
            and apply another value; empty: none.
        lasting: values of a knob that running processes cannot undo: they act on the process as well.
        stateful: values under which a step depends on earlier ones (an own optimizer or state, or a
            schedule): such a configuration always starts in new processes. Empty: every value but the
            default; None: no value.
        made_for: other knobs whose values are part of what this one builds (CUDA graphs, for example):
            a change of one takes new processes. It is built under the values in `lasting`; where there
            are none, under every value but the default.
    """

    name: str
    domain: Choice | Range
    default: KnobValue
    summary: str
    changes: frozenset[str]
    acts_on: str
    target: str
    inject: Via | None
    applied: str
    source: str
    parts: tuple[str, ...]
    only_with: tuple[OnlyWith, ...]
    conflicts: tuple[NotWith, ...]
    exports: Mapping[str, Words] = dataclasses.field(hash=False)
    named: Named | None = dataclasses.field(default=None, hash=False)
    needs: str = ""
    needs_for: tuple[KnobValue, ...] = ()
    also_needs: tuple[tuple[KnobValue, str], ...] = ()
    promising: KnobValue | None = None
    because: str = ""
    ordered: bool = False
    memory: bool = False
    of_host: bool = False
    number_format: bool = False
    always_said: bool = False
    same_statistics: tuple[tuple[KnobValue, ...], ...] = ()
    schedule: bool = False
    variables: tuple[str, ...] = ()
    reversible: tuple[KnobValue, ...] = ()
    lasting: tuple[KnobValue, ...] = ()
    stateful: tuple[KnobValue, ...] | None = None
    made_for: tuple[str, ...] = ()

    @property
    def numerics(self) -> bool:
        """Return whether it can change the numbers that training computes."""
        return NUMBERS in self.changes

    def among(self, value: KnobValue, values: tuple[KnobValue, ...]) -> bool:
        """Return whether a value is one of these; where there are none, whether it is no default."""
        return value in values if values else value != self.default


def written(value: KnobValue) -> str:
    """Return a value as YAML, SQL and tables write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def changed_knobs(knobs: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the knobs that differ from another configuration, with their values."""
    return {name: value for name, value in knobs.items() if baseline.get(name) != value}
