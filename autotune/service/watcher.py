"""Comparison of a job's speed with what its configuration promises, once a minute."""

import math
import selectors
import socket
import time
from collections.abc import Callable

from autotune.analysis.wording import duration, quantity
from autotune.export.best import BestConfig
from autotune.measurement.drift import Change, Drift, Promise, rate_of_job
from autotune.measurement.policy import MEASUREMENT
from autotune.service.metrics import LOOPBACK, Metrics
from autotune.worker.inject.speed_report import SpeedReport

_LONGEST_REPORT = 65536
_FIRST = "first"
"""Kind of the line on the first speed; of one on speeds that cannot be compared it is the reason."""


def promise_of(best: BestConfig) -> Promise:
    """Return the promise of a best.yaml. A missing bound counts as no bound."""
    told = best.throughput
    return Promise(
        value=float(told.get("value") or 0.0),
        low=float(told.get("low") or 0.0),
        high=math.inf if told.get("high") is None else float(told["high"]),
        rounds=int(best.provenance.get("rounds") or 0),
    )


class Watcher:
    """Watcher of one job, from its first block to its end."""

    def __init__(
        self,
        best: BestConfig,
        say: Callable[[str], None],
        port: int,
        every: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the metrics.

        Args:
            port: port of the metrics; 0: a free one.
            every: seconds between two checks.
            clock: returns a time in seconds.

        Raises:
            OSError: the port is taken.
        """
        self._best = best
        self._every = every
        self._say = say
        self._clock = clock
        self._unit = str(best.throughput.get("unit", "samples/s"))
        self._promise = promise_of(best)
        self._study = str(best.provenance.get("study", ""))
        self._metrics = Metrics(self._promise, self._unit, self._study)
        self._drift = Drift(self._promise.bound)
        self._rates: dict[int, list[float]] = {}
        self._world_size = 0
        self._problem = ""
        self._due: float | None = None
        self._began = 0.0
        self._told: set[str] = set()
        self._port = self._metrics.serve(port)

    def begin(self) -> None:
        """Print where the metrics are, as the job begins."""
        self._say(f"watching this job; metrics: http://{LOOPBACK}:{self._port}/metrics")
        if not self._promise.bound:
            lacks = "has no interval" if self._promise.value else "tells no speed"
            self._say(f"best.yaml {lacks}: the speed is shown, but a drift cannot be detected")

    def attend(self, line: socket.socket, job: int) -> None:
        """Watch until the job has ended.

        Args:
            line: socket on which the ranks report.
            job: descriptor of the job's process.
        """
        with selectors.DefaultSelector() as ready:
            ready.register(line, selectors.EVENT_READ)
            ready.register(job, selectors.EVENT_READ)
            ended = False
            while not ended:
                until_due = None if self._due is None else max(0.0, self._due - self._clock())
                found = [key.fileobj for key, _ in ready.select(until_due)]
                ended = job in found
                if line in found:
                    self.hear(line.recv(_LONGEST_REPORT))
                self.check()

    def hear(self, report: bytes) -> None:
        """Take in a report of a rank."""
        try:
            pace = SpeedReport.from_text(report)
        except ValueError:
            return  # report of another version
        self._metrics.block(pace)
        self._world_size = pace.world_size
        self._problem = self._problem or pace.problem
        self._rates.setdefault(pace.rank, []).append(self._units(pace) / pace.seconds)
        if self._due is None:
            self._due = self._clock() + self._every

    def _units(self, pace: SpeedReport) -> float:
        """Return what the promise counts, of one rank: its share of the steps, which all ranks take."""
        counts = self._unit.partition("/")[0]
        if counts == "steps":
            return pace.steps / pace.world_size
        return pace.tokens if counts == "tokens" else pace.samples

    def check(self) -> None:
        """Compare the speeds, if the check is due and there are enough blocks."""
        if self._due is None or self._clock() < self._due:
            return
        self._due = self._clock() + self._every
        rate = rate_of_job(self._rates, self._world_size)
        if rate is None:
            return
        self._rates.clear()
        if why := self._incomparable(rate):
            self._metrics.check(rate, drifted=False)
            self._drift = Drift(self._promise.bound)
            self._once(why, f"the speed of this job cannot be compared: {why}")
            return
        change = self._drift(rate)
        self._metrics.check(rate, self._drift.drifted)
        minute = "last" if self._told else "first"
        self._once(_FIRST, f"{self._rate(rate)} in the {minute} minute{self._promised()}")
        if change == Change.BEGAN:
            self._began = self._clock() - MEASUREMENT.checks_in_a_row * self._every
            self._say(
                f"slower than promised in each of the last {MEASUREMENT.checks_in_a_row} checks, "
                f"now {self._rate(rate)}{self._promised()}. To tune again, give study.yaml another "
                "name and `autotune start` it"
            )
        elif change == Change.OVER:
            lasted = duration(self._clock() - self._began)
            self._say(f"as fast as promised again: {self._rate(rate)}; it was slower for {lasted}")

    def _incomparable(self, rate: float) -> str:
        """Return why the speeds cannot be compared; empty if they can."""
        if self._problem:
            return f"its batches are not understood ({self._problem})"
        if self._world_size != self._best.world_size:
            return f"it has {self._world_size} ranks, and {self._best.world_size} were measured"
        if not rate:
            what = self._unit.partition("/")[0]
            return f"no {what} are seen in its steps; say workload.samples in study.yaml"
        return ""

    def _once(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._say(text)
        self._told.add(kind)

    def _rate(self, rate: float) -> str:
        return f"{quantity(rate)} {self._unit}"

    def _promised(self) -> str:
        """Return the promise as the end of a sentence; empty if there is none."""
        promise = self._promise
        if not promise.value:
            return ""
        bound = f", slower is below {quantity(promise.bound)}" if promise.bound else ""
        return f"; promised are {quantity(promise.value)}{bound}"
