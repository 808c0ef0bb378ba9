"""The report of a study, in Markdown."""

import statistics
from collections.abc import Iterator
from typing import Any

from autotune.notes import study_note
from autotune.spec import StudySpec
from autotune.verdict import difference, quantity
from storage import Purpose, Repository, StoredAttempt, StoredBlock

_MIB = 2**20
_SHOWN = 10


def report(repository: Repository, name: str, verdict: dict[str, Any]) -> str:
    """The verdict, how the recommended configuration ran, and the best trials."""
    study = repository.study(name)
    spec = StudySpec.model_validate(study.spec)
    attempts = repository.attempts(study.id)
    parts = [f"# {name}", study_note(verdict)]
    if verdict["trial"] is not None:
        parts.append("\n".join(_how_it_ran(repository, attempts, verdict["trial"])))
    parts.append("\n".join(_best_trials(spec, attempts)))
    return "\n\n".join(parts)


def _how_it_ran(repository: Repository, attempts: list[StoredAttempt], trial: int) -> Iterator[str]:
    again = [
        a for a in attempts if a.trial == trial and a.purpose == Purpose.CONFIRM and a.recorded
    ]
    blocks = [block for a in again for block in repository.blocks(a.id) if block.kept]
    if not blocks:
        return
    peak = max(attempt.result.peak_bytes for attempt in again)
    yield "### How the recommended configuration ran"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| step time, median over blocks | {1000 * _quantile(blocks, 50):.1f} ms |"
    yield f"| step time, 95th percentile of blocks | {1000 * _quantile(blocks, 95):.1f} ms |"
    yield f"| waiting for the loader | {100 * wait_share(blocks):.1f} % of the time |"
    yield f"| slowest rank over mean of ranks | {straggler_ratio(blocks):.3f} |"
    yield f"| peak memory of a rank | {quantity(peak / _MIB)} MiB |"


def wait_share(blocks: list[StoredBlock]) -> float:
    """Share of the time that the slowest-fed rank waited for its loader."""
    return sum(block.wait_seconds for block in blocks) / sum(block.seconds for block in blocks)


def straggler_ratio(blocks: list[StoredBlock]) -> float:
    """Time of the slowest rank over the mean of all ranks; 1 where all are alike."""
    return statistics.mean(max(b.rank_seconds) / statistics.mean(b.rank_seconds) for b in blocks)


def _quantile(blocks: list[StoredBlock], percent: int) -> float:
    times = [block.seconds / block.steps for block in blocks]
    if len(times) == 1:
        return times[0]
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


def _best_trials(spec: StudySpec, attempts: list[StoredAttempt]) -> Iterator[str]:
    searched = [a for a in attempts if a.purpose == Purpose.SEARCH and a.result.state == "COMPLETE"]
    searched.sort(key=lambda a: -(a.result.throughput or 0.0))
    yield f"### Best trials of the search ({spec.objective.unit}, seen once)"
    yield ""
    yield "| trial | throughput | ± | peak MiB | difference to the baseline |"
    yield "|---|---|---|---|---|"
    for attempt in searched[:_SHOWN]:
        result = attempt.result
        changed = difference(attempt.knobs, spec.full_baseline())
        yield (
            f"| {attempt.trial} | {quantity(result.throughput or 0.0)} | "
            f"{100 * (result.half_width or 0.0):.1f} % | "
            f"{quantity(result.peak_bytes / _MIB)} | {changed} |"
        )
