"""A verdict with what its configuration takes of a rank's memory."""

import dataclasses
from collections.abc import Iterator

from autotune.analysis.memory import Memory, memory_of, refused_for_memory, tells_longest
from autotune.analysis.verdict import Kind, Verdict
from autotune.config import StudySpec
from autotune.views.machine import measured_in
from storage import Attempts, Repository

_MIB = 2**20


def with_memory(
    verdict: Verdict, repository: Repository, attempts: Attempts, spec: StudySpec
) -> Verdict:
    """The same, with its memory where it recommends a change, and with who was refused for theirs."""
    refused = refused_for_memory(attempts, spec.full_baseline())
    if verdict.trial is None or verdict.knobs is None or verdict.kind == Kind.NO_RESULT:
        return verdict
    if verdict.kind not in (Kind.BETTER, Kind.NO_BASELINE):
        return dataclasses.replace(verdict, sentence=verdict.sentence + refused)
    told = tells_longest(attempts, verdict.trial, repository.attempts.blocks)
    limit = limit_of_rank(repository, attempts, spec)
    memory = memory_of(attempts, verdict.trial, verdict.knobs, limit, told=told)
    sentence = verdict.sentence + memory.sentence + refused
    return dataclasses.replace(verdict, memory=memory, sentence=sentence)


def limit_of_rank(repository: Repository, attempts: Attempts, spec: StudySpec) -> float | None:
    """Bytes that a rank has on a device; None on the CPU."""
    environment = measured_in(repository, attempts) or {}
    devices = [int(device["memory_bytes"]) for device in environment.get("devices", ())]
    if not devices:
        return None
    resources = spec.resources
    share = 1.0 if resources.gpus_per_worker is None else min(1.0, resources.gpus_per_worker)
    own = min(devices) * share
    return min(own, resources.memory_per_worker or own)


def memory_lines(memory: Memory) -> Iterator[str]:
    """For the report: a table's rows."""
    if memory.longest is not None:
        yield f"| peak memory with the longest samples | {memory.longest / _MIB:,.0f} MiB |"
        if memory.limit is not None:
            yield f"| memory left free by them | {1 - memory.longest / memory.limit:.1%} |"
    elif memory.untold:
        yield f"| with the longest samples | not run: {memory.untold} |"
