"""Report of a study in Markdown: the answer first, then how far it can be trusted, then the evidence."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from autotune.analysis.contributions import Contribution
from autotune.analysis.findings import listed
from autotune.analysis.rounds import Round, Stage
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import counted, difference, duration, quantity
from autotune.measurement.estimate import Ratio
from autotune.views.composition import StepMade
from autotune.views.figure_text import (
    MIB,
    bounds_text,
    expected_text,
    factor_text,
    percent,
    period_text,
    range_text,
    ratio_text,
    saving_facts,
    times,
)
from autotune.views.figures import Failed, Job, KnobChange, Search, StudyFigures, figures_of
from autotune.views.notes import finalists_and_refused
from autotune.views.running import Conditions, Running
from autotune.views.trial_figures import TrialFigures
from autotune.views.trust import Trust
from autotune.views.verdict_text import memory_lines
from search_spaces.knob import written
from storage import ChoiceReason, FinalistChoice, Repository

_SHOWN = 10
"""Trials in the table of the search."""
_MILLI, _PER_TERA = 1e3, 1e-12
_DISTURBED = 0.1
"""Share of disturbed blocks from which on a trial is said to be disturbed."""
_A_PAIR = 2
"""Members of a round with one finalist and the baseline."""
TRUST = {Trust.MEASURED: "Measured", Trust.CARE: "With care", Trust.OPEN: "Not known"}
STAGES = {
    Stage.CHOICE: "Rounds that chose among the finalists and yours",
    Stage.GAIN: "Rounds that tell by how much it is better",
    Stage.BEFORE: "Rounds that do not count: another machine, or the search went on",
    Stage.OPEN: "Not complete",
}
"""Title of the rounds of each stage."""
CHOICES = {
    ChoiceReason.FINALIST: "measured again",
    ChoiceReason.REFUSED: "not measured again, for a check refuses it",
    ChoiceReason.PASSED_OVER: "not measured again: behind beyond doubt, or no time for its check",
    ChoiceReason.BEYOND: "not measured again: `measurement.finalists`, or the time",
}
"""Why a trial was measured again or not."""
PURPOSES = {
    "search": "trials of the search",
    "paired": "yours beside a trial",
    "calibrate": "yours again",
    "reference": "numerics: the fp32 reference",
    "autocast": "numerics: rounding of bf16",
    "numerics": "numerics: losses against it",
    "confirm": "runs of the rounds",
    "repeat": "yours in more processes",
    "long": "runs for minutes",
    "attribute": "one change taken back",
    "profile": "profiles of a step",
    "fit": "largest micro-batch",
    "epochs": "short epochs",
    "longest": "longest samples",
}
"""Name of each purpose of attempts in words."""


def stage_title(several: Sequence[Round]) -> str:
    """Return the title of the rounds of one stage.

    Rounds of a single finalist chose nothing if the speed-up rests on them.
    """
    stage = several[0].stage
    tells = all(len(one.rates) + len(one.failed) <= _A_PAIR and one.counts for one in several)
    return STAGES[Stage.GAIN if stage is Stage.CHOICE and tells else stage]


def report(repository: Repository, name: str, verdict: Verdict | None = None) -> str:
    """Return the report of a study."""
    return report_of(figures_of(repository, repository.studies.named(name), verdict))


def report_of(figures: StudyFigures) -> str:
    """Return the report of a study with these figures."""
    sections = ((title, "\n".join(lines(figures))) for title, lines in _SECTIONS)
    return "\n\n".join(
        f"### {title}\n\n{text}" if title else text for title, text in sections if text
    )


def _heading(figures: StudyFigures) -> Iterator[str]:
    yield f"# {figures.study}"
    if figures.state == "DONE":
        return
    yield ""
    yield f"The study is {figures.state}" + (f": {figures.error}" if figures.error else ".")
    if figures.standstill:
        yield figures.standstill.text
    if figures.state in ("STOPPED", "FAILED"):
        yield f"`autotune resume {figures.study}` goes on."
    if figures.earlier:
        yield "The verdict is from before it went on."


def _verdict(figures: StudyFigures) -> Iterator[str]:
    yield "## Provisional answer" if figures.provisional else "## Verdict"
    yield ""
    yield figures.answer.text
    if figures.verdict.measured_on:
        yield ""
        when = f", {period_text(*figures.measured)}" if figures.measured else ""
        yield f"Measured on {figures.verdict.measured_on}; {figures.job.ranks}{when}."


def _changes(figures: StudyFigures) -> Iterator[str]:
    if not figures.answer.changes:
        return
    yield from _knob_table(figures.answer.changes)


def _knob_table(changes: Iterable[KnobChange]) -> Iterator[str]:
    yield "| knob | yours | recommended |"
    yield "|---|---|---|"
    for one in changes:
        yield f"| {one.knob} | {written(one.before)} | {written(one.after)} |"


def _trust(figures: StudyFigures) -> Iterator[str]:
    if not figures.trust:
        return
    for point in figures.trust:
        setting = f" (`{point.setting}`)" if point.setting else ""
        yield f"- {TRUST[point.trust]}: {point.title}. {point.text}{setting}"


def _saving(figures: StudyFigures) -> Iterator[str]:
    saving = figures.saving
    if saving is None:
        return
    for fact in saving_facts(saving, figures.cost, assumed=figures.job.hours_assumed):
        yield f"- {fact.name}: {fact.text}"


def _rounds(figures: StudyFigures) -> Iterator[str]:
    baseline = figures.answer.baseline
    trials = sorted({t for one in figures.rounds for t in one.rates if t != baseline})
    if not trials or baseline is None:
        return
    yield (
        "Yours and the other ran in turn in each round, so that both felt the same pace of the "
        "machine."
    )
    for stage in STAGES:
        several = [one for one in figures.rounds if one.stage is stage]
        running = any(one.so_far for one in several)
        rows = [
            row for one in several for row in _round_rows(one, trials, baseline, running=running)
        ]
        if rows:
            yield ""
            yield f"**{stage_title(several)}**"
            yield ""
            more = " by these rounds so far |" if running else ""
            yield f"| round | trial | over yours |{more} rate, {figures.unit} | yours | |"
            yield f"|---|---|---|{'---|' if running else ''}---|---|---|"
            yield from rows
    yield ""
    yield f"Yours: in {figures.unit}. Results so far of rounds that choose hold at any look."


def _round_rows(
    one: Round, trials: Iterable[int], baseline: int, *, running: bool
) -> Iterator[str]:
    """Yield the lines of a round; `running`: with the result by the rounds so far."""
    for trial in trials:
        if trial not in one.rates and trial not in one.failed:
            continue
        cells = [times(one.ratios[trial]) if trial in one.ratios else "-"]
        if running:
            cells.append(ratio_text(one.so_far[trial]) if trial in one.so_far else "-")
        cells += [
            quantity(one.rates[trial]) if trial in one.rates else one.failed[trial],
            quantity(one.rates[baseline]) if baseline in one.rates else "-",
            "disturbed" if {trial, baseline} & {*one.disturbed} else "",
        ]
        yield f"| {one.number} | {trial} | {' | '.join(cells)} |"


def _step(figures: StudyFigures) -> Iterator[str]:
    made = figures.step
    if made is None:
        return
    kept = figures.answer.trial == figures.answer.baseline
    yield "| ms of a step | yours |" + ("" if kept else " recommended | change |")
    yield "|---|---|" + ("" if kept else "---|---|")
    rows = [(part.label, part.before, part.after) for part in made.parts]
    for label, before, after in [*rows, ("a step", made.before, made.after)]:
        more = "" if kept else f" {quantity(after)} | {_change(after - before)} |"
        yield f"| {label} | {quantity(before)} |{more}"
    yield ""
    yield step_note(made, figures.job, kept=kept)
    if figures.traces:
        yield "Traces for https://ui.perfetto.dev:"
        yield from (f"- `{path}`" for path in figures.traces)


def _change(value: float) -> str:
    size = quantity(abs(value))
    return size if size == "0" else f"{'-' if value < 0 else '+'}{size}"


def step_note(made: StepMade, job: Job, *, kept: bool) -> str:
    """Return what the parts of a step rest on, and what a step is where the two differ in it.

    Args:
        kept: whether the baseline is kept, so that there is but one look.
    """
    before, after = job.batch_before, job.batch_after
    other = (
        "" if before == after else f" A tuned step trains {after} samples, one of yours {before}."
    )
    looks = " and ".join(counted(steps, "step") for steps in made.looks[: 1 if kept else 2])
    return (
        f"Shares of one look under the profiler ({looks}), times the confirmed time of a step. A look "
        f"has no interval: differences of a few per cent may be chance.{other}"
    )


def _contributions(figures: StudyFigures) -> Iterator[str]:
    gains = figures.contributions
    if not figures.answer.better:
        return
    if not gains:
        yield why_no_contributions(figures)
        return
    yield "| knob | baseline | winner | gain (95 % CI) |"
    yield "|---|---|---|---|"
    for one in gains:
        yield f"| {tied(one)} | {written(one.before)} | {written(one.after)} | {ratio_text(one.gain)} |"
    yield ""
    yield (
        f"The winner against itself with that one knob back at the baseline's value (with those that do "
        f"not go with that), in turn, in {counted(max(one.rounds for one in gains), 'round')}. Knobs "
        "help and hinder each other, so that the gains need not multiply to the whole. This is not the "
        "importance that a search dashboard shows: that is how much trials differed, luck included."
    )


def tied(one: Contribution) -> str:
    """Return the knob of a contribution with those that had to go back with it."""
    return f"{one.knob} (with {', '.join(one.tied)})" if one.tied else one.knob


def why_no_contributions(figures: StudyFigures) -> str:
    """Return why it is not known what each change of the recommendation brings."""
    runs = {one.purpose: one for one in figures.runs}
    if "attribute" in runs:
        return "Not known: no variant of the winner ran in the same round as the winner itself."
    if figures.provisional:
        return "Not measured yet."
    if not figures.contribution_rounds:
        return "Not measured: `measurement.attribution` is 0."
    several = 1 + len(figures.answer.changes)
    confirmed = runs.get("confirm")
    each = confirmed.seconds / confirmed.count if confirmed else 0.0
    seconds = figures.contribution_rounds * several * each
    return (
        f"Not measured: the time was over. {counted(figures.contribution_rounds, 'round')} of "
        f"{counted(several, 'run')} would take about {duration(seconds)} (`budget.wall_time`)."
    )


def _search(figures: StudyFigures) -> Iterator[str]:
    search = figures.search
    if not figures.trials:
        return
    states = ", ".join(f"{count} {state}" for state, count in search.trials.items())
    yield f"- {counted(len(figures.trials), 'trial')}: {states}"
    yield from (f"- {text}" for text in [search.space] if text)
    yield from (f"- left out: {reason}" for reason in search.left_out)
    if search.ended:
        yield f"- ended: {ended_text(search)}"
    yield from (f"- {choice_text(one)}" for one in search.choices)
    if raced := search.stopped_early.stopped:
        saved = search.stopped_early
        time = f", which saved {duration(saved.seconds)}, {saved.share:.0%} of the search"
        yield f"- trials stopped early: {raced}{time if saved.seconds >= 1 else ''}"
    yield from (f"- failed: {failed_text(one)}" for one in search.failures)
    yield ""
    yield "| trial | over yours, seen once | expected | how | rate | yours | peak MiB | changes |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in best_first(figures.trials)[:_SHOWN]:
        yield _trial_row(one)
    yield ""
    yield (
        f"Rates in {figures.unit}, as measured; yours: of the run beside it, or the mean of yours "
        "where it ran alone. Expected: by the model of a step, from all trials together."
    )


def ended_text(search: Search) -> str:
    """Return why a search ended, and what one more trial was expected to bring."""
    gain = search.expected_gain
    more = "" if gain is None else f"; one more trial was expected to bring {expected_text(gain)}"
    return f"{search.ended}{more}"


def choice_text(one: FinalistChoice) -> str:
    """Return why a trial was measured again or not.

    For example 'trial 4, expected 1.15x (1.10 to 1.21) by the model of a step: measured again'.
    """
    expected = expected_ratio(one)
    known = f", expected {expected} by the model of a step" if expected else ""
    return f"trial {one.trial}{known}: {reason_text(one)}"


def expected_ratio(one: FinalistChoice) -> str:
    """Return what the model expected of a trial, as '1.15x (1.10 to 1.21)'; empty if it said nothing."""
    if one.expected is None:
        return ""
    if one.expected_low is None or one.expected_high is None:
        return times(one.expected)
    ratio = Ratio(one.expected, one.expected_low, one.expected_high)
    return f"{factor_text(ratio)} ({bounds_text(ratio)})"


def reason_text(one: FinalistChoice) -> str:
    """Return why a trial was measured again or not, as 'measured again'."""
    return CHOICES[one.reason] + (f": {one.detail}" if one.detail else "")


def failed_text(one: Failed) -> str:
    """Return trials that failed in the same way, as 'trials 3, 5: OOM, out of memory'."""
    which = "trial" if len(one.trials) == 1 else "trials"
    numbers = ", ".join(map(str, one.trials[:_SHOWN]))
    more = len(one.trials) - _SHOWN
    cause = f", {one.cause}" if one.cause else ""
    return f"{which} {numbers}{f' and {more} more' if more > 0 else ''}: {one.state}{cause}"


def best_first(trials: Sequence[TrialFigures]) -> list[TrialFigures]:
    """Return timed trials: the recommended one, yours, the paired ones, the rest, each fastest first."""

    def place(one: TrialFigures) -> tuple[bool, bool, bool, float]:
        speed = one.ratio.value if one.ratio else (one.rate or 0.0)
        return not one.recommended, not one.baseline, not one.in_turn, -speed

    return sorted((one for one in trials if one.rate is not None), key=place)


def how_text(one: TrialFigures) -> str:
    """Return how a trial was compared with yours."""
    if one.baseline:
        return "yours"
    text = "in turn" if one.in_turn else "alone"
    if one.state == "PRUNED":
        text += ", ended early"
    if one.disturbed_share is not None and one.disturbed_share >= _DISTURBED:
        text += f", {one.disturbed_share:.0%} disturbed"
    return text


def _trial_row(one: TrialFigures) -> str:
    changed = difference(one.changes, {})
    cells = [
        ratio_text(one.ratio) if one.ratio else "-",
        times(one.expected) if one.expected is not None else "-",
        how_text(one),
        quantity(one.rate or 0.0),
        quantity(one.reference_rate) if one.reference_rate else "-",
        quantity(one.peak_bytes / MIB),
        changed,
    ]
    return f"| {one.trial} | {' | '.join(cells)} |"


def _per_batch(figures: StudyFigures) -> Iterator[str]:
    """Yield the best configuration of each global batch."""
    if not figures.batches:
        return
    yield "| global batch | trial | over yours | rounds | changes |"
    yield "|---|---|---|---|---|"
    for one in figures.batches:
        mark = " (yours)" if one.global_batch == figures.job.batch_before else ""
        changed = difference(one.knobs, figures.verdict.baseline_knobs)
        ratio = ratio_text(one.speedup) if one.speedup else "-"
        yield (
            f"| {one.global_batch:,}{mark} | {one.trial} | {ratio} | {one.rounds or 'seen once'} | "
            f"{changed} |"
        )
    yield ""
    yield "Another global batch than yours wants another learning rate."


def _running(figures: StudyFigures) -> Iterator[str]:
    ran = figures.running
    if ran is None:
        return
    yield f"| in {ran.runs} runs, {ran.blocks} blocks | |"
    yield "|---|---|"
    rates = figures.answer.rates
    if rates is not None:
        yield f"| rate, from round to round | {range_text(rates, figures.unit)} |"
    for label, text in running_rows(ran, figures.step):
        yield f"| {label} | {text} |"
    if figures.verdict.memory:
        yield from memory_lines(figures.verdict.memory)
    if ran.utilisation and ran.utilisation > 1:
        yield ""
        yield "More than the device can do: the FLOP count or the device's peak is wrong."


def running_rows(ran: Running, made: StepMade | None) -> Iterator[tuple[str, str]]:
    """Yield label and figure of what was observed of the recommended configuration."""
    # A composition splits the mean, in which the slow steps are: the median lies beside it.
    exposed = None if made else ran.exposed_share
    rows = [
        ("runs in turn with the others, block by block", ran.in_turn or None, "{:d}"),
        ("step time, mean, ms", made and quantity(made.after), "{}, which the composition splits"),
        ("step time, median, ms", _quantity(ran.step_p50, _MILLI), "{}"),
        ("step time, 95th percentile, ms", _quantity(ran.step_p95, _MILLI), "{}"),
        ("step time, longest, ms", _quantity(ran.step_max, _MILLI), "{}"),
        ("waiting for the loader", ran.wait_share, "{:.1%} of the time"),
        ("communication that every rank waited for", exposed, "{:.1%} of the time"),
        ("slowest rank over the median one", ran.straggler, "{:.3f}"),
        ("peak memory of a rank", ran.peak_bytes / MIB, "{:,.0f} MiB"),
        ("memory left free", ran.headroom, "{:.1%}"),
        ("model TFLOP/s of a rank", _quantity(ran.flops, _PER_TERA), "{}"),
        ("of the device's peak", ran.utilisation, "{:.1%}"),
        ("clock of the slowest device", ran.clock_mhz, "{:,.0f} MHz"),
        ("energy of a sample", _quantity(ran.energy_per_sample), "{} J"),
        ("power of all devices, mean", _quantity(ran.watts), "{} W"),
        ("compiling", ran.compile_seconds or None, "{:.1f} s"),
    ]
    for label, value, form in rows:
        if value is not None:
            yield label, form.format(value)


def _quantity(value: float | None, factor: float = 1.0) -> str | None:
    return None if value is None else quantity(factor * value)


def _measurement(figures: StudyFigures) -> Iterator[str]:
    if not figures.runs:
        return
    noise = figures.noise
    if noise and noise.runs > 1:
        yield (
            f"- equal runs in new processes differ by {noise.sigma_run:.1%} (standard deviation, beyond "
            f"the scatter within each; by {counted(noise.runs, 'run')} of yours)"
        )
        if noise.drift_per_hour:
            yield f"- drift: {noise.drift_per_hour:+.1%} per hour"
    for label, text in condition_rows(figures.conditions):
        yield f"- {label}: {text}"
    for one in figures.runs:
        yield f"- {PURPOSES.get(one.purpose, one.purpose)}: {one.count}, {duration(one.seconds)}"


def condition_rows(found: Conditions) -> Iterator[tuple[str, str]]:
    """Yield label and figure of what was observed of the machine during the timed runs."""
    if found.foreign_cpu is not None and found.most_foreign_cpu is not None:
        mean, most = percent(found.foreign_cpu), percent(found.most_foreign_cpu)
        yield "others took of the processors", f"{mean} % on average, {most} % in one run at most"
    if found.disturbed_share is not None:
        yield "blocks that others disturbed", f"{found.disturbed_share:.0%}"
    if found.clock_mhz is not None:
        low, high = (f"{value:,.0f}" for value in found.clock_mhz)
        clock = low if low == high else f"{low} to {high}"
        yield "clock of the slowest device", f"{clock} MHz, from run to run"


def _bottlenecks(figures: StudyFigures) -> Iterator[str]:
    if figures.bottlenecks:
        yield from listed(list(figures.bottlenecks))


def _finalists(figures: StudyFigures) -> Iterator[str]:
    yield from finalists_and_refused(figures.verdict)


def _knobs(figures: StudyFigures) -> Iterator[str]:
    yield from _knob_table(figures.own_knobs)


_SECTIONS: tuple[tuple[str, Callable[[StudyFigures], Iterator[str]]], ...] = (
    ("", _heading),
    ("", _verdict),
    ("What changes", _changes),
    ("How far to trust it", _trust),
    ("What it saves, and what the study cost", _saving),
    ("Rounds, one by one", _rounds),
    ("What a step is made of", _step),
    ("What each knob brings", _contributions),
    ("Search", _search),
    ("", _finalists),
    ("Best per global batch", _per_batch),
    ("How the recommended configuration ran", _running),
    ("How it was measured", _measurement),
    ("What holds the baseline back", _bottlenecks),
    ("Knobs of this job", _knobs),
)
"""Title and lines of each section; without a title it has its own headings, or none."""
