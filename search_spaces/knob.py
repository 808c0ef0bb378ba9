"""What the catalogue says of one knob."""

from dataclasses import dataclass

KnobValue = bool | int | float | str

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
"""What the time of a step is made of, in the words of a profile (autotune.worker.rank.trace).

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


NUMBERS, DATA, GRAPH, STATISTICS = (
    "number format",
    "data",
    "gradient graph",
    "batch statistics",
)
"""What a knob may change of the training.

number format: the format in which numbers are computed or sent, or the order in which they are summed;
data: the rows that a step trains on; gradient graph: the parameters that get a gradient, and when
gradients are exchanged; batch statistics: the rows over which a layer or a loss computes together.
"""
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choice:
    """A domain of named values."""

    values: tuple[KnobValue, ...]

    def problem(self, value: object) -> str | None:
        """What is wrong with the value, or None."""
        # True == 1 in Python: a boolean is not a number here, nor the other way round.
        if any(value == known and type(value) is type(known) for known in self.values):
            return None
        return f"must be one of {', '.join(written(known) for known in self.values)}"

    def describe(self) -> str:
        """The domain in words."""
        return ", ".join(written(value) for value in self.values)


ON_OR_OFF = Choice((False, True))


@dataclass(frozen=True)
class Range:
    """A domain of numbers from `low` to `high`, both included."""

    low: float
    high: float
    integer: bool = True

    def problem(self, value: object) -> str | None:
        """What is wrong with the value, or None."""
        kinds = (int,) if self.integer else (int, float)
        if isinstance(value, kinds) and not isinstance(value, bool) and self._holds(value):
            return None
        return f"must be {self.describe()}"

    def _holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def describe(self) -> str:
        """The domain in words."""
        noun = "a whole number" if self.integer else "a number"
        return f"{noun} from {self.low} to {self.high}"


@dataclass(frozen=True)
class Knob:
    """One search parameter, as data.

    Attributes:
        name: as in study.yaml, SQL and best.yaml.
        domain: the values that make sense at all.
        default: what PyTorch, or a plain training script, does.
        summary: what it changes.
        changes: what it may change of the training, of NUMBERS, DATA, GRAPH and STATISTICS; each has a
            check: see autotune.analysis.gate and autotune.analysis.sameness.
        needs: what a value other than the default (or those in `needs_for`) requires.
        needs_for: the values that require it; empty: every value but the default.
        also_needs: single values, each with what it requires instead of `needs` or besides.
        parts: of the time of a step that it acts on; see PARTS.
        promising: the value that an expert would try first, or the one nearest to it.
        because: why.
        ordered: whether neighbouring values behave alike.
        memory: whether it changes how much memory a rank takes.
        number_format: whether it says in which number format something is computed or sent: a reference
            run has its default.
        schedule: whether it changes, on purpose, what is trained: a reference run has it, too.
        acts_on: PROCESS, MODEL, WRAPPER or STEP: how much is made anew where its value changes; see
            search_spaces.residency.
        applied: the constructor argument, context or setting that it acts through.
        source: where the knowledge comes from.
        variables: of the environment, which it sets; the allocator's is not only its own.
    """

    name: str
    domain: Choice | Range
    default: KnobValue
    summary: str
    changes: frozenset[str]
    acts_on: str
    applied: str
    source: str
    parts: tuple[str, ...]
    needs: str = ""
    needs_for: tuple[KnobValue, ...] = ()
    also_needs: tuple[tuple[KnobValue, str], ...] = ()
    promising: KnobValue | None = None
    because: str = ""
    ordered: bool = False
    memory: bool = False
    number_format: bool = False
    schedule: bool = False
    variables: tuple[str, ...] = ()

    @property
    def numerics(self) -> bool:
        """Whether it can change the numbers that training computes."""
        return NUMBERS in self.changes


def written(value: KnobValue) -> str:
    """A value as YAML, SQL and tables write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
