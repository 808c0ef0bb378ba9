"""Search by trial for the settings of a script's micro-batch and accumulation."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.analysis.first_updates import is_in_proportion
from autotune.analysis.wording import counted
from autotune.errors import BadInput, first_line
from autotune.standalone import flags
from autotune.standalone.flags import OtherValue
from autotune.standalone.script_runs import RunScript
from autotune.worker.survey_result import SurveyResult
from search_spaces.batch import ACCUMULATION, BATCH_KNOBS, MICRO_BATCH

_PARTNERS = 2
"""Settings of the accumulation that are tried together with a micro-batch that fails alone."""
_SINGLE = 1
"""Samples of a micro-batch of which a script may do something else, such as leave it out."""


@dataclass(frozen=True)
class BatchSettings:
    """Settings of the micro-batch and the accumulation of a script.

    Attributes:
        flags: knob -> setting that was seen to change it.
        global_flags: those of them whose setting counts all ranks together.
        in_proportion: knob -> settings that make it up together, each with its present value.
        keeps_global_batch: whether the script derives the one that is not in `flags`.
        columns: whether the samples of a batch lie in its columns.
        sums: whether the gradient was seen to grow with the number of micro-batches.
        doubts: why other settings do not change them, a line each.
    """

    flags: dict[str, str] = field(default_factory=dict)
    global_flags: tuple[str, ...] = ()
    in_proportion: dict[str, dict[str, int]] = field(default_factory=dict)
    keeps_global_batch: bool = False
    columns: bool = False
    sums: bool = False
    doubts: tuple[str, ...] = ()

    @property
    def settings_by_knob(self) -> dict[str, str]:
        """Return knob -> its setting, or the first one of several."""
        return {**self.flags, **{k: next(iter(parts)) for k, parts in self.in_proportion.items()}}

    @property
    def shared_by_ranks(self) -> tuple[str, ...]:
        """Return the knobs of which each rank has less, the more ranks there are."""
        derived = [knob for knob in BATCH_KNOBS if knob not in self.settings_by_knob]
        return self.global_flags or (tuple(derived) if self.keeps_global_batch else ())


def find_batch_settings(
    run: RunScript, seen: SurveyResult, workers: int, say: Callable[[str], None]
) -> BatchSettings:
    """Try the settings that may change the micro-batch or the accumulation, each in a run.

    Args:
        seen: training of the unchanged command, its settings among the options.
        workers: ranks that ran it.
        say: called with the number of runs that may follow.
    """
    if seen.uneven:  # no setting says how many samples a step has
        return BatchSettings()
    search = _Search(run, seen, workers)
    if plan := search.planned():
        say(plan)
    return search.result()


class _Search:
    """One search; every setting is tried once."""

    def __init__(self, run: RunScript, seen: SurveyResult, workers: int) -> None:
        self._run = run
        self._seen = seen
        self._workers = workers
        self._candidates = flags.candidates(seen, workers)
        self._parts = flags.parts(seen)
        self._found = BatchSettings()
        self._doubts: list[str] = []
        self._tried_together = False
        self._gradients = _Gradients()

    def planned(self) -> str:
        """Describe the runs that may follow; empty if none will."""
        runs = sum(map(len, self._candidates.values())) + len(self._parts)
        tried = "; ".join(
            [
                *(
                    f"{', '.join(other.option.flag for other in several)} for {knob}"
                    for knob, several in self._candidates.items()
                ),
                *(f"{' and '.join(parts)} in proportion" for parts in self._parts),
            ]
        )
        if not runs:
            return ""
        partners = min(_PARTNERS, len(self._candidates.get(ACCUMULATION, ())))
        again = sum(map(bool, map(self._doubled, self._candidates.get(MICRO_BATCH, ()))))
        more = again + (partners + 1 if partners else 0)
        refused = f"; {more} more if the script refuses one alone" if more else ""
        return f"At most {counted(runs, 'more run')} of a few steps: {tried}{refused}."

    def result(self) -> BatchSettings:
        """Try the settings, and return the result."""
        searches = [self._try_candidates, self._try_all_parts]
        for search in reversed(searches) if self._begins_with_parts() else searches:
            search()
        sums = self._gradients.sum_micro_batches
        return dataclasses.replace(self._found, sums=sums, doubts=tuple(self._doubts))

    def _begins_with_parts(self) -> bool:
        """Return whether parts are all that is named for the micro-batch.

        What has its value by chance comes after them.
        """
        several = self._candidates.get(MICRO_BATCH, ())
        return not any(flags.is_named(MICRO_BATCH, other.option) for other in several)

    def _try_candidates(self) -> None:
        for knob, several in self._candidates.items():
            for other in several:
                if self._is_done(knob):
                    break
                if other.option.flag not in self._found.flags.values():
                    self._try(knob, other)

    def _try_all_parts(self) -> None:
        for parts in self._parts:
            if not self._is_done(MICRO_BATCH):
                self._try_parts(parts)

    def _is_done(self, knob: str) -> bool:
        return self._found.keeps_global_batch or knob in self._found.settings_by_knob

    def _try(self, knob: str, other: OtherValue) -> None:
        before, flag = self._seen, other.option.flag
        try:
            after = self._run({flag: other.given})
        except BadInput as error:
            if knob == MICRO_BATCH and self._found_together(other):
                return
            if not self._tried_doubled(knob, other):
                self._doubts.append(f"{flag} {other.given} fails: {first_line(error)}")
            return
        self._gradients.add(before, after)
        if turned := next((k for k in BATCH_KNOBS if flags.answers(k, other, before, after)), None):
            self._add({turned: other})
        elif kept := next((k for k in BATCH_KNOBS if flags.keeps(k, other, before, after)), None):
            self._add({kept: other}, keeps_global_batch=True)
        elif knob == MICRO_BATCH and flags.changes_columns(other, before, after):
            self._add({knob: other}, columns=True)
        elif together := flags.shared(knob, other, after, self._workers):
            self._try(knob, together)
        elif other.value == _SINGLE and self._tried_doubled(knob, other):
            return
        elif other.option.sure:  # else it was a guess
            self._doubts.append(
                f"{flag} is not {knob}: with {other.given} there were {_split_of(after)}"
            )

    def _tried_doubled(self, knob: str, other: OtherValue) -> bool:
        """Try a setting of the micro-batch again with a larger value; return whether that was done."""
        larger = self._doubled(other) if knob == MICRO_BATCH else None
        if larger is not None:
            self._try(knob, larger)
        return larger is not None

    def _doubled(self, other: OtherValue) -> OtherValue | None:
        named = flags.is_named(MICRO_BATCH, other.option)
        return flags.doubled(other, self._seen) if named else None

    def _found_together(self, other: OtherValue) -> bool:
        """Try a setting of the micro-batch that fails alone together with one of the accumulation.

        DeepSpeed checks that both give its global batch. This is done once.
        """
        if self._tried_together:
            return False
        self._tried_together = True
        size, steps = flags.another_split(self._seen)
        for partner in self._candidates.get(ACCUMULATION, ())[:_PARTNERS]:
            if partner.option.flag == other.option.flag:
                continue
            try:
                after = self._run(
                    {other.option.flag: other.given, partner.option.flag: steps * partner.ranks}
                )
            except BadInput:
                continue
            if flags.split_as(size, steps, after):
                self._add({MICRO_BATCH: other, ACCUMULATION: partner})
                return True
        return self._found_all_together(size, steps)

    def _found_all_together(self, size: int, steps: int) -> bool:
        """Try all settings that are named for the two and have their values.

        A script that has them in its arguments and in a file refuses a contradiction.
        """
        batches, counts = (flags.named(knob, self._seen) for knob in BATCH_KNOBS)
        if len(batches) < 2 or not counts:
            return False
        given = {**dict.fromkeys(batches, size), **dict.fromkeys(counts, steps)}
        try:
            after = self._run(given)
        except BadInput:
            return False
        if not flags.split_as(size, steps, after):
            return False
        together = {MICRO_BATCH: batches, ACCUMULATION: counts}
        self._found = dataclasses.replace(self._found, in_proportion=together)
        return True

    def _try_parts(self, parts: Mapping[str, int]) -> None:
        """Try settings that may make up a micro-batch together: two loaders in proportion."""
        size, other = self._seen.micro_batch, flags.other_whole(self._seen.micro_batch, parts)
        given = {setting: present * other // size for setting, present in parts.items()}
        named = " and ".join(parts)
        try:
            after = self._run(given)
        except BadInput as error:
            self._doubts.append(f"{named} in proportion fails: {first_line(error)}")
            return
        if after.micro_batch != other:
            values = " and ".join(map(str, given.values()))
            self._doubts.append(
                f"{named} {'do' if len(parts) > 1 else 'does'} not make up {MICRO_BATCH}: with {values} "
                f"there were {_split_of(after)}"
            )
            return
        kept = after.samples == self._seen.samples
        if kept or after.accumulation_steps == self._seen.accumulation_steps:
            self._found = dataclasses.replace(
                self._found,
                flags={} if kept else self._found.flags,
                global_flags=() if kept else self._found.global_flags,
                in_proportion={MICRO_BATCH: dict(parts)},
                keeps_global_batch=kept,
            )

    def _add(
        self,
        others: Mapping[str, OtherValue],
        *,
        keeps_global_batch: bool = False,
        columns: bool = False,
    ) -> None:
        named = {knob: other.option.flag for knob, other in others.items()}
        shared = [knob for knob, other in others.items() if other.ranks > 1]
        # A script that keeps its global batch is given one of the two.
        earlier = BatchSettings() if keeps_global_batch else self._found
        self._found = dataclasses.replace(
            self._found,
            flags={**earlier.flags, **named},
            global_flags=(*earlier.global_flags, *shared),
            keeps_global_batch=keeps_global_batch,
            columns=self._found.columns or columns,
        )


class _Gradients:
    """Sizes of first gradients of runs with another batch, beside that of the unchanged command."""

    def __init__(self) -> None:
        self._grows: dict[str, bool] = {}
        self._of_one_batch = False

    def add(self, before: SurveyResult, after: SurveyResult) -> None:
        """Take in a run."""
        if not (before.first_gradient > 0 and after.first_gradient > 0):
            return
        ratio = after.first_gradient / before.first_gradient
        steps = after.accumulation_steps / before.accumulation_steps
        rows = after.micro_batch / before.micro_batch
        if steps != 1 and after.samples == before.samples:
            self._of_one_batch = is_in_proportion(ratio, steps)
        elif steps != 1 and rows == 1:
            self._grows[ACCUMULATION] = is_in_proportion(ratio, steps)
        elif steps == 1 and rows != 1 and after.micro_batch:
            self._grows[MICRO_BATCH] = is_in_proportion(ratio, rows)

    @property
    def sum_micro_batches(self) -> bool:
        """Return whether they grow with the micro-batches of a step, and not with the rows of each.

        Where they grow with both, the script sums over all rows of a step, however it is split.
        """
        grows = self._grows
        alone = grows.get(ACCUMULATION, False) and grows.get(MICRO_BATCH) is False
        return self._of_one_batch or alone


def _split_of(seen: SurveyResult) -> str:
    return (
        f"{counted(seen.micro_batch, 'sample')} a micro-batch, "
        f"{counted(seen.accumulation_steps, 'micro-batch')} a step"
    )
