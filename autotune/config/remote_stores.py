"""Remote stores that a job may write to: what a trial writes there is not discarded."""

import re

from autotune.config.study import StudySpec

_STORE = re.compile(
    r"\b((?:s3[an]?|gs|gcs|r2|oss|cos|az|azure|abfss?|adl|wasbs?|hdfs|webhdfs)://)"
    r"(?:[^/@\s]*@)?([^\s/?'\",;\])}]+)"
)
"""Place in such a store: its scheme and its bucket or host. What surrounds them may be secret."""


def named_by(spec: StudySpec) -> list[str]:
    """Return the buckets of remote stores that a job's words and variables name.

    A factory's are left out: nothing of what it writes is discarded.
    """
    workload = spec.workload
    if not workload.discards_writes:
        return []
    words = (workload.label, *workload.arguments, *spec.env.values())
    found = _STORE.findall(" ".join(map(str, words)))
    return list(dict.fromkeys(scheme + place for scheme, place in found))


def warning(places: list[str]) -> str:
    """Return a warning of such places; empty if there are none."""
    if not places:
        return ""
    return (
        f"what trials write to {', '.join(places)} stays there and replaces what is there: only files "
        "of this machine are protected; if the job writes to it, give trials a place of their own"
    )
