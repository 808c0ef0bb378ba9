"""Interleaved runs against runs one after another.

They are runs of real ranks for benchmarks/fidelity.py, and by itself runs on simulated machines, in
virtual time.

    python benchmarks/turns.py [--json]

In each round the same configuration runs as it is, once more as it is, and with 3 % of slow-down planted
in all ranks, one rank, or the loader. Once each of these is resident beside the first and takes turns
with it, as winner and baseline do in a study; once they are five runs of their own. Which of the two
comes first is drawn. All have the same seconds of training.
"""

import argparse
import dataclasses
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scipy import stats

from autotune.measurement.estimate import Ratio, paired_ratio
from autotune.measurement.stop_rule import Limits
from autotune.runs.interleaved import InterleavedSchedule, interleaved
from autotune.runs.monitors import TimedMonitor
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Slot
from launchers.replay import Answer, Launch, ReplayLauncher, SpeedVariation
from search_spaces import defaults

SECONDS = 4.0
"""Seconds of training per run."""
LIMITS = Limits(warmup=1.0, longest=SECONDS, precision=1e-9)
LENGTHS = (3, 5, 7)
"""Rounds of a verdict: 24, 40 and 56 s of training of a pair, where a run is one of 4 s."""
PLANTED = ("all", "rank", "loader")

Round = dict[str, float]
"""Variant -> samples per second; of pairs: over those of 'a' beside it."""


class Runs(Protocol):
    """Runner of one workload."""

    def rate(self, limits: Limits, planted: Mapping[str, Any]) -> float:
        """Return the rate of a solo run."""

    def rates(self, limits: Limits, planted: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the rates of interleaved runs."""


def compared(
    runs: Runs,
    variants: Mapping[str, Mapping[str, Any]],
    count: int,
    draw: random.Random,
    *,
    seconds: float = SECONDS,
    alone: bool = True,
) -> dict[str, Any]:
    """So many rounds of both kinds.

    Args:
        runs: of one workload.
        variants: 'a', 'a again' and what is planted.
        count: rounds.
        draw: orders.
        seconds: of training that counts, per run.
        alone: False: only pairs.
    """
    limits = dataclasses.replace(LIMITS, longest=seconds)
    own, in_turn = [], []

    def one_by_one(order: list[str]) -> None:
        own.append({name: runs.rate(limits, variants[name]) for name in order})

    def in_pairs(order: list[str]) -> None:
        over_a = {"a": 1.0}
        for name in order:
            if name != "a":
                pair = draw.sample(["a", name], 2)
                rates = runs.rates(limits, [variants[member] for member in pair])
                found = dict(zip(pair, rates, strict=True))
                over_a[name] = found[name] / found["a"]
        in_turn.append(over_a)

    kinds: list[Callable[[list[str]], None]] = [one_by_one, in_pairs] if alone else [in_pairs]
    for _ in range(count):
        for kind in draw.sample(kinds, len(kinds)):
            kind(draw.sample(list(variants), len(variants)))
    found: dict[str, Any] = {"rounds": count, "seconds_of_a_run": seconds}
    found["spread_of_equals"] = {"in_turn": spread(in_turn)}
    found["in_turn"] = judged(in_turn)
    if alone:
        spreads = [spread(own), spread(in_turn)]
        found["spread_of_equals"]["own"] = spreads[0]
        found["times_less"] = spreads[0] / spreads[1]
        found["times_less_interval"] = between(spreads, count)
        found["own"] = judged(own)
    return found


def spread(rounds: Sequence[Round]) -> float:
    """Return the standard deviation of the log ratio of two equals."""
    return math.sqrt(statistics.fmean(math.log(r["a again"] / r["a"]) ** 2 for r in rounds))


def between(spreads: Sequence[float], count: int) -> list[float]:
    """Return the 95 % interval of the ratio of two such spreads, by the ratio of variances."""
    ratio = spreads[0] / spreads[1]
    return [ratio / math.sqrt(stats.f.ppf(q, count, count)) for q in (0.975, 0.025)]


def judged(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return what verdicts over so many rounds say, and what all rounds show."""
    found: dict[str, Any] = {}
    for length in LENGTHS:
        windows = [rounds[i : i + length] for i in range(len(rounds) - length + 1)]
        again = [ratio(window, "a again") for window in windows]
        found[f"{length} rounds"] = {
            "equals_called_different": statistics.fmean(not r.low <= 1 <= r.high for r in again),
            "planted_3_percent_found": {
                name: statistics.fmean(ratio(window, name).high < 1 for window in windows)
                for name in PLANTED
            },
        }
    for name in ("a again", *PLANTED):
        r = ratio(rounds, name)
        found[f"slow-down of {name}"] = {
            "measured": 1 - r.value,
            "interval": [1 - r.high, 1 - r.low],
        }
    return found


def ratio(rounds: Sequence[Round], name: str) -> Ratio:
    """Return the ratio of a variant to 'a', paired."""
    return paired_ratio([r[name] for r in rounds], [r["a"] for r in rounds])


# Simulated


@dataclass(frozen=True)
class Simulated:
    """Runs of a workload on a machine whose speed wanders; equal processes differ a little.

    Attributes:
        slot: of a replaying launcher.
    """

    slot: Slot
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def rate(self, limits: Limits, planted: Mapping[str, Any]) -> float:
        """Return the rate of a solo run."""
        judge = TimedMonitor(limits)
        return judge.result(self.slot.run_solo(self._request(planted), judge)).throughput or 0.0

    def rates(self, limits: Limits, planted: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the rates of interleaved runs."""
        group = InterleavedSchedule([limits] * len(planted))
        requests = [interleaved(self._request(one)) for one in planted]
        reports = self.slot.run(requests, group)
        judged = zip(group.monitors, reports, strict=True)
        return [judge.result(report).throughput or 0.0 for judge, report in judged]

    def _request(self, planted: Mapping[str, Any]) -> TrialRequest:
        return TrialRequest(
            trial=f"simulated-{next(self._numbers)}",
            factory="",
            args=dict(planted),
            knobs=defaults(),
            world_size=1,
            seed=0,
            device="cpu",
            blocks=BlockPlan(0.1, 2, 10_000),
        )


def answer(launch: Launch) -> Answer:
    """Return a behaviour with steps of 20 ms; processes differ by 0.5 %, blocks by 2 %."""
    rate = 50.0 * launch.knobs["micro_batch"] * (1 - launch.request.args.get("share", 0.0))
    rate *= math.exp(launch.draw.gauss(0.0, 0.005))
    return Answer(rate=rate, startup=0.5, block_sigma=0.02)


def simulated(wandering: SpeedVariation, count: int) -> dict[str, Any]:
    """So many rounds on a machine that wanders so."""
    planted = {name: {"share": 0.03} for name in PLANTED}
    slot = ReplayLauncher(answer, workers=1, variation=wandering).slots[0]
    variants: dict[str, dict[str, Any]] = {"a": {}, "a again": {}, **planted}
    return compared(Simulated(slot), variants, count, random.Random(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    report = {}
    for seconds in (1.0, 5.0, 10.0, 30.0):
        name = f"wanders by 8 %, forgets it in {seconds:g} s"
        report[name] = simulated(SpeedVariation(0.08, seconds), 60)
    if as_json:
        print(json.dumps(report, indent=2))
        return
    for name, found in report.items():
        apart, verdicts = found["spread_of_equals"], found["in_turn"]["7 rounds"]
        found_all = verdicts["planted_3_percent_found"]["all"]
        print(
            f"{name}: equals lie {apart['in_turn']:.1%} apart in turn, {apart['own']:.1%} by themselves"
        )
        print(
            f"  after 7 rounds 3 % found: {found_all:.0%}, equals called different: "
            f"{verdicts['equals_called_different']:.0%}"
        )


if __name__ == "__main__":
    main()
