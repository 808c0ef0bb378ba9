"""Words for the purposes of attempts."""

from typing import NamedTuple

from storage import Purpose

PHASES = ("look", "search", "check", "prove", "explain")
"""Parts of a study, in order."""


class PurposeWords(NamedTuple):
    """Words for one purpose.

    Attributes:
        name: of its runs, in a table.
        doing: what is done in such a run.
        phase: part of the study that they belong to.
        event: kind of the line that tells the end of one.
        what: what the line says of it before its result; empty: nothing, or it depends on the attempt.
    """

    name: str
    doing: str
    phase: str
    event: str
    what: str = ""


PURPOSES = {
    Purpose.SEARCH: PurposeWords(
        name="trials of the search",
        doing="searching",
        phase="search",
        event="trial",
    ),
    Purpose.PAIRED: PurposeWords(
        name="yours beside a trial",
        doing="searching, beside the baseline",
        phase="search",
        event="trial",
    ),
    Purpose.CALIBRATE: PurposeWords(
        name="yours again",
        doing="measuring the noise between runs",
        phase="search",
        event="again",
        what="yours",
    ),
    Purpose.REFERENCE: PurposeWords(
        name="numerics: the fp32 reference",
        doing="checking numerics: the reference",
        phase="check",
        event="check",
        what="numerics: fp32 reference",
    ),
    Purpose.AUTOCAST: PurposeWords(
        name="numerics: rounding of bf16",
        doing="checking numerics: how far rounding deviates gradients",
        phase="check",
        event="check",
        what="numerics: rounding of bf16",
    ),
    Purpose.NUMERICS: PurposeWords(
        name="numerics: losses against it",
        doing="checking numerics",
        phase="check",
        event="check",
        what="numerics: loss against fp32",
    ),
    Purpose.CONFIRM: PurposeWords(
        name="runs of the rounds",
        doing="confirming",
        phase="prove",
        event="round",
    ),
    Purpose.REPEAT: PurposeWords(
        name="yours in more processes",
        doing="measuring your configuration once more, whose runs lie apart",
        phase="prove",
        event="again",
        what="yours",
    ),
    Purpose.SOAK: PurposeWords(
        name="runs for minutes",
        doing="running for minutes what was chosen, and the baseline",
        phase="explain",
        event="soak",
    ),
    Purpose.ABLATION: PurposeWords(
        name="one change taken back",
        doing="measuring what each knob brings",
        phase="explain",
        event="ablation",
    ),
    Purpose.PROFILE: PurposeWords(
        name="profiles of a step",
        doing="looking at what a step is made of",
        phase="look",
        event="check",
        what="profile",
    ),
    Purpose.FIT: PurposeWords(
        name="largest micro-batch",
        doing="looking for the largest micro-batch",
        phase="look",
        event="check",
    ),
    Purpose.EPOCHS: PurposeWords(
        name="short epochs",
        doing="looking at short epochs",
        phase="check",
        event="check",
        what="short epochs",
    ),
    Purpose.LONGEST: PurposeWords(
        name="longest samples",
        doing="looking whether the longest samples fit",
        phase="check",
        event="check",
        what="the longest samples",
    ),
}
