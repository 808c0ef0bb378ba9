"""What a configuration takes of a rank's memory, also with the longest samples of its data. Pure.

A run of a minute sees few of the longest samples, a month sees all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis import gate
from autotune.analysis.sameness import Comparison, Rules
from autotune.analysis.wording import counted, difference
from storage import Attempts, AttemptState, Purpose, StoredBlock

_GIB, _MIB = 2**30, 2**20


@dataclass(frozen=True)
class Memory:
    """Of a rank, in bytes.

    Attributes:
        peak: in its timed runs.
        longest: peak with the longest samples; None: it was not run with them.
        limit: what a rank has; None: not known, or not to compare with (on the CPU, where the limit is
            for what a rank has asked for, and its peak what it has touched).
        untold: why it was not run with the longest samples, or not to the end; empty where it was.
    """

    peak: int
    longest: int | None = None
    limit: int | None = None
    untold: str = ""

    @property
    def sentence(self) -> str:
        """Begins with a space; empty where there is nothing to hold against anything."""
        if not self.peak or (self.limit is None and self.longest is None):
            return ""
        unit, name = (_GIB, "GiB") if (self.limit or self.peak) >= _GIB else (_MIB, "MiB")
        of = "" if self.limit is None else f" of {self.limit / unit:.1f}"
        text = f" At its peak a rank takes {self.peak / unit:.1f}{of} {name}"
        if self.longest is not None:
            text += f", {self.longest / unit:.1f} with the longest samples"
        return f"{text}."


def memory_of(
    attempts: Attempts, trial: int, knobs: Mapping[str, Any], limit: float | None, *, told: bool
) -> Memory:
    """What is recorded of a configuration.

    Args:
        trial: whose it is.
        knobs: as it is recommended.
        limit: bytes that a rank has; None: not known.
        told: the workload says which samples are the longest.
    """
    own = attempts.of_trial(trial).with_knobs(knobs)
    timed = own.of(Purpose.SEARCH, Purpose.CONFIRM).recorded()
    peak = max((run.result.peak_bytes for run in timed), default=0)
    run = own.of(Purpose.LONGEST).recorded().last
    room = None if limit is None else int(limit)
    if run is None:
        why = "there was no time" if told else "the workload does not say which they are"
        return Memory(peak, None, room, why)
    if run.result.state != AttemptState.COMPLETE:
        return Memory(peak, None, room, f"{run.result.state}: {run.result.cause}")
    return Memory(peak, max(peak, run.result.peak_bytes), room)


def tells_longest(
    attempts: Attempts, trial: int, blocks: Callable[[int], Sequence[StoredBlock]]
) -> bool:
    """Whether the workload of this trial has said that it knows its longest samples."""
    searched = attempts.of(Purpose.SEARCH).of_trial(trial).recorded()
    return any(block.observed.get("tells_longest") for run in searched for block in blocks(run.id))


def outgrown(attempts: Attempts) -> dict[int, dict[str, Any]]:
    """Trials that run out of memory with the longest samples, and the knobs with which they did."""
    runs = attempts.of(Purpose.LONGEST).recorded()
    return {run.trial: run.knobs for run in runs if run.result.state == AttemptState.OOM}


def barred(
    attempts: Attempts,
    blocks: Callable[[int], Sequence[StoredBlock]],
    today: Mapping[str, Any],
    rules: Rules,
) -> dict[int, str]:
    """Return trials that may not be recommended, each with the reason: they outgrow the memory, or are
    not shown to train the same.

    Args:
        attempts: records of the study.
        blocks: returns the blocks of an attempt.
        today: the baseline.
        rules: of the study.
    """
    unchecked = gate.unchecked(attempts, blocks, today) if rules.refuse_unchecked else {}
    other = Comparison(attempts, blocks, today, rules).refused()
    memory = dict.fromkeys(outgrown(attempts), "it takes more memory than there is")
    return {**memory, **unchecked, **other}


def refused_for_memory(attempts: Attempts, today: Mapping[str, Any]) -> str:
    """The same in a sentence, which begins with a space; empty where there are none."""
    several = list(outgrown(attempts).values())
    if not several:
        return ""
    return (
        f" {counted(len(several), 'faster trial')} refused: {difference(several[0], today)} runs out of "
        "memory with the longest samples."
    )
