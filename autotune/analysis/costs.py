"""Costs of runs in seconds, by the runs that are recorded. Pure.

A run starts up, takes a first step, and then one step after another. The three are told apart, because a
planned run may take fewer steps than the known ones. A run in warm workers starts up in less time.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from autotune.analysis.compilation import Compilation, Compiled, compiles, graph
from autotune.analysis.policy import ANALYSIS
from autotune.measurement.policy import GATE, MEASUREMENT
from autotune.measurement.step_series import Onset, OnsetBound
from autotune.worker.protocol import STEPS_WITHOUT_DROPOUT
from search_spaces.constraints import why_not_taken_over
from search_spaces.knob import Knobs
from storage import (
    COMPARED_RUNS,
    SEARCH_RUNS,
    TRAJECTORIES,
    Attempts,
    AttemptState,
    Blocks,
    Purpose,
    StoredAttempt,
    StoredBlock,
)


@dataclass(frozen=True)
class RunTimes:
    """Times of a recorded run.

    Attributes:
        startup: seconds before its first step, and after its last one.
        onset: its first step, and a steady one.
        compiled: True if something was compiled in it.
        samples: samples of a step; 0 where they are not seen.
        trained: seconds of all of its blocks, those of the warm-up included.
        taken_over: it took over the processes of the run before.
        interleaved: it took turns with other runs.
        convolutional: its model has convolutions.
    """

    knobs: dict[str, Any]
    startup: float
    onset: Onset
    compiled: bool
    samples: float
    trained: float = 0.0
    taken_over: bool = False
    interleaved: bool = False
    convolutional: bool = False

    @classmethod
    def of(cls, attempt: StoredAttempt, blocks: Sequence[StoredBlock]) -> Self | None:
        """Return the times of a run; None if none of its blocks counts.

        In a check, which has a block a step, all but the first count.
        """
        if attempt.purpose is Purpose.NUMERICS:
            kept = blocks[1:]
        else:
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
            any(block.observed.get("convolutions") for block in blocks),
        )

    @property
    def compiling(self) -> float:
        """Seconds of its first step that are the compilation's."""
        return max(0.0, self.onset.first - self.onset.steady) if compiles(self.knobs) else 0.0

    def compiled_in(self, launch: float) -> float:
        """Return seconds that compilation has taken, in its first step and before it.

        A script may evaluate its model before it trains.

        Args:
            launch: seconds of a usual launch.
        """
        alone = compiles(self.knobs) and not (self.taken_over or self.interleaved)
        return self.compiling + (max(0.0, self.startup - launch) if alone else 0.0)


_ON_PROCESSORS = Compilation()


class Costs:
    """Costs of runs that are still to be made, in seconds."""

    def __init__(
        self,
        runs: Sequence[RunTimes],
        in_vain: Sequence[StoredAttempt] = (),
        looked: float = 0.0,
        compilation: Compilation = _ON_PROCESSORS,
        references: Sequence[tuple[Knobs, int]] = (),
    ) -> None:
        """Take in what is known, the latest last.

        Args:
            in_vain: runs of the finals that their time has ended before they showed anything, where
                none of the same configuration has come to its end since.
            looked: seconds of the look before the search until its first step was over: all that is
                known of a launch while nothing else has been launched.
            compilation: price of compilation, as far as it is known.
            references: configuration and steps of each reference of the numerics gate.
        """
        self._runs = runs
        self._in_vain = in_vain
        self._looked = looked
        self._compilation = compilation
        self._references = references

    def compilation(self, knobs: Knobs) -> float:
        """Return seconds that compilation adds to the first step of this configuration."""
        return self._compilation.seconds(knobs)

    def once(self, knobs: Knobs) -> "Costs":
        """Return the costs once this configuration has run: what it compiles is kept."""
        compilation = self._compilation.once(knobs)
        return Costs(self._runs, self._in_vain, self._looked, compilation, self._references)

    @property
    def known(self) -> bool:
        """True if any run has shown anything."""
        return bool(self._runs)

    @property
    def startup(self) -> float:
        """Return the usual time before the first step, in new processes."""
        return statistics.median(self._launches or [self._looked])

    @property
    def slow_startup(self) -> float:
        """Return the time before the first step that a plan counts on: nearly the longest seen."""
        seen = sorted(self._launches) or [self._looked]
        return seen[math.ceil(ANALYSIS.slow_launch * len(seen)) - 1]

    @property
    def longest_startup(self) -> float:
        """Return the longest time before the first step in new processes."""
        return max(self._launches or [self._looked])

    @property
    def _launches(self) -> list[float]:
        """Return the launches seen, without those in which something may have been compiled.

        Those at once with another are part of that one's time.
        """
        at_once = self._compilation.device == "cuda"
        launched = [p for p in self._runs if not (p.taken_over or (at_once and p.interleaved))]
        eager = [p.startup for p in launched if not compiles(p.knobs)]
        return eager or [p.startup for p in launched]

    @property
    def switch(self) -> float:
        """Usual time before the first step in warm workers; 0 as long as none took over."""
        return statistics.median([run.startup for run in self._runs if run.taken_over] or [0.0])

    @property
    def trained(self) -> float:
        """Seconds of all blocks of a run; 0 as long as none is known."""
        return statistics.median([run.trained for run in self._runs] or [0.0])

    def expected(self, knobs: Knobs, warm: Knobs | None) -> float:
        """Return seconds of a trial of the search from its launch to its end, above 0.

        They are equal for all trials while nothing is known.

        Args:
            knobs: configuration of the trial.
            warm: configuration of warm workers on a slot; None: there are none.
        """
        if not self.known:
            return ANALYSIS.unknown_seconds
        taken_over = warm is not None and not why_not_taken_over(warm, knobs)
        alike = [run for run in self._runs if run.taken_over == taken_over] or self._runs
        usual = statistics.median(run.trained - run.compiling for run in alike)
        compiled = taken_over and warm is not None and graph(warm) == graph(knobs)
        usual += 0.0 if compiled else self.compilation(knobs)
        first = self.step(knobs) if compiled and compiles(knobs) else self.first_step(knobs)
        fewest = first + ANALYSIS.fewest_timed_steps * self.step(knobs)
        return max(
            ANALYSIS.least_seconds,
            (self.switch if taken_over else self.startup) + max(usual, fewest),
        )

    @property
    def settling(self) -> OnsetBound:
        """Bound on first steps by those of this study in new processes; others tell too little."""
        alone = [run for run in self._runs if not (run.compiled or run.taken_over)]
        return OnsetBound.of([run.onset for run in alone])

    def step(self, knobs: Knobs) -> float:
        """Return seconds of a steady step of this configuration.

        They are known of it, or else are those of the slowest known one, per sample where samples are
        seen.
        """
        own = [run.onset.steady for run in self._runs if run.knobs == knobs]
        if own or not self.known:
            return statistics.median(own or [0.0])
        if not all(run.samples for run in self._runs):
            return max(run.onset.steady for run in self._runs)
        per_sample = [run.onset.steady / run.samples for run in self._runs]
        return max(per_sample) * self._samples(knobs)

    def first_step(self, knobs: Knobs) -> float:
        """Return seconds of the first step of a run of this configuration."""
        if compiles(knobs):
            return self.step(knobs) + self.compilation(knobs)
        own = [run.onset.first for run in self._runs if run.knobs == knobs]
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
            knobs: configuration of the run.
            slow: True for a slow launch.
        """
        steps = self.first_step(knobs) + ANALYSIS.brief_steps * self.step(knobs)
        startup = self.slow_startup if slow else self.startup
        return max(startup + steps, self._longer_than_before(knobs, Purpose.REPEAT))

    def _run(self, startup: float, knobs: Knobs) -> float:
        """Return seconds of the shortest timed run.

        Where one was ended before it had shown anything, they are a multiple of its time.
        """
        fewest_steps = max(self.first_step(knobs) + self._counted(knobs), self._least_timed)
        return max(
            startup + fewest_steps,
            self._longer_than_before(knobs, Purpose.CONFIRM, Purpose.ABLATION),
        )

    def _longer_than_before(self, knobs: Knobs, *purposes: Purpose) -> float:
        """Return the seconds that a run is given after one that was too short; 0 without any."""
        too_short = (
            a.result.wall_seconds
            for a in self._in_vain
            if a.purpose in purposes and a.knobs == knobs
        )
        return ANALYSIS.longer_after_failure * max(too_short, default=0.0)

    def _counted(self, knobs: Knobs) -> float:
        """Return seconds of the steps that count in the shortest timed run."""
        fewest = ANALYSIS.fewest_timed_steps * self.step(knobs)
        beside_long_first_step = compiles(knobs) or self._on_device
        return max(fewest, self._least_timed) if beside_long_first_step else fewest

    @property
    def _least_timed(self) -> float:
        """Return seconds of steps that the shortest timed run takes, whatever a step takes."""
        launch = self.slow_startup
        if self._on_device:
            return ANALYSIS.least_timed_on_device * launch
        warming = min(ANALYSIS.cold_seconds, ANALYSIS.cold_share * launch)
        return max(ANALYSIS.least_timed * launch, warming)

    @property
    def _on_device(self) -> bool:
        return self._compilation.device == "cuda"

    def further_steps(self, knobs: Knobs) -> float:
        """Return seconds that a run with enough steps for a proof takes beyond the shortest one.

        They are 0 where steps are not timed one by one.
        """
        enough = MEASUREMENT.steps_for_proof * self.step(knobs)
        return max(0.0, enough - self._counted(knobs)) if self._on_device else 0.0

    @property
    def convolutional(self) -> bool:
        """True if a run has shown that the model has convolutions."""
        return any(run.convolutional for run in self._runs)

    def check(self, purpose: Purpose, knobs: Knobs, safe: Knobs) -> float:
        """Return seconds of the shortest run of the numerics gate with this purpose.

        Args:
            safe: configuration of its reference.
        """
        count = STEPS_WITHOUT_DROPOUT if purpose is Purpose.AUTOCAST else self._compared(safe)
        steps = self.first_step(knobs) + (count - 1) * self.step(knobs)
        shortest = self.slow_startup + self._slower(knobs) * steps
        return max(shortest, self._longer_than_before(knobs, purpose))

    def _compared(self, safe: Knobs) -> int:
        """Return the steps of a check: as many as its reference took, or else the longest known one.

        They are the fewest while none is known.
        """
        own = [steps for knobs, steps in self._references if knobs == safe]
        known = own or [steps for _, steps in self._references]
        return max([GATE.fewest_steps, *known])

    def _slower(self, knobs: Knobs) -> float:
        """Return the factor by which a number format is slower than those that have been timed."""
        timed = any(run.knobs["precision"] == knobs["precision"] for run in self._runs)
        full = self._compilation.device == "cuda" and knobs["precision"] == "fp32"
        return ANALYSIS.full_precision if full and not timed and self.known else 1.0

    def profile(self, knobs: Knobs) -> float:
        """Return seconds of the shortest look at what a step is made of."""
        return self.slow_startup + ANALYSIS.profiled_steps * self.step(knobs)

    def _samples(self, knobs: Knobs) -> float:
        first = self._runs[0]
        return first.samples * _size(knobs) / _size(first.knobs)


def _size(knobs: Knobs) -> float:
    return float(knobs["micro_batch"] * knobs["accumulation_steps"])


class CostRecords:
    """Costs by the records; the blocks of an attempt are read once."""

    def __init__(self, blocks: Blocks, device: str = "cpu") -> None:
        """Take in the function that reads blocks, and the device, 'cpu' or 'cuda'."""
        self._blocks = blocks
        self._device = device
        self._runs: dict[int, RunTimes | None] = {}
        self._steps: dict[int, int] = {}
        """Steps of a reference, which has a block a step, by its id."""
        self._looked: float | None = None
        self._last: tuple[Attempts, Costs] | None = None

    def by(self, attempts: Attempts) -> Costs:
        """Return the costs by the latest runs and the baseline's first one."""
        if self._last is None or self._last[0] is not attempts:
            self._last = attempts, self._by(attempts)
        return self._last[1]

    def _by(self, attempts: Attempts) -> Costs:
        every = list(attempts.of(*SEARCH_RUNS, *COMPARED_RUNS).complete())
        timed = [*every[:1], *every[1:][-ANALYSIS.runs_looked_at :]]
        runs, looked = self._times(timed), self._look(attempts)
        launch = Costs(runs, looked=looked).startup
        # A check of a graph that was timed is its second run, and tells what the next one will take.
        graphs = {graph(run.knobs) for run in runs}
        several = attempts.of(Purpose.NUMERICS).complete()
        checks = [one for one in several if graph(one.knobs) in graphs]
        seen = [
            Compiled(p.knobs, seconds)
            for p in self._times(sorted([*timed, *checks], key=lambda one: one.id))
            if (seconds := p.compiled_in(launch)) and (p.compiled or not p.taken_over)
        ]
        compilation = Compilation(self._device, seen, _not_compiled(attempts, launch))
        return Costs(runs, _in_vain(attempts), looked, compilation, self._references(attempts))

    def _references(self, attempts: Attempts) -> list[tuple[Knobs, int]]:
        """Return configuration and steps of the references, those that were cut short included."""
        several = attempts.of(Purpose.REFERENCE).ended_in(
            AttemptState.COMPLETE, AttemptState.PRUNED
        )
        for one in several:
            if one.id not in self._steps:
                self._steps[one.id] = len(self._blocks(one.id))
        return [(one.knobs, self._steps[one.id]) for one in several]

    def _times(self, several: Sequence[StoredAttempt]) -> list[RunTimes]:
        for attempt in several:
            if attempt.id not in self._runs:
                self._runs[attempt.id] = RunTimes.of(attempt, self._blocks(attempt.id))
        return [run for one in several if (run := self._runs[one.id]) is not None]

    def _look(self, attempts: Attempts) -> float:
        if self._looked is None and (look := attempts.of(Purpose.PROFILE).recorded().first):
            spent = [b.observed.get("look_seconds", b.seconds) for b in self._blocks(look.id)]
            self._looked = max(0.0, look.result.wall_seconds - sum(spent)) if spent else 0.0
        return self._looked or 0.0


def _in_vain(attempts: Attempts) -> list[StoredAttempt]:
    """Return the runs of the finals that showed nothing in their time, nor has one like them since.

    They are launched again; a trial of the search is not.
    """
    checks = [a for a in attempts.of(*TRAJECTORIES).to_repeat() if a.in_vain]
    finals = attempts.of(*COMPARED_RUNS)
    ended = [a for a in finals if a.in_vain]
    later = finals.complete() if ended else ()
    timed = [a for a in ended if not any(c.id > a.id and c.knobs == a.knobs for c in later)]
    return [*timed, *checks]


def _not_compiled(attempts: Attempts, launch: float) -> list[Compiled]:
    """Return the compilations that trials of the search were ended in, each with the seconds so far."""
    return [
        Compiled(a.knobs, max(0.0, a.result.wall_seconds - launch))
        for a in attempts.of(Purpose.SEARCH).ended_in(AttemptState.PRUNED)
        if a.result.throughput is None and compiles(a.knobs)
    ]
