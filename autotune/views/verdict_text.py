"""Sentences of a verdict; the line with a speed-up on a terminal is `views.answer.headline`."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotune.analysis.batches import BatchChange
from autotune.analysis.memory import Memory
from autotune.analysis.outcomes import Failure
from autotune.analysis.verdict import Contender, Kind, SoakResult, Verdict
from autotune.analysis.wording import (
    Rounding,
    Terms,
    counted,
    difference,
    duration,
    fixed,
    too_slow,
)
from autotune.measurement.estimate import Ratio
from autotune.views.figure_text import (
    CI,
    bounds_of_interval,
    bounds_text,
    claim,
    factor_text,
    least,
    loss_text,
    range_text,
    said_ratio,
    signed_percent,
    times,
)
from search_spaces import CATALOGUE
from search_spaces.batch import BATCH_KNOBS
from storage import AttemptState

_AS_FAST = 0.0005
"""A smaller relative difference is not mentioned."""
_SECONDS_PER_MINUTE = 60.0
_GIB, _MIB = 2**30, 2**20
_MORE_TIME = "a longer `budget.wall_time`; `autotune start` then goes on"


def shown(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict for JSON, with its text as `sentence`."""
    return {**verdict.as_dict(), "sentence": text_of(verdict)}


def text_of(verdict: Verdict) -> str:
    """Return the text of a verdict or of a provisional answer."""
    if verdict.told:
        return verdict.told
    text = _answer(verdict)
    if verdict.provisional and verdict.trials:
        rounds = verdict.chosen_in + verdict.rounds
        after = f"{rounds} rounds of confirmation" if verdict.confirmed else ""
        text = f"Provisional, after {after or counted(verdict.trials, 'trial')}: {text}"
    return text + _memory(verdict.memory) + _outgrown(verdict)


def _answer(verdict: Verdict) -> str:
    texts = _BY_ROUNDS if verdict.confirmed else _BY_SEARCH
    text = texts[verdict.kind](verdict)
    if verdict.soak is not None:
        text += _soak_figure(verdict.soak, _terms(verdict))
    if verdict.soak_failure is not None:
        failure = verdict.soak_failure
        text += (
            f" See why before you rely on it: a run for minutes ended in {failure.state}: "
            f"{failure.cause}."
        )
    return text


# By the rounds of the confirmation


def _better(verdict: Verdict) -> str:
    assert verdict.speedup is not None
    changed = difference(verdict.knobs or {}, verdict.baseline_knobs)
    return (
        f"{_over_yours(verdict.speedup, verdict)}: {changed}, {_how_often(verdict)}, "
        f"at {_rate(verdict)}."
        + _of_several(verdict)
        + by_choice(verdict)
        + _failed(verdict)
        + _reverted(verdict)
        + _batch(verdict, verdict.batch, verdict.speedup)
        + _consequences(verdict)
        + (
            f" {least(verdict.speedup, _terms(verdict))}{_would_narrow(verdict)}"
            if verdict.speedup.vague
            else ""
        )
    )


def _nothing_better(verdict: Verdict) -> str:
    others, rounds = len(verdict.finalists) - 1, verdict.chosen_in or verdict.rounds
    if not others:
        return (
            f"Nothing else was measured again, so keep your configuration: it ran at {_rate(verdict)}, "
            f"measured {rounds} times more, for this rate alone."
            + _left_out(verdict)
            + _failed(verdict)
            + _refused(verdict)
        )
    how = f"times in turn with {counted(others, 'finalist')}"
    most = verdict.most_gain or 0.0
    left = f" by more than {_at_most(most)}" if most >= _AS_FAST else ""
    return (
        f"Nothing that was measured again beats your configuration{left}: it ran at {_rate(verdict)}, "
        f"measured {rounds} {how}." + _failed(verdict) + _refused(verdict)
    )


def _left_out(verdict: Verdict) -> str:
    """Return why the trial that looked fastest was not measured again."""
    if (one := verdict.unmeasured_leader) is None:
        return ""
    changed, terms = difference(one.knobs, verdict.baseline_knobs), _terms(verdict)
    gain, whose = terms.said(one.gain), "yours"
    if terms.of_energy:
        whose = "the energy per sample of yours"
    seen = f"Trial {one.trial}, seen once at {times(gain.value)} {whose}, was not measured again"
    if one.gain.faster:
        return f" {seen}: {changed}."
    return f" {seen}, as the {CI} of that is {bounds_of_interval(gain)}: {changed}."


def _undecided(verdict: Verdict) -> str:
    assert verdict.contender is not None
    left_open = _open(verdict, verdict.contender)
    text = f"Cannot tell whether anything beats your configuration, so keep it: {left_open}."
    if missing := _missing(verdict):
        text += f" About {missing} more would do ({_MORE_TIME}), and less on a quieter machine."
    else:
        text += _more_rounds(verdict)
    return text + _failed(verdict) + _refused(verdict)


def _open(verdict: Verdict, contender: Contender) -> str:
    """Return what the rounds say of the contender; a vague figure is not printed."""
    rounds = counted(verdict.rounds, "round")
    besides = f" after the {verdict.chosen_in} that chose it" if verdict.chosen_in else ""
    changed, ratio = difference(contender.knobs, verdict.baseline_knobs), contender.gain
    terms = _terms(verdict)
    said, energy = terms.said(ratio), " the energy per sample" if terms.of_energy else ""
    measured = f"{changed} measured {times(said.value)}{energy}"
    no_gain = "no less" if terms.of_energy else "no more"
    if contender.contradicted_by:
        since = counted(contender.contradicted_by, "round")
        return f"{measured} in the rounds that chose it, and {no_gain} than yours in {since} after that"
    if not ratio.vague:
        return f"{measured} in {rounds}{besides}, but the {CI} is {bounds_text(said)}"
    known = "nothing" if not math.isfinite(ratio.high) else "too little"
    return f"{rounds} of {changed} against yours{besides} tell {known}"


def _no_baseline(verdict: Verdict) -> str:
    ends = f" ({_ended(verdict.baseline_failure)})" if verdict.baseline_failure else ""
    fails = f"does not run here{ends}; the best that does"
    if verdict.baseline_rounds:
        runs = counted(verdict.baseline_rounds, "run")
        fails = f"fails after {runs} in turn{ends}; the best that does not"
    return (
        f"Your configuration {fails} ran at {_rate(verdict)} with "
        f"{difference(verdict.knobs or {}, verdict.baseline_knobs)}. If you have mended what stopped "
        "yours since, start a study of another name."
    )


def _no_result(verdict: Verdict) -> str:
    found = verdict.outcomes
    if found is None:
        return "Nothing has been measured yet."
    ends = ", ".join(f"{count} {state}" for state, count in found.ends.items()) or "none ran"
    text = f"No configuration could be measured{' again' if found.again else ''} ({ends})."
    if found.first:
        text += f" The first cause: {found.first.cause}.{too_slow(found.first.state)}"
    if set(found.ends) == {AttemptState.OOM}:
        text += " Every trial ran out of memory: try smaller micro_batch values."
    elif found.first:
        logs = f"autotune logs {verdict.study} --trial {found.first.trial}"
        text += f" `{logs}` shows what it printed."
    return text


def _not_enough_time(verdict: Verdict) -> str:
    best = verdict.search_best
    assert best is not None
    if best.knobs is None:
        seen = "not even your configuration could be timed"
    elif best.knobs == verdict.baseline_knobs:
        assert best.rate is not None
        seen = f"your configuration ran at {range_text((best.rate, best.rate), verdict.unit)}"
        seen += f", and nothing was seen to be {_terms(verdict).better}"
    else:
        changed = difference(best.knobs, verdict.baseline_knobs)
        assert best.ratio is not None
        seen = f"by one run of it, {changed} is {claim(best.ratio, terms=_terms(verdict))}"
    text = f"Not enough time: {seen}."
    if missing := _missing(verdict):
        text += f" About {missing} more would do to prove something ({_MORE_TIME})."
    elif verdict.hindrance:
        text = f"Nothing is proved: {seen}; {_hindrance(verdict.hindrance, verdict.study)}."
    elif not best.complete:
        text += f" How much it needs is not known; try several times as much ({_MORE_TIME})."
    return text + _refused(verdict)


_BY_ROUNDS: Mapping[Kind, Callable[[Verdict], str]] = {
    Kind.BETTER: _better,
    Kind.NOTHING_BETTER: _nothing_better,
    Kind.UNDECIDED: _undecided,
    Kind.NO_BASELINE: _no_baseline,
    Kind.NO_RESULT: _no_result,
    Kind.NOT_ENOUGH_TIME: _not_enough_time,
}


# By the trials of the search, before rounds tell


def _ahead(verdict: Verdict) -> str:
    assert verdict.speedup is not None
    changed = difference(verdict.knobs or {}, verdict.baseline_knobs)
    return (
        f"{_over_yours(verdict.speedup, verdict)}: {changed}, by one run of each. That is not "
        "confirmed: the first of many trials owes a part of it to luck."
        + _batch(verdict, verdict.batch, verdict.speedup)
        + _consequences(verdict)
        + _unverified(verdict)
    )


def _keep(verdict: Verdict) -> str:
    rate, contender = _rate(verdict), verdict.contender
    if contender is None:
        text = f"your configuration ran at {rate}, and there is nothing to compare it with yet."
        return text + _unverified(verdict)
    changed = difference(contender.knobs, verdict.baseline_knobs)
    return (
        f"keep your configuration, which ran at {rate}: nothing is surely "
        f"{_terms(verdict).better}; next comes {changed}: {_over_yours(contender.gain, verdict)}."
        + _unverified(verdict)
    )


def _best_seen(verdict: Verdict) -> str:
    failure = verdict.baseline_failure
    yours = f"does not run here ({_ended(failure)})" if failure else "has not been measured yet"
    return (
        f"your configuration {yours}; the {_terms(verdict).best} that was seen ran at {_rate(verdict)} "
        f"with {difference(verdict.knobs or {}, verdict.baseline_knobs)}." + _unverified(verdict)
    )


_BY_SEARCH: Mapping[Kind, Callable[[Verdict], str]] = {
    Kind.BETTER: _ahead,
    Kind.NOTHING_BETTER: _keep,
    Kind.UNDECIDED: _keep,
    Kind.NO_BASELINE: _best_seen,
    Kind.NO_RESULT: _no_result,
}


# Parts


def _rate(verdict: Verdict) -> str:
    """Return the rates of the answer, from the lowest to the highest: none of them is a promise."""
    return range_text(verdict.own_rates, verdict.unit)


def _over_yours(ratio: Ratio, verdict: Verdict) -> str:
    return claim(ratio, "your configuration", _terms(verdict))


def _terms(verdict: Verdict) -> Terms:
    return Terms.of(verdict.unit)


def remarks(verdict: Verdict) -> list[str]:
    """Return what the text of a recommendation says besides speed-up, evidence, price and memory."""
    if verdict.kind != Kind.BETTER or verdict.speedup is None or verdict.told:
        return []
    batch = verdict.batch if verdict.batch and verdict.batch.compared else None
    compared = _batch(verdict, batch, verdict.speedup)
    found = [
        *(_of_several(verdict), by_choice(verdict), _failed(verdict), _reverted(verdict)),
        *(compared, _training(verdict), _refused(verdict)),
        *(_outgrown(verdict), _unverified(verdict)),
    ]
    if verdict.soak is not None:
        found.append(f"{_soak_figure(verdict.soak, _terms(verdict))}.")
    return [text.strip() for text in found if text]


def memory_text(verdict: Verdict) -> str:
    """Return what a rank takes at its peak, in a sentence; empty if that is not known."""
    return _memory(verdict.memory).strip()


def _how_often(verdict: Verdict) -> str:
    if not verdict.chosen_in:
        return f"measured again {verdict.rounds} times in turn with yours"
    return (
        f"measured {verdict.rounds} times in turn with yours, besides the {verdict.chosen_in} rounds "
        "that selected it"
    )


def _of_several(verdict: Verdict) -> str:
    if verdict.behind is None:
        return ""
    if verdict.behind < _AS_FAST:
        return f" None of the finalists is {_terms(verdict).better}."
    most, worse = _at_most(verdict.behind), _terms(verdict).worse
    return f" It is at most {most} {worse} than the best of the finalists."


def by_choice(verdict: Verdict) -> str:
    """Return that the rounds that chose tell the speed-up as well; empty where they do not."""
    if not verdict.told_by_choice:
        return ""
    return (
        " The rounds that chose it count for the figure, as later ones were too few or too restless; "
        "the interval allows for that."
    )


def _at_most(share: float) -> str:
    """Return an upper bound in per cent, rounded upwards."""
    return f"{fixed(100 * share, 1, Rounding.UP)}%"


def _reverted(verdict: Verdict) -> str:
    if not verdict.reverted:
        return ""
    return f" What brought nothing is back as you have it: {difference(verdict.reverted, {})}."


def _failed(verdict: Verdict) -> str:
    if not verdict.failed:
        return ""
    which = ", ".join(map(str, verdict.failed))
    return (
        f" Not among the finalists any more: trial {which}, which failed as it was measured again."
    )


def _refused(verdict: Verdict) -> str:
    if not verdict.refused:
        return ""
    first = verdict.refused[0]
    changed = difference(first.knobs, verdict.baseline_knobs)
    return f" {counted(len(verdict.refused), 'trial')} refused: {changed}, as {first.reason}."


def _batch(verdict: Verdict, change: BatchChange | None, speedup: Ratio) -> str:
    """Return what the global batch has to do with the gain; empty if it stays."""
    if change is None:
        return ""
    terms, baseline = _terms(verdict), verdict.baseline_knobs
    before, after = change.before, change.after
    text = f" The global batch changes from {before} to {after}: adjust the learning rate."
    if not change.compared:
        return text
    best = change.best_gain
    if best is None:
        return f"{text} At your {before} nothing that was tried is surely {terms.better}."
    direction = "grow" if after > before else "shrink"
    return (
        f"{text} {said_ratio(best, terms)} at your {before}, with "
        f"{difference(change.best_knobs or {}, baseline)}; {times(terms.said(speedup).value)} if it may "
        f"{direction} to "
        f"{after}."
    )


def _consequences(verdict: Verdict) -> str:
    """Return what changes with a configuration besides its speed and its global batch."""
    risks = f" {verdict.risks}" if verdict.risks else ""
    return _training(verdict) + _numerics(verdict) + risks + _refused(verdict)


def _training(verdict: Verdict) -> str:
    knobs, baseline = verdict.knobs or {}, verdict.baseline_knobs
    changed = {
        name: knobs[name]
        for name, knob in CATALOGUE.items()
        if knob.schedule and name not in BATCH_KNOBS and knobs[name] != baseline[name]
    }
    if not changed:
        return ""
    return (
        f" {difference(changed, {})} changes what is trained: compare how far whole trainings come."
    )


def _numerics(verdict: Verdict) -> str:
    if not verdict.touched:
        return ""
    what, agreed = ", ".join(verdict.touched), verdict.numerics
    if agreed is None or agreed.loss_distance is None:
        return f" {what} can change the loss, which could not be checked: compare a longer run."
    return f" With {what} the {loss_text(agreed)}."


def _unverified(verdict: Verdict) -> str:
    found = verdict.unverified
    if found is None:
        return ""
    gain = claim(found.ratio, "yours" if verdict.baseline else "that one", _terms(verdict))
    seen = (
        f"Seen ahead: {gain}, but" if found.ratio.distinguishable else f"Highest in rate, {gain}:"
    )
    return (
        f" {seen} not an answer before {', '.join(found.touched)} has been "
        f"checked against fp32: {difference(found.knobs, verdict.baseline_knobs)}."
    )


def _missing(verdict: Verdict) -> str:
    """Return the time that an answer lacks, as '90 min'; empty if none does."""
    missing = verdict.missing_seconds
    return duration(missing, Rounding.UP) if missing else ""


def _would_narrow(verdict: Verdict) -> str:
    better = _terms(verdict).better
    if missing := _missing(verdict):
        return f" By how much it is {better}, about {missing} more would tell ({_MORE_TIME})."
    if verdict.exhausted or verdict.provisional:
        return _more_rounds(verdict)
    if verdict.missing_rounds:
        return f" By how much it is {better}, {_rounds_beyond(verdict)} would tell."
    return (
        f" By how much it is {better}, no number of rounds that the study may have would tell: its "
        "runs lie too far apart."
    )


def _more_rounds(verdict: Verdict) -> str:
    """Return what would lead further where no time does; nothing of a study that goes on."""
    if verdict.provisional:
        return ""
    if verdict.exhausted:
        return (
            " All rounds that the study may have are over: one of another name with "
            f"`measurement.rounds` above {verdict.rounds} would tell more."
        )
    if verdict.missing_rounds:
        return f" Its runs lie far apart: {_rounds_beyond(verdict)} would tell."
    return " Its runs lie too far apart: no number of rounds that the study may have would tell."


def _rounds_beyond(verdict: Verdict) -> str:
    """Return how many more rounds than the study may have are needed, and what allows them."""
    needed = verdict.missing_rounds or 0
    return (
        f"about {needed} more rounds, which are more than the study may have (one of another name with "
        f"`measurement.rounds: {verdict.rounds + needed}`),"
    )


def _ended(failure: Failure) -> str:
    return f"{failure.state}: {failure.cause}" if failure.cause else str(failure.state)


def _hindrance(failure: Failure, study: str) -> str:
    if failure.state == AttemptState.HANG:
        return (
            f"it hangs, or takes far longer to start: trial {failure.trial} {failure.cause}. `autotune "
            f"logs {study} --trial {failure.trial}` shows what it printed, {_MORE_TIME} gives it longer"
        )
    if failure.state == AttemptState.COMPLETE:
        return f"more time would not help, as {failure.cause}"
    return (
        f"more time would not help, as what was tried failed: trial {failure.trial}, {failure.state}: "
        f"{failure.cause}"
    )


def _soak_figure(found: SoakResult, terms: Terms) -> str:
    """Return for example 'In runs of 8 minutes: 1.52x (1.50 to 1.54), 0.8 % less than in ...'."""
    ratio, shift = terms.said(found.ratio), terms.said(found.shift)
    energy = " the energy" if terms.of_energy else ""
    change = "less" if shift.value < 1 else "more"
    doubt = " Compare both for longer before you rely on it." if found.contradicts else ""
    return (
        f" In runs of {found.seconds / _SECONDS_PER_MINUTE:.0f} minutes: {factor_text(ratio)}{energy} "
        f"({bounds_text(ratio)}, {CI}), {abs(shift.value - 1):.1%} {change} than in short ones "
        f"({bounds_text(shift, signed_percent)}).{doubt}"
    )


def _memory(memory: Memory | None) -> str:
    if memory is None or not memory.peak or (memory.limit is None and memory.longest is None):
        return ""
    unit, name = (_GIB, "GiB") if (memory.limit or memory.peak) >= _GIB else (_MIB, "MiB")
    of = "" if memory.limit is None else f" of {memory.limit / unit:.1f}"
    text = f" At its peak a rank takes {memory.peak / unit:.1f}{of} {name}"
    if memory.longest is not None:
        text += f", {memory.longest / unit:.1f} with the longest samples"
    return f"{text}."


def _outgrown(verdict: Verdict) -> str:
    found = verdict.outgrown
    if found is None or (verdict.trial is None and not verdict.provisional):
        return ""
    changed = difference(found.knobs, verdict.baseline_knobs)
    refused = counted(found.count, f"{_terms(verdict).better} trial")
    return f" {refused} refused: {changed} runs out of memory with the longest samples."


def memory_facts(memory: Memory) -> Iterator[tuple[str, str]]:
    """Yield what was seen of memory with the longest samples, as labels and figures."""
    if memory.longest is not None:
        yield "peak memory with the longest samples", f"{memory.longest / _MIB:,.0f} MiB"
        if memory.limit is not None:
            yield "memory left free by them", f"{1 - memory.longest / memory.limit:.1%}"
    elif memory.untold:
        yield "with the longest samples", f"not run: {memory.untold}"
