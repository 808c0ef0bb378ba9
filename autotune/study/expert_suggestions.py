"""Suggestions of an expert for one study, by the profile of its baseline."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Self

from autotune.analysis.finalists import possibly_faster
from autotune.analysis.findings import findings
from autotune.analysis.node_speeds import at_home_speed
from autotune.measurement.bottleneck import breakdown
from autotune.search.space import Space
from autotune.study.context import StudyContext
from autotune.study.policy import STUDY
from autotune.study.suggestions import MemoryHeadroom, Suggestion, experts
from search_spaces.knob import changed_knobs
from storage import Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock


class ProfileState(Enum):
    """State of the profile of the baseline before the search."""

    NOT_TAKEN = auto()
    STEPS_TOO_LONG = auto()
    BASELINE_FAILS = auto()
    TAKEN = auto()


@dataclass(frozen=True)
class BaselineProfile:
    """Profile of the baseline before the search.

    Attributes:
        observed: observations of its steps; empty if it was not taken to its end.
    """

    state: ProfileState = ProfileState.NOT_TAKEN
    observed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, attempt: StoredAttempt | None, blocks: Sequence[StoredBlock]) -> Self:
        """Return the profile that an attempt has recorded.

        Args:
            attempt: None if none was recorded.
            blocks: those of the attempt.
        """
        if attempt is None:
            return cls(ProfileState.NOT_TAKEN)
        if attempt.result.state == AttemptState.PRUNED:
            return cls(ProfileState.STEPS_TOO_LONG)
        if not blocks:
            return cls(ProfileState.BASELINE_FAILS)
        return cls(ProfileState.TAKEN, blocks[0].observed)

    @property
    def shares(self) -> dict[str, float]:
        """Shares of a step by part; empty if they are not known."""
        parts = self.observed.get("parts")
        return breakdown(parts) if parts else {}


class ExpertSuggestions:
    """Suggestions of an expert for one study."""

    def __init__(self, context: StudyContext, space: Space) -> None:
        self._context = context
        self._setup = context.setup
        self._space = space

    @property
    def profile(self) -> BaselineProfile:
        """Profile of the baseline, as far as it is recorded."""
        attempt = self._context.attempts().of(Purpose.PROFILE).recorded().first
        return BaselineProfile.of(attempt, self._context.blocks(attempt.id) if attempt else ())

    def opening(self, profile: BaselineProfile) -> list[Suggestion]:
        """Return what is tried before anything is measured.

        Where trials follow each other, the bundle waits for the answer to what holds the baseline back.
        """
        every = self._suggestions(profile)
        return every[:1] if len(self._setup.launcher.slots) == 1 else every

    def bundle(self, attempts: Attempts) -> Suggestion | None:
        """Return all that is favoured, without an answer that was tried and is slower.

        The memory that the baseline's own trial takes is known where its profile was not taken.
        """
        profile, own = self.profile, attempts.baseline()
        if own is not None and profile.state is ProfileState.NOT_TAKEN:
            profile = replace(profile, observed={"peaks": [own.result.peak_bytes]})
        answers = self._suggestions(profile)[:1]
        slower = [name for one in answers for name in self._slower(one, attempts)]
        return next(iter(self._suggestions(profile, slower)[::-1]), None)

    def _slower(self, answer: Suggestion, attempts: Attempts) -> list[str]:
        """Return the changes of an answer that is probably no faster than the baseline."""
        level, knobs = at_home_speed(attempts), self._space.complete(answer.params)
        its, own = level.searched().measured().with_knobs(knobs).first, level.baseline()
        if its is None or own is None or its in possibly_faster([own, its], margin=0.0):
            return []
        return [*changed_knobs(answer.params, self._setup.baseline)]

    def _suggestions(
        self, profile: BaselineProfile, slower: Iterable[str] = ()
    ) -> list[Suggestion]:
        """Return what an expert would try; nothing on top of a baseline that does not run."""
        if profile.state is ProfileState.BASELINE_FAILS:
            return []
        seen, memory = profile.observed, self._setup.memory_of_rank()
        peak = max(seen.get("peaks", ()), default=0)
        headroom = None if memory is None else MemoryHeadroom(memory, peak)
        if headroom and not headroom.peak_bytes:
            return []  # once the baseline has shown what memory it takes
        baseline, cores = self._setup.baseline, self._setup.launcher.site.cores_of_rank
        found = findings(seen, baseline, self._setup.facts) if seen.get("parts") else []
        unusable = {*seen.get("unusable", ()), *slower}
        if cores < STUDY.cores_for_loading:
            unusable.add("num_workers")  # unless it is loading that holds the step back
        return experts(self._space, baseline, found, unusable, headroom, cores)
