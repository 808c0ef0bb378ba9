"""What runs cost, by the runs that are recorded. Pure.

A run starts up, takes a first step, and then one step after another: the three are told apart, since a
run that is planned may take fewer steps than those that are known. What takes over the processes of the
run before it starts up in less time.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.analysis.compilation import Compilation, Compiled, compiles
from autotune.measurement.numerics import FEWEST_STEPS
from autotune.measurement.onset import Onset, OnsetBound
from search_spaces.residency import why_not_live
from storage import Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

Blocks = Callable[[int], Sequence[StoredBlock]]
"""Attempt id -> its blocks."""
Knobs = Mapping[str, Any]

_MOST_RUNS = 16
"""That are looked at, the latest: more of them tell nothing new."""
_FEWEST_STEPS = 2
"""Of a timed run after its first step, which then is all of its warm-up."""
_BRIEF_STEPS = 6.0
"""Steps after the first one of a run that only shows how processes lie apart (judgement: steps that
scatter by 10 % then tell a rate to 4 %, where processes differ by 20 %)."""
_PROFILED_STEPS = 7.0
"""What the shortest profile costs, in steps, the overhead of the profiler included."""
_LONGER = 2.0
"""Than one that was too short, so that a few of them get there."""
_SLOW_LAUNCH = 0.9
"""Quantile of the launches seen that a plan counts on: of up to nine, the slowest."""
_LEAST_TIMED_ON_DEVICE = 0.3
"""Share of a launch on a CUDA device: steps that are timed for less are not worth it. A step is timed to
1 % in about one second there (H200)."""
_LEAST_TIMED = 0.1
"""Share of a launch: steps that are timed for less are not worth it."""
_FULL_PRECISION = 7.0
"""Factor of a step in fp32 over one in bf16 on a CUDA device, as long as none in fp32 was timed (56,000
against 409,000 tokens/s, GPT-2 124M on an H200)."""
_UNKNOWN = 1.0
"""Seconds of a trial before there was any: all are alike."""
_LEAST = 1e-3
_TIMED = (
    Purpose.SEARCH,
    Purpose.PAIRED,
    Purpose.CALIBRATE,
    Purpose.CONFIRM,
    Purpose.REPEAT,
    Purpose.ATTRIBUTE,
)


@dataclass(frozen=True)
class Pace:
    """How a recorded run went.

    Attributes:
        startup: seconds before its first step, and after its last one.
        onset: its first step, and a steady one.
        compiled: something was compiled in it.
        samples: of a step.
        trained: seconds of all of its blocks, those of the warm-up included.
        live: it took over the processes of the run before.
        interleaved: it took turns with other runs.
    """

    knobs: dict[str, Any]
    startup: float
    onset: Onset
    compiled: bool
    samples: float
    trained: float = 0.0
    live: bool = False
    interleaved: bool = False

    @classmethod
    def of(cls, attempt: StoredAttempt, blocks: Sequence[StoredBlock]) -> Self | None:
        """Return the pace of a timed run; None if none of its blocks counts."""
        kept = [block for block in blocks if block.kept]
        if not kept:
            return None
        steps = sum(block.steps for block in kept)
        steady = sum(block.seconds for block in kept) / steps
        trained = sum(
            block.seconds + block.observed.get("left_out_seconds", 0.0) for block in blocks
        )
        return cls(
            attempt.knobs,
            max(0.0, attempt.result.wall_seconds - trained),
            Onset(blocks[0].seconds / blocks[0].steps, steady),
            any(block.observed.get("compilations") for block in blocks),
            sum(block.samples for block in kept) / steps,
            trained,
            attempt.result.resident_of is not None,
            any("turn" in block.observed for block in blocks),
        )

    @property
    def compiling(self) -> float:
        """Seconds of its first step that are the compilation's."""
        return max(0.0, self.onset.first - self.onset.steady) if compiles(self.knobs) else 0.0


_ON_PROCESSORS = Compilation()


class Costs:
    """Of runs that are still to be made, in seconds."""

    def __init__(
        self,
        paces: Sequence[Pace],
        in_vain: Sequence[StoredAttempt] = (),
        looked: float = 0.0,
        compilation: Compilation = _ON_PROCESSORS,
    ) -> None:
        """Take in what is known, the latest last.

        Args:
            in_vain: runs of the finals that were ended before their first step was over, where none of
                the same configuration has completed since.
            looked: seconds of the look before the search until its first step was over: all that is
                known of a launch while nothing else has been launched.
            compilation: price of compilation, as far as it is known.
        """
        self._paces = paces
        self._in_vain = in_vain
        self._looked = looked
        self._compilation = compilation

    def compilation(self, knobs: Knobs) -> float:
        """Return seconds that compilation adds to the first step of this configuration."""
        return self._compilation.seconds(knobs)

    def once(self, knobs: Knobs) -> "Costs":
        """Return the costs once this configuration has run: what it compiles is kept."""
        return Costs(self._paces, self._in_vain, self._looked, self._compilation.once(knobs))

    @property
    def known(self) -> bool:
        """Whether any run has shown anything."""
        return bool(self._paces)

    @property
    def startup(self) -> float:
        """Return the usual time before the first step, in new processes."""
        return statistics.median(self._launches or [self._looked])

    @property
    def slow_startup(self) -> float:
        """Return the time before the first step that a plan counts on: nearly the longest seen."""
        seen = sorted(self._launches) or [self._looked]
        return seen[math.ceil(_SLOW_LAUNCH * len(seen)) - 1]

    @property
    def _launches(self) -> list[float]:
        """Return the launches seen; those at once with another are part of that one's time."""
        at_once = self._compilation.device == "cuda"
        return [p.startup for p in self._paces if not (p.live or (at_once and p.interleaved))]

    @property
    def switch(self) -> float:
        """The same in processes that take over; nothing, as long as none has."""
        return statistics.median([pace.startup for pace in self._paces if pace.live] or [0.0])

    @property
    def trained(self) -> float:
        """Seconds of all blocks of a run; nothing, as long as none is known."""
        return statistics.median([pace.trained for pace in self._paces] or [0.0])

    def expected(self, knobs: Knobs, resident: Knobs | None) -> float:
        """Of a trial of the search, from its launch to its end; above zero, and the same for all while
        nothing is known.

        Args:
            resident: the configuration of processes that wait on a slot; None: there are none.
        """
        if not self.known:
            return _UNKNOWN
        live = resident is not None and not why_not_live(resident, knobs)
        alike = [pace for pace in self._paces if pace.live == live] or self._paces
        usual = statistics.median(pace.trained - pace.compiling for pace in alike)
        usual += 0.0 if live else self.compilation(knobs)
        first = self.step(knobs) if live and compiles(knobs) else self.first_step(knobs)
        fewest = first + _FEWEST_STEPS * self.step(knobs)
        return max(_LEAST, (self.switch if live else self.startup) + max(usual, fewest))

    @property
    def settling(self) -> OnsetBound:
        """What first steps of this study are like, in new processes: in others they tell too little."""
        alone = [pace for pace in self._paces if not (pace.compiled or pace.live)]
        return OnsetBound.of([pace.onset for pace in alone])

    def step(self, knobs: Knobs) -> float:
        """Of a steady step of this configuration, by what is known of it or, per sample, of the slowest
        that completed."""
        own = [pace.onset.steady for pace in self._paces if pace.knobs == knobs]
        if own or not self.known:
            return statistics.median(own or [0.0])
        per_sample = [pace.onset.steady / pace.samples for pace in self._paces]
        return max(per_sample) * self._samples(knobs)

    def first_step(self, knobs: Knobs) -> float:
        """The same for the first one of a run."""
        if compiles(knobs):
            return self.step(knobs) + self.compilation(knobs)
        own = [pace.onset.first for pace in self._paces if pace.knobs == knobs]
        return statistics.median(own) if own else self.step(knobs)

    def shortest(self, knobs: Knobs) -> float:
        """Return seconds of the shortest timed run, from a slow launch to its end."""
        return self._run(self.slow_startup, knobs)

    def usual(self, knobs: Knobs) -> float:
        """Return seconds of the shortest timed run whose launch takes as long as most."""
        return self._run(self.startup, knobs)

    def brief(self, knobs: Knobs, *, slow: bool = False) -> float:
        """Return seconds of a run of a few steps, which shows how its processes lie apart.

        Args:
            slow: its launch is a slow one.
        """
        steps = self.first_step(knobs) + _BRIEF_STEPS * self.step(knobs)
        return (self.slow_startup if slow else self.startup) + steps

    def _run(self, startup: float, knobs: Knobs) -> float:
        """Return seconds of the shortest timed run; where one was ended before it had shown anything,
        some times as long as that."""
        too_short = (a.result.wall_seconds for a in self._in_vain if a.knobs == knobs)
        return max(startup + self._fewest_steps(knobs), _LONGER * max(too_short, default=0.0))

    def _fewest_steps(self, knobs: Knobs) -> float:
        on_device = self._compilation.device == "cuda"
        share = _LEAST_TIMED_ON_DEVICE if on_device else _LEAST_TIMED
        counted, least = _FEWEST_STEPS * self.step(knobs), share * self.slow_startup
        if compiles(knobs) or on_device:
            counted = max(counted, least)  # beside a first step of seconds
        return max(self.first_step(knobs) + counted, least)

    def trajectory(self, knobs: Knobs) -> float:
        """Return seconds of a run of the numerics gate."""
        steps = self.first_step(knobs) + (FEWEST_STEPS - 1) * self.step(knobs)
        return self.slow_startup + self._slower(knobs) * steps

    def _slower(self, knobs: Knobs) -> float:
        """Return the factor by which a number format is slower than those that have been timed."""
        timed = any(pace.knobs["precision"] == knobs["precision"] for pace in self._paces)
        full = self._compilation.device == "cuda" and knobs["precision"] == "fp32"
        return _FULL_PRECISION if full and not timed and self.known else 1.0

    def profile(self, knobs: Knobs) -> float:
        """Return seconds of the shortest look at what a step is made of."""
        return self.slow_startup + _PROFILED_STEPS * self.step(knobs)

    def _samples(self, knobs: Knobs) -> float:
        first = self._paces[0]
        return first.samples * _size(knobs) / _size(first.knobs)


def _size(knobs: Knobs) -> float:
    return float(knobs["micro_batch"] * knobs["accumulation_steps"])


class CostRecords:
    """Costs as the records show them; what has been looked at is not read again."""

    def __init__(self, blocks: Blocks, device: str = "cpu") -> None:
        """Take in the function that reads blocks, and what trials run on, 'cpu' or 'cuda'."""
        self._blocks = blocks
        self._device = device
        self._paces: dict[int, Pace | None] = {}
        self._looked: float | None = None

    def by(self, attempts: Attempts) -> Costs:
        """By the latest runs, the baseline's first one among them."""
        timed = list(attempts.of(*_TIMED).complete())
        looked_at = [*timed[:1], *timed[1:][-_MOST_RUNS:]]
        for attempt in looked_at:
            if attempt.id not in self._paces:
                self._paces[attempt.id] = Pace.of(attempt, self._blocks(attempt.id))
        paces = [pace for a in looked_at if (pace := self._paces[a.id]) is not None]
        looked = self._look(attempts)
        launch = Costs(paces, looked=looked).startup
        seen = [Compiled(p.knobs, p.compiling) for p in paces if p.compiling and not p.live]
        compilation = Compilation(self._device, seen, _not_compiled(attempts, launch))
        return Costs(paces, _in_vain(attempts), looked, compilation)

    def _look(self, attempts: Attempts) -> float:
        if self._looked is None and (look := attempts.of(Purpose.PROFILE).recorded().first):
            spent = [b.observed.get("look_seconds", b.seconds) for b in self._blocks(look.id)]
            self._looked = max(0.0, look.result.wall_seconds - sum(spent)) if spent else 0.0
        return self._looked or 0.0


def _in_vain(attempts: Attempts) -> list[StoredAttempt]:
    """Such as may be launched again and again: a trial of the search is told, and that is that."""
    finals = attempts.of(Purpose.CONFIRM, Purpose.ATTRIBUTE)
    ended = [a for a in finals.ended_in(AttemptState.PRUNED) if a.result.throughput is None]
    later = finals.complete() if ended else ()
    return [a for a in ended if not any(c.id > a.id and c.knobs == a.knobs for c in later)]


def _not_compiled(attempts: Attempts, launch: float) -> list[Compiled]:
    """Return the compilations that trials of the search were ended in, each with the seconds so far."""
    return [
        Compiled(a.knobs, max(0.0, a.result.wall_seconds - launch))
        for a in attempts.of(Purpose.SEARCH).ended_in(AttemptState.PRUNED)
        if a.result.throughput is None and compiles(a.knobs)
    ]
