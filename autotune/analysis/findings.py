"""Bottlenecks of a configuration, and knobs that answer them. Pure functions over a profile."""

import dataclasses
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.analysis.policy import ANALYSIS
from autotune.measurement.bottleneck import STRAGGLER, breakdown
from search_spaces import CATALOGUE, Facts, KnobValue
from search_spaces.batch import BATCH_KNOBS
from search_spaces.catalogue import without_target
from search_spaces.constraints import unmet_needs
from search_spaces.knob import PRESSURE


@dataclass(frozen=True)
class Finding:
    """Bottleneck of a configuration.

    Attributes:
        name: of the bottleneck: a part of the step, or straggler, batch, memory, layout, logging.
        share: of the step's time that it takes; None where it is no part of the step.
        knobs: that answer it.
    """

    name: str
    share: float | None
    text: str
    knobs: tuple[str, ...] = ()


_TEXTS = {
    "compute": "forward and backward pass set the pace",
    "communication": "ranks wait for gradients that the backward pass does not hide",
    "optimizer": "the optimizer's update",
    "loader": "steps wait for the data loader",
    "copies": "copying batches to the device",
    "synchronisation": "the host waits for the device to read the loss",
    "launching": "the device waits for the host: Python and kernel launches",
}
"""Text for each part of a profiled step."""


def findings(
    profile: Mapping[str, Any],
    knobs: Mapping[str, KnobValue],
    facts: Facts,
    rising: float | None = None,
) -> list[Finding]:
    """Return all findings, the largest share of the step first.

    Args:
        profile: what was observed of a profiled block, see autotune.worker.protocol.Observed; further
            knobs that cannot act may be named in it as `unusable`.
        knobs: the configuration.
        facts: about the machine; only knobs that can act here, and on this model, are named.
        rising: throughput with twice the micro-batch over that of this configuration, if measured.
    """
    made = breakdown(profile["parts"])
    unusable = unusable_knobs(profile)
    parts = [_part(name, made[name], facts, unusable) for name in _TEXTS]
    parts.append(_straggler(made[STRAGGLER], profile["parts"]))
    parts.sort(key=lambda finding: -(finding.share or 0.0))
    worth = [finding for finding in parts if (finding.share or 0.0) >= ANALYSIS.worth_saying]
    found = [*worth, *_beside(profile, made, knobs, facts, rising)]
    return [
        dataclasses.replace(one, knobs=tuple(name for name in one.knobs if name not in unusable))
        for one in found
    ]


def unusable_knobs(profile: Mapping[str, Any]) -> set[str]:
    """Return the knobs that have nothing to act on where a profile was taken."""
    return {*profile.get("unusable", ()), *without_target(profile.get("lacks", ()))}


def _part(name: str, share: float, facts: Facts, unusable: Container[str]) -> Finding:
    # A profile cannot tell pressure from compute.
    parts = {name, PRESSURE} if name == "compute" else {name}
    answering = tuple(
        knob.name
        for knob in CATALOGUE.values()
        if parts & set(knob.parts) and knob.name not in unusable and _can_act(knob.name, facts)
    )
    return Finding(name, share, _TEXTS[name], answering)


def _can_act(name: str, facts: Facts) -> bool:
    knob = CATALOGUE[name]
    if not knob.needs or knob.needs_for:
        return True
    values: tuple[KnobValue, ...] = getattr(knob.domain, "values", (1,))
    others = [value for value in values if value != knob.default]
    return any(not list(unmet_needs({name: value}, facts)) for value in others)


def _straggler(share: float, parts: Mapping[str, Sequence[float]]) -> Finding:
    waiting = parts["communication"]
    slowest = waiting.index(min(waiting))
    beside = ("communication", "idle")
    own = {name: shares[slowest] for name, shares in parts.items() if name not in beside}
    most = max(own, key=own.__getitem__)
    text = (
        f"all ranks wait for rank {slowest}, most of whose step is {most}: look at its node and device "
        "for other work, heat or a slower disk; no knob mends it"
    )
    return Finding(STRAGGLER, share, text)


def _beside(
    profile: Mapping[str, Any],
    made: Mapping[str, float],
    knobs: Mapping[str, KnobValue],
    facts: Facts,
    rising: float | None,
) -> list[Finding]:
    """Return findings that have no share of the step."""
    findings = []
    if made["idle"] >= ANALYSIS.worth_saying:
        text = f"the device does nothing in {made['idle']:.0%} of the time"
        findings.append(Finding("idle", made["idle"], text))
    if rising is not None and rising >= ANALYSIS.rising_rate:
        text = (
            f"twice the micro-batch gives {rising:.2f}x the throughput: the batch is too small for "
            "the devices"
        )
        findings.append(Finding("batch", None, text, BATCH_KNOBS))
    peaks = profile["peaks"]
    if max(peaks) > ANALYSIS.memory_imbalance * min(peaks) > 0:
        alone = knobs["parallelism"] == "data_parallel"
        one = "device" if alone else "rank"
        text = (
            f"{one} {peaks.index(max(peaks))} takes {max(peaks) / min(peaks):.1f}x the memory of {one} "
            f"{peaks.index(min(peaks))}, which bounds the batch for all"
        )
        if alone and knobs["loss_placement"] == "outside":
            text += ": compute the loss on every device"
        answers = ("loss_placement", "parallelism") if alone else ()
        findings.append(Finding("memory", None, text, answers))
    for module, move in profile.get("batch_moves", {}).items():
        text = (
            f"{module} permutes {move}: the batch is no longer outermost, which costs copies, and "
            "communication under automatic parallelisation; keep it first and index further in"
        )
        findings.append(Finding("layout", None, text))
    if facts.device == "cuda" and int(knobs["log_interval"]) < ANALYSIS.read_often:
        text = f"the loss is read every {knobs['log_interval']} steps; every 10 to 100 is plenty"
        findings.append(Finding("logging", None, text, ("log_interval",)))
    return findings


def listed(findings: list[Finding], emphasis: str = "**") -> Iterator[str]:
    """Yield findings as a numbered list, in Markdown; in plain text with an empty emphasis."""
    for number, finding in enumerate(findings, 1):
        share = f", {finding.share:.0%} of the step" if finding.share is not None else ""
        yield f"{number}. {emphasis}{finding.name}{emphasis}{share}: {finding.text}"
        if finding.knobs:
            yield f"   Knobs: {', '.join(finding.knobs)}"
