"""A recorded device: processes that take seconds to start, cold and warm compilation, recorded steps.

The record is a file of JSON lines, one per configuration that was measured on a real device (format:
benchmarks/tables/README.md). A configuration that was not recorded borrows the steps of the nearest
one that was, scaled by a least-squares model of the logarithm of the step time.
"""

import itertools
import json
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from autotune.worker.protocol import Knobs, Outcome
from launchers.replay.answers import Answer, Behaviour, Launch

_COMPILED = "compile"
_OPTIMIZER_STEP_TOKENS = 1024
_FIRST_STEP = 5.0
"""Steady steps that a first step without compilation takes (measured: 0.5 s, H200)."""
_SWITCH_SECONDS = 0.1
"""A change inside a warm process (measured: 0.1 s, H200)."""
_WARM_CACHE_SHARE = 0.25
"""Seconds of compilation in a new process with a warm inductor cache, over those with a cold one
(judgement: `seconds` were seen, none were recorded)."""
_LAUNCH_BOUND_SCATTER = 0.03
"""Steps that scatter by more wait for the host (measured: 3 to 11 %; compute-bound ones below 2 %)."""
_MOST_LAUNCH_BOUND_BATCH = 4
_PROCESS_SIGMA = 0.2
"""Standard deviation between processes of the logarithm of the step time, of launch-bound
configurations (measured: 111, 124, 181 ms in three processes)."""
_BUILD_SIGMA = 0.005
"""Standard deviation of the same between builds, in one process or several, of all configurations
(measured: 79.4, 79.8, 80.4 ms in three builds of one process, minutes apart; the scatter of steps
explains 0.2 %). No second process of a configuration that computes was recorded."""
_STRETCH = 10.0
"""Mean length in steps of a stretch that is replayed as recorded (judgement: a slow wave lasts six; the
rule of Politis and White 2004 gives eight for 27 steps of which neighbours correlate by 0.8)."""
_RIDGE = 1e-3
_MAX_AUTOTUNE_SECONDS = 150.0
"""First step under max-autotune (judgement: `minutes`)."""


@dataclass(frozen=True)
class Recorded:
    """One configuration as it was measured.

    Attributes:
        config: knobs by the catalogue's names.
        first_step: seconds, with a cold compilation where it compiles.
        steps: seconds of consecutive optimizer steps after the first.
        peak_bytes: memory that the process reserved at most.
    """

    config: Mapping[str, Any]
    first_step: float
    steps: tuple[float, ...]
    peak_bytes: int

    @cached_property
    def median(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.steps)

    @property
    def compiles(self) -> bool:
        """Return whether the model is compiled."""
        return bool(self.config[_COMPILED] != "none")

    @property
    def launch_bound(self) -> bool:
        """Return whether the device waits for the host: small micro-batches whose steps scatter."""
        scatter = statistics.pstdev(self.steps) / statistics.fmean(self.steps)
        small: bool = self.config["micro_batch"] <= _MOST_LAUNCH_BOUND_BATCH
        return bool(small and scatter > _LAUNCH_BOUND_SCATTER)


@dataclass(frozen=True)
class RecordedDevice:
    """A device, by what was measured on it.

    Attributes:
        recorded: configurations, all of the same global batch.
        samples: global batch of every optimizer step.
        launch: seconds from the launch of a process to its first step.
        memory_bytes: memory of the device.
        step_scale: step times of a synthetic device over those recorded; 1: as recorded.
        compile_scale: the same of compilation.
    """

    recorded: tuple[Recorded, ...]
    samples: int
    launch: float
    memory_bytes: float
    step_scale: float = 1.0
    compile_scale: float = 1.0
    environment: Mapping[str, Any] = field(default_factory=dict)

    def step(self, knobs: Knobs) -> float:
        """Seconds of a typical step of a configuration, in a typical process."""
        nearest = self._nearest(knobs)
        change = _features(knobs) - _features(nearest.config)
        return self.step_scale * nearest.median * math.exp(float(change @ self._effects))

    def rate(self, knobs: Knobs) -> float:
        """Return the samples per second of a typical process."""
        return self.samples / self.step(knobs)

    def peak(self, knobs: Knobs) -> float:
        """Bytes that a configuration reserves at most."""
        nearest = self._nearest(knobs)
        share = knobs["micro_batch"] / nearest.config["micro_batch"]
        fixed = min(one.peak_bytes for one in self.recorded)
        needed: float = fixed + share * (nearest.peak_bytes - fixed)
        return needed

    def first_step(self, knobs: Knobs) -> float:
        """Seconds of the first step with a cold cache."""
        if knobs[_COMPILED] == "none":
            return self._warm_up(knobs)
        if knobs[_COMPILED].startswith("max-autotune"):
            return self.compile_scale * _MAX_AUTOTUNE_SECONDS
        return self.compile_scale * self._nearest_compiled(knobs).first_step

    def behaviour(self, *, script: bool) -> Behaviour:
        """Play launches on this device; a new behaviour begins with a cold compilation cache.

        Args:
            script: processes are never reused, as those of a user's script.
        """
        compiled: set[tuple[Any, ...]] = set()

        def answer(launch: Launch) -> Answer:
            knobs = launch.knobs
            first, compiles = self.first_step(knobs), knobs[_COMPILED] != "none"
            if launch.before is not None and _graph(launch.before) == _graph(knobs):
                first, compiles = self._warm_up(knobs), False
            elif compiles and _graph(knobs) in compiled:
                first *= _WARM_CACHE_SHARE
            needed = self.peak(knobs)
            if needed > self.memory_bytes:
                return Answer(
                    startup=self.launch,
                    switch=_SWITCH_SECONDS,
                    outcome=Outcome.OOM,
                    cause=f"out of memory: {needed:,.0f} of {self.memory_bytes:,.0f} bytes",
                )
            nearest = self._nearest(knobs)
            slower = random.Random(launch.draw.random()).gauss(0.0, _BUILD_SIGMA)
            if nearest.launch_bound:
                slower += launch.processes.gauss(0.0, _PROCESS_SIGMA)
            return Answer(
                rate=self.rate(knobs) * math.exp(-slower),
                pattern=self._pattern(nearest, random.Random(launch.draw.random())),
                first_step=first,
                startup=self.launch,
                switch=_SWITCH_SECONDS,
                tokens_per_sample=_OPTIMIZER_STEP_TOKENS,
                peak_bytes=int(needed),
                first_steps={"compilations": 1} if compiles else {},
                parts=_PARTS[nearest.launch_bound],
                stays=not script,
                begun=lambda: compiled.add(_graph(knobs)),
            )

        return answer

    def _pattern(self, recorded: Recorded, draw: random.Random) -> Iterator[float]:
        """Yield consecutive steps over their mean.

        What slows a device that computes goes by time: in seven recordings a wave began 0.75 to 0.85 s
        after the first step and lasted 0.1 to 0.3 s, whether a step took 60 or 80 ms. A step of seconds
        averages over waves.
        """
        steps = _consecutive(recorded, draw)
        longer = self.step_scale > 1 and not recorded.launch_bound
        return _averaged(steps, round(self.step_scale)) if longer else steps

    def _warm_up(self, knobs: Knobs) -> float:
        """Seconds of a first step in which nothing is compiled."""
        return _FIRST_STEP * self.step(knobs)

    def _nearest(self, knobs: Knobs) -> Recorded:
        return min(self.recorded, key=lambda one: _distance(one.config, knobs))

    def _nearest_compiled(self, knobs: Knobs) -> Recorded:
        # The cold compilations: one that found its graph in the process took a second.
        several = [one for one in self.recorded if one.compiles and one.first_step > 1.5]
        return min(several, key=lambda one: _distance(one.config, knobs))

    @cached_property
    def _effects(self) -> np.ndarray[Any, Any]:
        """Least-squares effects of the features on the logarithm of the step time."""
        features = np.array([_features(one.config) for one in self.recorded])
        steps = np.log([one.median for one in self.recorded])
        centred = features - features.mean(axis=0)
        ridge = _RIDGE * np.eye(features.shape[1])
        found: np.ndarray[Any, Any] = np.linalg.solve(
            centred.T @ centred + ridge, centred.T @ (steps - steps.mean())
        )
        return found


_GRAPH = ("micro_batch", "precision", "compile", "compile_scope", "float8", "attention")
"""Knobs that a compiled graph is made for."""
_NAMES = ("micro_batch", "precision", "compile", "optimizer_kernels", "attention", "float8")
_PARTS = {
    True: {"launching": 0.7, "compute": 0.29, "optimizer": 0.01},
    False: {"launching": 0.03, "compute": 0.94, "optimizer": 0.03},
}
"""Shares of a step by part, of launch-bound and other configurations (profiles of one H200)."""
_FORMATS = ("fp32", "tf32", "fp16")


def _graph(knobs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a compiled graph of this configuration is made for."""
    return tuple(knobs.get(name) for name in _GRAPH)


def _features(knobs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return what the logarithm of the step time is linear in."""
    passes = math.log2(max(1.0, 32 / knobs["micro_batch"]))
    compiled = knobs["compile"] != "none"
    float8 = knobs["float8"] != "none"
    return np.array(
        [
            passes,
            passes**2,
            *(float(knobs["precision"] == name) for name in _FORMATS),
            float(compiled),
            compiled * passes,
            float(knobs["optimizer_kernels"] == "fused"),
            float(knobs["attention"] == "unfused"),
            float(float8 and not compiled),
            float(float8 and compiled),
        ]
    )


def _distance(recorded: Mapping[str, Any], knobs: Mapping[str, Any]) -> float:
    """Differing knobs; micro-batches by the distance of their logarithms."""
    others = sum(bool(recorded[name] != knobs[name]) for name in _NAMES[1:])
    weight = 3.0 * bool(recorded["precision"] != knobs["precision"]) + others
    doublings: float = abs(math.log2(recorded["micro_batch"] / knobs["micro_batch"]))
    return weight + doublings


def _consecutive(recorded: Recorded, draw: random.Random) -> Iterator[float]:
    """Yield steps over their mean, in recorded stretches from random points on.

    This is the stationary bootstrap (Politis and Romano 1994). How a record of two seconds goes on is
    unknown. Repeated as it is, its slow waves would come like clockwork, and a few of them would tell
    the mean of a long run exactly.
    """
    steps, mean = recorded.steps, statistics.fmean(recorded.steps)
    at = draw.randrange(len(steps))
    while True:
        yield steps[at] / mean
        goes_on = draw.random() >= 1 / _STRETCH
        at = (at + 1) % len(steps) if goes_on else draw.randrange(len(steps))


def _averaged(steps: Iterator[float], count: int) -> Iterator[float]:
    """Yield means of so many steps each."""
    while True:
        yield statistics.fmean(itertools.islice(steps, count))


def read_device(path: Path) -> RecordedDevice:
    """Read the record of a device.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not JSON.
    """
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
    head = next(line for line in lines if "samples" in line)
    return RecordedDevice(
        recorded=tuple(_merged([line for line in lines if line.get("steps")])),
        samples=head["samples"],
        launch=statistics.fmean(line["since_launch"] for line in lines if "since_launch" in line),
        memory_bytes=head["memory_bytes"],
        environment=head["environment"],
    )


def _merged(lines: Sequence[Mapping[str, Any]]) -> list[Recorded]:
    """One entry per configuration: that of the single long-lived process, with its steps joined."""
    by_configuration: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if not line.get("fresh"):
            by_configuration.setdefault(json.dumps(_knobs(line["config"])), []).append(line)
    return [
        Recorded(
            config=json.loads(key),
            first_step=several[0]["first_step"],
            steps=tuple(step for line in several for step in line["steps"]),
            peak_bytes=max(line["peak_reserved"] for line in several),
        )
        for key, several in by_configuration.items()
    ]


def _knobs(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "micro_batch": config["mb"],
        "precision": config["precision"],
        "compile": config["compile"],
        "optimizer_kernels": config["optimizer"],
        "attention": config["attention"],
        "float8": config.get("float8", "none"),
    }
