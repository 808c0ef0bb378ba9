"""Figures of a study are the same wherever they are shown: page, terminal, note, CSV and JSON."""

import csv
import dataclasses
import io
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pandas
import pytest
from markdown_it import MarkdownIt
from optuna_dashboard import get_note

from autotune.analysis.findings import Finding
from autotune.analysis.gate import Refusal
from autotune.analysis.outcomes import Failure
from autotune.analysis.rounds import Round, Stage
from autotune.analysis.trial_ratios import TrialRatio
from autotune.analysis.verdict import Contender, Kind
from autotune.analysis.wording import quantity
from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.export.best import BestConfig, load
from autotune.export.tuned_job import command_job, script_job
from autotune.measurement.bottleneck import STRAGGLER
from autotune.measurement.estimate import Ratio
from autotune.views.answer import final_block
from autotune.views.comparison import Holds, comparison, comparison_text
from autotune.views.dashboard_notes import study_note
from autotune.views.figure_text import CI, bounds_text, hours, ratio_text, saving_facts, times
from autotune.views.figures import figures_of
from autotune.views.frame import COLUMNS
from autotune.views.live import LiveView, lines
from autotune.views.markdown_report import report_of
from autotune.views.page import page
from autotune.views.page_charts import trials_chart
from autotune.views.progress import ProgressLines
from autotune.views.purposes import PHASES, PURPOSES
from autotune.views.search_sections import expected_ratio, reason_text
from autotune.views.sections import STAGES, stage_title, step_note
from autotune.views.study_figures import Runs, StudyFigures, as_json
from autotune.views.trackers import metrics
from autotune.views.trust import Evidence, Point, Trust, points
from autotune.views.verdict_text import text_of
from autotune.worker.protocol import Knobs, Outcome
from launchers.replay import Answer, Launch
from launchers.replay.behaviours import noisy, running_at
from search_spaces.knob import written
from storage import Attempts, AttemptState, ChoiceReason, Database, Purpose, SearchEndCause
from tests.control.replayed import PLAIN, Replayed, rate
from tests.control.shown import answered, texts_of, words
from tests.support.behaviours import where
from tests.support.states import STATES, WHOLE, tuned
from tests.support.steering import ask
from tests.support.waiting import wait_for

WIDE: dict[str, Any] = {
    "search_space": {"micro_batch": [1, 2, 4, 8, 16, 32], "log_interval": [1, 2, 5, 10]},
    "objective": {"global_batch_size": "free"},
}
HOSTILE = "</script><img src=x onerror=alert(1)> \x1b[2J\x07 \u202e 'quoted\" & <b>"


@pytest.mark.long
def test_every_figure_is_the_same_on_page_terminal_note_table_and_json(played: Replayed) -> None:
    figures = tuned(played)
    speedup, saving = figures.answer.speedup, figures.saving
    assert figures.answer.better and speedup is not None and saving is not None
    texts = texts_of(played, figures)
    for name, text in texts.items():
        assert times(speedup.value) in text, name
        assert bounds_text(speedup) in " ".join(text.split()) or name == "page", name
        assert hours(saving.hours.value) in text, name
        for fact in saving_facts(saving, figures.cost, assumed=figures.job.hours_assumed):
            shown = " ".join(text.split())
            assert fact.figure in shown and fact.interval in shown, (name, fact)
    assert f"({bounds_text(speedup)})" in texts["page"], "in the title"
    study = played.trials_of_optuna()
    assert f"{times(speedup.value)} your configuration" in get_note(study)
    assert f"({bounds_text(speedup)}, {CI})" in get_note(study)
    told = json.loads(answered(played, "report", played.name, "--json"))
    assert told == json.loads(json.dumps(figures.as_dict()))
    for found in (told["answer"], json.loads(answered(played, "status", played.name, "--json"))):
        assert found["speedup"] == as_json(speedup)
    [listed] = json.loads(answered(played, "list", "--json"))
    assert listed["speedup"] == as_json(speedup)
    assert ratio_text(speedup) in answered(played, "list")
    _assert_same_reasons(figures, texts, get_note(study))
    _assert_same_trials(figures, texts, played)
    _assert_same_rounds(figures, texts, played)


def _assert_same_reasons(figures: StudyFigures, texts: dict[str, str], note: str) -> None:
    """Check what changes, what each change brings, the step, the choice, the cost and the failures."""
    for one in figures.answer.changes:
        before, after = written(one.before), written(one.after)
        assert f"| {one.knob} | {before} | {after} |" in texts["report"]
        assert f"{one.knob} {before} → {after}" in " ".join(texts["page"].split())
        assert re.search(rf"{one.knob} +{before} → {after}\n", texts["block"])
        assert f"{one.knob}: {after}" in note
    assert figures.contributions and figures.step and figures.search.choices
    for gain in figures.contributions:
        for name in ("page", "report"):
            assert ratio_text(gain.gain) in texts[name], (name, gain.knob)
    for part in figures.step.parts:
        if part.before:
            before, after = quantity(part.before), quantity(part.after)
            assert f"| {part.label} | {before} | {after} |" in texts["report"]
            assert before in texts["page"] and after in texts["page"]
    for choice in figures.search.choices:
        told = f"| {choice.trial} | {expected_ratio(choice)} |"
        assert any(
            line.startswith(told) and line.endswith(f"| {reason_text(choice)} |")
            for line in texts["report"].splitlines()
        )
        assert choice.expected is not None and expected_ratio(choice) in texts["page"]
        assert choice.expected_low is not None and choice.expected_high is not None
        assert choice.expected_low <= choice.expected <= choice.expected_high
        assert reason_text(choice).partition("`")[0] in texts["page"]
    for point in figures.trust:
        for name in ("page", "report", *(("block",) if point.trust is not Trust.MEASURED else ())):
            text = " ".join(
                texts[name].lower().split()
            )  # several may share a sentence of the block
            assert point.title.lower() in text, (name, point.title)


def _assert_same_trials(figures: StudyFigures, texts: dict[str, str], played: Replayed) -> None:
    rows = table(played)
    searched = {int(row["trial"]): row for row in rows if row["purpose"] == "search"}
    assert any(one.interleaved for one in figures.trials)
    for one in figures.trials:
        assert one.ratio is not None
        assert ratio_text(one.ratio) in texts["page"]
        if one.recommended or one.baseline:
            assert f"| {one.trial} | {ratio_text(one.ratio)} |" in texts["report"]
        row = searched[one.trial]
        for name, value in (
            ("ratio", one.ratio.value),
            ("ratio_low", one.ratio.low),
            ("ratio_high", one.ratio.high),
            ("rate", one.rate),
            ("reference_rate", one.reference_rate),
        ):
            assert float(row[name]) == pytest.approx(value), (one.trial, name)
        assert row["reference"] == one.reference
        assert float(row["disturbed_share"]) == one.disturbed_share
    attempts = {one.trial: one.digest for one in played.attempts("search")}
    for trial, row in searched.items():
        for name, value in vars(attempts[trial]).items():
            told = float(row[name]) if row[name] else None
            assert told == (None if value is None else pytest.approx(value)), (trial, name)


def _assert_same_rounds(figures: StudyFigures, texts: dict[str, str], played: Replayed) -> None:
    trial, baseline = figures.answer.trial, figures.answer.baseline
    assert trial is not None and baseline is not None
    rows = {
        int(row["round"]): row
        for row in table(played)
        if row["purpose"] == "confirm" and int(row["trial"]) == trial
    }
    printed = list(ProgressLines(played.repository, played.study()).new())
    for one in figures.rounds:
        if trial not in one.ratios:
            continue
        assert one.ratios[trial] == pytest.approx(one.rates[trial] / one.rates[baseline])
        assert float(rows[one.number]["ratio"]) == pytest.approx(one.ratios[trial])
        assert float(rows[one.number]["rate"]) == pytest.approx(one.rates[trial])
        assert f"| {one.number} | {trial} | {times(one.ratios[trial])} |" in texts["report"]
        head = ["round", str(one.number), "trial", str(trial)]
        line = next(text for text in printed if text.split()[1:5] == head)
        assert times(one.ratios[trial]) in line
        if trial in one.so_far:
            assert ratio_text(one.so_far[trial]) in line
            assert ratio_text(one.so_far[trial]) in texts["page"]
    assert figures.rounds[-1].so_far[trial] == figures.answer.speedup, "the last is the verdict's"
    assert {one.stage for one in figures.rounds} == {Stage.CHOICE, Stage.GAIN}
    for one in figures.rounds:
        assert one.counts == (one.stage is Stage.GAIN), "the others chose"
        assert one.counts or not one.so_far
    counted = [one for one in figures.rounds if one.counts]
    assert figures.answer.compared == figures.answer.rounds == len(counted)


def table(played: Replayed) -> list[dict[str, str]]:
    text = answered(played, "export", played.name, "--trials", "-")
    return list(csv.DictReader(io.StringIO(text)))


def test_best_of_each_global_batch_has_the_figures_of_the_verdict(played: Replayed) -> None:
    def faster(knobs: Knobs) -> float:
        return rate(knobs) * (1.2 if knobs["log_interval"] == 10 else 1.0)

    played.on(noisy(running_at(faster), run=0.005, block=0.01)).run(
        search_space={"micro_batch": [2, 16], "log_interval": [1, 10]},
        baseline={"micro_batch": 2, "log_interval": 1},
        objective={"global_batch_size": "free"},
    )
    figures = figures_of(played.repository, played.study())
    answer, change = figures.answer, figures.verdict.batch
    best = {one.global_batch_size: one for one in figures.batches}
    assert change is not None and answer.chosen_in, "earlier rounds have other figures"
    recommended, keeps = best[change.after], best[change.before]
    assert (recommended.trial, recommended.knobs) == (answer.trial, figures.verdict.knobs)
    assert (recommended.speedup, recommended.rounds) == (answer.speedup, answer.rounds)
    assert change.best_gain is not None
    assert (keeps.speedup, keeps.knobs) == (change.best_gain, change.best_knobs)


@pytest.mark.long
def test_rate_of_a_trial_in_turn_is_as_measured_and_its_ratio_a_column_of_its_own(
    played: Replayed,
) -> None:
    figures = tuned(played)
    own = played.attempts("search")[0].result.throughput
    attempts = {a.trial: a.result for a in played.attempts("search")}
    for one in figures.trials:
        if not one.interleaved:
            continue
        result = attempts[one.trial]
        assert own is not None and result.ratio is not None and one.rate is not None
        assert result.throughput == pytest.approx(result.ratio * own)
        assert one.rate != pytest.approx(result.throughput, rel=1e-4), "the machine wanders"
        assert one.reference_rate is not None
        assert one.rate / one.reference_rate == pytest.approx(result.ratio, rel=0.1)


@pytest.mark.long
def test_value_in_optuna_is_the_ratio_to_the_baseline(played: Replayed) -> None:
    tuned(played)
    study = played.trials_of_optuna()
    assert study.metric_names == ["throughput over yours"]
    first, *others = study.trials
    assert first.value == 1.0
    ratios = {a.trial: a.result.ratio for a in played.attempts("search")}
    for trial in others:
        if trial.value is not None and ratios[trial.number] is not None:
            assert trial.value == pytest.approx(ratios[trial.number])


@pytest.mark.long
def test_choice_of_the_finalists_is_recorded_with_expectation_and_reason(
    played: Replayed,
) -> None:
    figures = tuned(played)
    again = {one.trial for one in figures.trials if one.again and not one.baseline}
    chosen = {c.trial: c for c in figures.search.choices if c.reason is ChoiceReason.FINALIST}
    assert chosen.keys() == again
    assert all(choice.expected is not None for choice in chosen.values())
    others = [c for c in figures.search.choices if c.reason is ChoiceReason.BEYOND]
    assert others, "the most promising of the others, with the reason why not"


@pytest.mark.long
def test_slow_rank_and_wide_interval_are_told_at_the_top_of_the_page(played: Replayed) -> None:
    figures = tuned(played)
    wide = Ratio(1.2, 1.026, 1.41)
    evidence = Evidence(
        verdict=dataclasses.replace(figures.verdict, speedup=wide, missing_seconds=None),
        rounds=figures.rounds,
        trials=figures.trials,
        contributions=(),
        search_end=None,
        expected_gain=None,
        timed=tuple(played.attempts("search")),
        environments=1,
        elapsed=figures.elapsed,
        unit=figures.unit,
        energy=None,
        warmup=1.0,
        bottlenecks=(Finding(STRAGGLER, 0.12, "all ranks wait for rank 1"),),
        drift=Ratio(1.05, 1.03, 1.07),
    )
    found = {point.code: point for point in points(evidence)}
    assert (found["straggler"].trust, found["width"].trust) == (Trust.CARE, Trust.OPEN)
    assert "12% of a step" in found["straggler"].text
    assert "1.02x" in found["width"].text
    assert (found["drift"].trust, found["drift"].setting) == (Trust.CARE, "measurement.warmup")
    answer = dataclasses.replace(figures.answer, speedup=wide)
    shown = dataclasses.replace(figures, trust=tuple(found.values()), answer=answer)
    text = words(page(shown))
    assert text.index("1.20x") < text.index("(1.02 to 1.41, 95 % CI)") < text.index("slow rank")
    assert text.index("slow rank") < text.index("What it saves")
    assert final_block(shown).startswith("1.20x yours (1.02 to 1.41, 95 % CI)")


@pytest.mark.long
def test_disturbances_of_gpus_that_no_run_has_read_are_told_as_not_watched(
    played: Replayed,
) -> None:
    timed = tuple(played.attempts("search")) if tuned(played) else ()
    read = tuple(
        dataclasses.replace(one, digest=dataclasses.replace(one.digest, clock_mhz=1980.0))
        for one in timed
    )
    told = {
        (device, watched): "unwatched"
        in {point.code for point in points(_evidence(played, timed=runs, device=device))}
        for device in ("cpu", "cuda")
        for watched, runs in ((False, timed), (True, read))
    }
    assert [case for case, found in told.items() if found] == [("cuda", False)]


def _evidence(played: Replayed, **changes: Any) -> Evidence:
    """Return the evidence of a tuned study with some of its fields changed."""
    figures = tuned(played)
    known: dict[str, Any] = {
        "verdict": figures.verdict,
        "rounds": figures.rounds,
        "trials": figures.trials,
        "contributions": (),
        "search_end": None,
        "expected_gain": None,
        "timed": tuple(played.attempts("search")),
        "environments": 1,
        "elapsed": figures.elapsed,
        "unit": figures.unit,
        "energy": None,
        "warmup": 1.0,
        "bottlenecks": (),
    }
    return Evidence(**{**known, **changes})


def test_rounds_on_another_machine_make_none_restless(played: Replayed) -> None:
    baseline = tuned(played).answer.baseline
    assert baseline is not None
    rates = [(Stage.BEFORE, 300.0), (Stage.CHOICE, 100.0), (Stage.GAIN, 101.0)]
    rounds = [Round(n, stage, rates={baseline: rate}) for n, (stage, rate) in enumerate(rates, 1)]
    found = {point.code for point in points(_evidence(played, rounds=rounds))}
    assert "restless" not in found
    moved = [dataclasses.replace(one, stage=Stage.CHOICE) for one in rounds]
    assert "restless" in {point.code for point in points(_evidence(played, rounds=moved))}


@pytest.mark.parametrize(
    ("nodes", "paused", "title", "within"),
    [
        (1, 0.0, "One machine, one sitting", "60 s"),
        (2, 0.0, "The same 2 machines, one sitting", "60 s"),
        (1, 7 * 86400.0, "One machine", "7.0 days"),
    ],
)
def test_one_sitting_on_one_machine_is_told_only_where_it_was(
    played: Replayed, nodes: int, paused: float, title: str, within: str
) -> None:
    tuned(played)
    first, *_, last = played.attempts("search")
    timed = (
        dataclasses.replace(first, started=0.0, ended=10.0),
        dataclasses.replace(last, started=paused + 50.0, ended=paused + 60.0),
    )
    several = points(_evidence(played, timed=timed, elapsed=60.0, nodes=nodes))
    point = next(one for one in several if one.code == "one_machine")
    assert (point.title, point.text) == (title, f"One environment, within {within}.")


def test_screen_tells_an_unquiet_machine_once_and_what_is_not_known_in_one_sentence(
    played: Replayed,
) -> None:
    said = (
        Point(Trust.CARE, "restless", "Restless machine", "Yours ran at 1 to 2."),
        Point(Trust.CARE, "risks", "Not shown to be the same", "Rows were not seen."),
        Point(Trust.CARE, "disturbed", "Disturbed runs", "Others disturbed 3 of 5 runs."),
        Point(Trust.OPEN, "width", "By how much", "At least 1.2x.", "budget.wall_time"),
        Point(Trust.OPEN, "lasting", "Whether it lasts", "It took 24 s."),
    )
    shown = final_block(dataclasses.replace(tuned(played), trust=said), width=200)
    noted = [line.strip() for line in shown.splitlines() if line.strip()[:1] in ("!", "?")]
    assert noted == [
        "! care  Restless machine: Yours ran at 1 to 2. Others disturbed 3 of 5 runs.",
        "! care  Not shown to be the same: Rows were not seen.",
        "? open  By how much (budget.wall_time), whether it lasts; the report tells more.",
    ]


def test_money_is_that_of_the_hours_at_the_given_price(played: Replayed) -> None:
    figures = tuned(played)
    saving, cost = figures.saving, figures.cost
    assert saving is not None and saving.money is not None and cost.money is not None
    assert saving.money.value == pytest.approx(2.5 * saving.device_hours.value)
    assert cost.money == pytest.approx(2.5 * cost.device_hours)
    assert "saved for" in page(figures)


def test_hours_that_are_saved_are_not_compared_with_one(played: Replayed) -> None:
    saving = tuned(played).as_dict()["saving"]
    assert set(saving["hours"]) == {"value", "low", "high"}
    assert saving["money"]["low"] < saving["money"]["value"]


def test_page_begins_with_when_it_was_measured(played: Replayed) -> None:
    figures = tuned(played)
    timed = [one for one in played.attempts() if one.result.throughput]
    assert figures.measured is not None
    assert figures.measured[0] == timed[0].started
    assert figures.measured[1] == max(one.ended or 0.0 for one in timed)
    afternoon = 1_795_788_120.0
    for seconds, told in ((600.0, "14:12"), (86_400.0, "2026-11-28 14:02")):
        period = (afternoon, afternoon + seconds)
        shown = dataclasses.replace(figures, measured=period)
        for text in (words(page(shown)).partition("trust")[0], report_of(shown)):
            assert f"2026-11-27 14:02 to {told} UTC" in text


def test_every_purpose_has_words() -> None:
    assert PURPOSES.keys() == set(Purpose)
    assert {words.phase for words in PURPOSES.values()} == set(PHASES)


def test_long_runs_are_told_in_hours(played: Replayed) -> None:
    figures = tuned(played)
    shown = dataclasses.replace(figures, runs=(Runs(Purpose.SEARCH, 100, 360_000.0),))
    assert "100 4.2 days" in " ".join(words(page(shown)).split())
    assert "| trials of the search | 100 | 4.2 days |" in report_of(shown)


def test_runs_that_never_settled_are_not_told_unless_their_speed_drifts(played: Replayed) -> None:
    figures = tuned(played)
    steady = Ratio(1.0, 0.95, 1.05)
    evidence = Evidence(
        verdict=figures.verdict,
        rounds=figures.rounds,
        trials=figures.trials,
        contributions=(),
        search_end=None,
        expected_gain=None,
        timed=tuple(
            dataclasses.replace(one, result=dataclasses.replace(one.result, steady=False))
            for one in played.attempts("search")
        ),
        environments=1,
        elapsed=figures.elapsed,
        unit=figures.unit,
        energy=None,
        warmup=1.0,
        bottlenecks=(),
        drift=steady,
    )
    assert not {"unsteady", "drift"} & {point.code for point in points(evidence)}


@pytest.mark.long
def test_running_study_is_shown_as_provisional_on_narrow_and_wide_screens(
    played: Replayed,
) -> None:
    seen: list[tuple[str, str, list[str]]] = []
    moments = [2, 9, 22]

    def look(launch: Launch) -> Answer:
        if moments and len(played.attempts()) >= moments[0]:
            del moments[0]
            study = played.study()
            figures = figures_of(played.repository, study)
            view = LiveView(played.repository, study)
            screens = [text.plain for width in (80, 120) for text in lines(view.moment(), width)]
            assert max(map(len, screens)) <= 120
            seen.append((page(figures), report_of(figures), screens))
        return PLAIN(launch)

    played.on(look).run(**WHOLE)
    assert not moments
    for markup, text, screens in seen:
        assert "provisional" in words(markup)
        assert "## Provisional answer" in text
        assert any("●" in line for line in screens)


def test_screen_of_a_search_leads_with_what_may_be_faster(played: Replayed) -> None:
    baseline = tuned(played).answer.baseline
    moment = LiveView(played.repository, played.study()).moment()
    slow, maybe, early = [t for t in moment.ratios if t != baseline][:3]
    seen = {slow: (0.5, 0.45, 0.55), maybe: (1.3, 0.95, 1.8), early: (2.0, 1.9, 2.1)}
    pruned = [
        dataclasses.replace(one, result=dataclasses.replace(one.result, state=AttemptState.PRUNED))
        if one.trial == early
        else one
        for one in moment.attempts
    ]
    shown = dataclasses.replace(
        moment,
        rounds=(),
        attempts=Attempts(pruned, moment.spec.full_baseline()),
        ratios={trial: TrialRatio(Ratio(*one), True, "", 1.0) for trial, one in seen.items()},
    )
    told = list(lines(shown, 120))
    rows = [line for line in told if line.plain.split()[:1] in ([str(t)] for t in seen)]
    assert [int(row.plain.split()[0]) for row in rows] == [maybe, slow, early]
    assert [str(row.style) for row in rows] == ["bold", "", ""]
    assert "ended early" in rows[-1].plain
    assert any(f"Leading: trial {maybe}," in line.plain for line in told)


def test_low_terminal_shows_what_the_rounds_come_to_and_what_runs(played: Replayed) -> None:
    baseline = tuned(played).answer.baseline
    assert baseline is not None
    rivals = [baseline + 1, baseline + 2, baseline + 3]
    so_far = dict.fromkeys(rivals, Ratio(1.2, 1.1, 1.3))
    rates = {baseline: 100.0, **dict.fromkeys(rivals, 120.0)}
    rounds = [
        Round(n, Stage.CHOICE, True, rates, dict.fromkeys(rivals, 1.2), so_far) for n in range(1, 9)
    ]
    moment = dataclasses.replace(
        LiveView(played.repository, played.study()).moment(),
        rounds=[Round(0, Stage.BEFORE, rates={baseline: 300.0}), *rounds],
        running=("confirming, round 9, trial 1", "confirming, round 9, trial 2"),
        doing="block 3",
        next="the verdict",
    )
    low, high = ([one.plain for one in lines(moment, 80, rows)] for rows in (24, 60))
    assert len(low) <= 24
    assert sum("So far: trial" in line for line in low) == 3
    assert sum("▸ confirming" in line for line in low) == 2
    assert any("Next: the verdict" in line for line in low)
    assert not any("restless" in line for line in low), "that was another machine"
    told = [line.split()[:2] for line in low if line.split()[-2:] == ["120", "100"]]
    assert told[-1] == ["8", str(rivals[-1])], "the newest rounds"
    assert sum(line.split()[-2:] == ["120", "100"] for line in high) == 24


@pytest.mark.long
def test_baseline_that_still_runs_is_not_said_to_fail(played: Replayed) -> None:
    """Beside it another trial has ended."""
    pages: dict[Kind, str] = {}

    def measured() -> bool:
        return any(one.result.throughput for one in played.attempts("search"))

    def look(launch: Launch) -> Answer:
        if launch.knobs["micro_batch"] == 2 and not launch.request.profile:
            wait_for(measured, "another trial has ended")
        figures = figures_of(played.repository, played.study())
        pages.setdefault(figures.answer.kind, page(figures))
        return PLAIN(launch)

    space = {"micro_batch": [2, 4, 8, 16]}
    played.on(look, slots=2).run(search_space=space, budget={"trials": 4})
    for kind, title in (
        (Kind.NO_RESULT, "Nothing has been measured yet"),
        (Kind.NO_BASELINE, "Yours has not been measured yet"),
    ):
        assert f"<title>played: {title} " in pages[kind]
        assert f'<h1 class="word">{title}</h1>' in pages[kind]
        assert "does not run here" not in pages[kind]


def test_list_tells_of_an_undecided_study_that_it_is(played: Replayed) -> None:
    shown = STATES["undecided"](played).figures
    assert shown.answer.kind is Kind.UNDECIDED
    listed = answered(played, "list")
    assert "undecided" in listed
    assert "1.00x" not in listed


def test_study_that_keeps_the_baseline_says_so_first(played: Replayed) -> None:
    flat = where(PLAIN, lambda _: True, rate=50.0)
    played.on(noisy(flat, run=0.03, block=0.01)).run(budget={"trials": 6})
    figures = figures_of(played.repository, played.study())
    assert not figures.answer.better
    assert "Keep what you have" in words(page(figures))
    assert figures.saving is None
    assert "your configuration" in final_block(figures)
    assert "best.yaml: your configuration as it is" in final_block(figures, exported="best.yaml")


def test_best_yaml_beside_a_baseline_that_does_not_run_is_told_as_another_configuration(
    played: Replayed,
) -> None:
    broken = where(
        PLAIN, lambda launch: launch.knobs["micro_batch"] == 2, outcome=Outcome.OOM, cause="full"
    )
    played.on(broken).run(budget={"trials": 6})
    figures = figures_of(played.repository, played.study())
    assert figures.answer.kind is Kind.NO_BASELINE
    shown = final_block(figures, exported="best.yaml")
    assert "autotune.load('best.yaml')" in shown
    assert "as it is" not in shown


_FASTER = {"values": [1, 2], "flag": "--faster", "default": 1, "numerics": False}
_OF_NO_CONTRACT: dict[str, Any] = {
    "resources": {"workers": 1},
    "search_space": {},
    "baseline": {},
    "objective": {"global_batch_size": "fixed"},
}
_SCRIPT = {
    **_OF_NO_CONTRACT,
    "workload": {"script": "train.py", "samples": 8},
    "knobs": {"faster": _FASTER},
}
_COMMAND = {
    **_OF_NO_CONTRACT,
    "workload": {"command": ["./bench", "{faster}"], "throughput": {"pattern": "(x)"}},
    "knobs": {"faster": {**_FASTER, "flag": None}},
}
_COMMANDS: dict[str, tuple[dict[str, Any], str]] = {
    "script": (_SCRIPT, "autotune run best.yaml -- YOUR COMMAND"),
    "command": (_COMMAND, "autotune run best.yaml"),
    "built-in": ({"workload": "gpt"}, ""),
    "factory": ({"workload": {"name": "mine:build"}}, ""),
}


@pytest.mark.parametrize("kind", _COMMANDS)
def test_the_command_that_is_shown_is_one_that_the_workload_takes(
    played: Replayed, kind: str
) -> None:
    changes, command = _COMMANDS[kind]
    faster = running_at(lambda knobs: 100.0 * knobs.get("faster", knobs["micro_batch"]))
    played.on(faster, workers=1).run(**changes, budget={"trials": 4}, export="best.yaml")
    figures = figures_of(played.repository, played.study())
    assert figures.answer.better
    lines = final_block(figures, exported="best.yaml").splitlines()
    assert [line for line in lines if "autotune run " in line] == (
        [f"  best.yaml: {command}"] if command else []
    )
    assert "  in code: autotune.load('best.yaml')" in lines
    [lasting] = [point.text for point in figures.trust if point.code == "lasting"]
    assert ("autotune run --watch" in lasting) == (kind == "script")
    shown = page(figures, exported="best.yaml")
    assert re.findall("<pre>(autotune run [^<]*)</pre>", shown) == ([command] if command else [])
    assert "autotune.load(&quot;best.yaml&quot;)" in shown or 'autotune.load("best.yaml")' in shown
    head = (played.folder / "best.yaml").read_text().partition("\n")[0]
    assert head.endswith(command.replace("best.yaml", "FILE") or "autotune.load(...).")
    _assert_that_a_job_is_started(load(played.folder / "best.yaml"), command)


def _assert_that_a_job_is_started(best: BestConfig, command: str) -> None:
    """Check that the recommendation can be started as the command says, and not otherwise."""
    if not command:
        with pytest.raises(BadInput, match=r"autotune\.load"):
            script_job(best, ["python", "train.py"], {})
    elif "--" in command.split():
        job = script_job(best, ["python", "train.py"], {})
        assert job.command == ("python", "train.py", "--faster", "2")
    else:
        assert command_job(best, {}).command == ("./bench", "2")


def test_page_of_a_failed_study_says_why_before_what_leads(played: Replayed) -> None:
    figures = tuned(played)
    answer = dataclasses.replace(figures.answer, provisional=True)
    failed = dataclasses.replace(
        figures, state="FAILED", error="the disk was full: `df` tells", answer=answer
    )
    text = words(page(failed))
    assert "provisional: its proof has not ended" in text
    assert text.index("The disk was full:") < text.index("Before it ended, over yours")


def test_verdict_of_a_study_that_goes_on_is_told_as_one_from_before(played: Replayed) -> None:
    changes: dict[str, Any] = {"search_space": {"micro_batch": [2, 8, 16]}}
    played.run(**changes, budget={"trials": 2})
    answer = figures_of(played.repository, played.study()).answer
    assert answer.better
    found: list[StudyFigures] = []

    def look(launch: Launch) -> Answer:
        if played.attempts()[-1].purpose == "search":
            found.append(figures_of(played.repository, played.study()))
        return PLAIN(launch)

    played.on(look).run(**changes, budget={"trials": 3})
    assert found[-1].answer.speedup == answer.speedup
    text = words(page(found[-1]))
    assert "the verdict is from before it went on" in text
    assert "Recommended, over yours; the study has gone on since" in text
    assert STAGES[Stage.BEFORE] in text, "its rounds"
    assert "before it went on" in report_of(found[-1])
    ended = words(page(figures_of(played.repository, played.study())))
    assert "before it went on" not in ended and "gone on since" not in ended


def test_study_whose_trials_all_fail_has_a_page_without_figures(played: Replayed) -> None:
    broken = where(PLAIN, lambda _: True, outcome=Outcome.CRASH, cause="rank 0: killed")
    played.on(broken).run_until_it_fails(budget={"trials": 3})
    figures = figures_of(played.repository, played.study())
    text = words(page(figures))
    assert "rank 0: killed" in text
    assert "1.00x" not in text
    assert "How far to trust it" not in text
    assert report_of(figures)


@pytest.mark.long
@pytest.mark.parametrize(
    ("cause", "setting", "changes"),
    [
        (SearchEndCause.TRIALS, "budget.trials", {"budget": {"trials": 3}}),
        (
            SearchEndCause.WALL_TIME,
            "budget.wall_time",
            {"budget": {"trials": None, "wall_time": "60s"}, **WIDE},
        ),
        (
            SearchEndCause.DEVICE_HOURS,
            "budget.device_hours",
            {"budget": {"trials": None, "device_hours": 0.005}},
        ),
        (
            SearchEndCause.MIN_IMPROVEMENT,
            "budget.min_improvement",
            {"budget": {"min_improvement": 0.9}, "sampler": "model"},
        ),
        (
            SearchEndCause.ALL_TRIED,
            None,
            {"budget": {"trials": 9}, "search_space": {"micro_batch": [1, 2]}},
        ),
    ],
    ids=lambda value: value.value if isinstance(value, SearchEndCause) else "",
)
def test_limit_that_ended_the_search_is_the_setting_to_raise(
    played: Replayed, cause: SearchEndCause, setting: str | None, changes: dict[str, Any]
) -> None:
    played.on(noisy(PLAIN, run=0.005, block=0.01)).run(**changes)
    figures = figures_of(played.repository, played.study())
    assert figures.search.end_cause == cause, figures.search.ended
    more = [point.setting for point in figures.trust if point.code == "budget"]
    assert more == ([setting] if setting else [])


@pytest.mark.long
def test_hostile_names_and_causes_are_inert(played: Replayed) -> None:
    def failing(launch: Launch) -> Answer:
        if launch.knobs["micro_batch"] == 4:
            return Answer(outcome=Outcome.ERROR, cause=HOSTILE)
        return PLAIN(launch)

    played.on(failing).run(search_space={"micro_batch": [2, 4, 8]})
    markup = page(figures_of(played.repository, played.study()))
    assert HOSTILE.strip() in {a.result.cause.strip() for a in played.attempts("search")}
    assert "<script" not in markup
    assert "<img" not in markup
    assert not {ord(letter) for letter in markup} & {*range(9), *range(11, 32), 127, 0x202E}
    assert "&lt;img src=x onerror=alert(1)&gt;" in markup
    moment = LiveView(played.repository, played.study()).moment()
    printed = [answered(played, command, played.name) for command in ("status", "watch", "report")]
    for text in (*printed, *(line.plain for line in lines(moment, 80))):
        assert not {ord(letter) for letter in text} & {*range(9), *range(11, 32), 127, 0x202E}
    assert "onerror=alert(1)" in printed[0], "the cause is told"


def test_cause_in_a_note_is_no_markdown(played: Replayed) -> None:
    cause = r"rank 0: TypeError: '__len__' of <class 'list'>, *args and *others, in C:\\[a] & ~b~"
    failing = where(
        PLAIN, lambda launch: launch.knobs["micro_batch"] == 4, outcome=Outcome.ERROR, cause=cause
    )
    played.on(failing).run(search_space={"micro_batch": [2, 4]})
    [failed] = [a for a in played.attempts("search") if a.result.state == "ERROR"]
    study = played.trials_of_optuna()
    note = get_note(optuna.Trial(study, study.trials[failed.trial]._trial_id))
    assert f"cause: {cause}" in words(MarkdownIt().render(note))


def test_causes_in_the_note_of_a_study_are_no_markdown(played: Replayed) -> None:
    cause = "rank 0: TypeError: <class 'int'> | None, `x` and __len__"
    verdict = tuned(played).verdict
    assert verdict.knobs is not None
    found = dataclasses.replace(
        verdict,
        soak_failure=Failure(1, AttemptState.ERROR, cause),
        refused=(Refusal(3, {**verdict.knobs, "log_interval": 7}, cause),),
    )
    shown = words(MarkdownIt().enable("table").render(study_note(found)))
    assert shown.count(cause) == 3, "twice in words, and in the table"
    assert "log_interval=7" in shown
    assert " ".join(text_of(found).split()) in " ".join(shown.split())


def test_page_is_one_file_that_loads_nothing(played: Replayed) -> None:
    markup = page(tuned(played))
    assert "<script" not in markup
    assert not re.findall(r"""(?:src|href)=["'](?!#)|url\((?!#)|@import|https?:""", markup)
    assert "default-src 'none'" in markup
    assert len(markup.encode()) <= 200 * 1024
    ids = re.findall(r'id="([^"]+)"', markup)
    assert len(ids) == len(set(ids))
    assert {*re.findall(r'href="#([^"]+)"', markup)} <= {*ids}


def test_only_knobs_of_the_job_are_listed(played: Replayed) -> None:
    figures = tuned(played)
    own = StudySpec.model_validate(played.study().spec).job_knobs
    changed = {one.knob for one in figures.answer.changes}
    assert {one.knob for one in figures.own_knobs} <= own | changed
    for text in (report_of(figures), page(figures), get_note(played.trials_of_optuna())):
        assert "fsdp_prefetch" not in text


@pytest.mark.long
def test_page_is_written_where_it_is_asked_for(played: Replayed, tmp_path: Path) -> None:
    tuned(played)
    assert answered(played, "report", played.name, "--html").strip() == "played.html"
    written = (played.folder / "played.html").read_text()
    assert answered(played, "report", played.name, "-", "--html") == written
    refused = ask("report", played.name, "a.html", "--storage", played.url, cwd=played.folder)
    assert refused.returncode == 2
    assert "--html" in refused.stderr


def test_page_names_the_file_that_has_the_recommendation(played: Replayed) -> None:
    played.run(search_space={"micro_batch": [2, 16]}, export="own.yaml")
    shown = words(answered(played, "report", played.name, "-", "--html"))
    assert 'autotune.load("own.yaml")' in shown
    assert "autotune export" not in shown
    own = played.folder / "own.yaml"
    own.write_text(own.read_text().replace(f"study: {played.name}", "study: another"))
    shown = words(answered(played, "report", played.name, "-", "--html"))
    assert f"autotune export {played.name} -o {played.name}-best.yaml" in shown
    assert f'autotune.load("{played.name}-best.yaml")' in shown
    assert "own.yaml" not in shown


def test_file_of_another_kind_is_not_replaced(played: Replayed) -> None:
    played.run(budget={"trials": 3})
    with sqlite3.connect(played.folder / "own.db") as connection:
        connection.execute("create table kept (a)")
    for name in ("own.csv", "own.parquet"):
        (played.folder / name).write_bytes((played.folder / "own.db").read_bytes())
    for name in ("other.html", "other.csv"):
        (played.folder / name).write_text("<html>, of something else")
    (played.folder / "data.csv").write_bytes(b"PAR1, of something else, PAR1")
    (played.folder / "folder.csv").mkdir()
    before = {file: file.read_bytes() for file in played.folder.iterdir() if file.is_file()}
    sources = ("own.db", "study.yaml")
    targets = {
        "report --html": (*sources, "other.html"),
        "export --trials": ("own.csv", "own.parquet", "other.csv", "data.csv", "folder.csv"),
        "export -o": (*sources, "other.html"),
        "export --format json -o": (*sources, "other.html"),
    }
    for command, names in targets.items():
        for name in names:
            first, *options = command.split()
            words = (first, played.name, *options, name)
            refused = ask(*words, "--storage", played.url, cwd=played.folder)
            assert (refused.returncode, refused.stdout) == (2, ""), (words, refused.stdout)
            assert f"{name} exists" in refused.stderr, words
    assert {file: file.read_bytes() for file in before} == before


def test_parquet_whose_columns_cannot_be_read_is_not_replaced(played: Replayed) -> None:
    played.run(budget={"trials": 3})
    train = played.folder / "train.parquet"
    train.write_bytes(b"PAR1, of a later version, PAR1")
    words = ("export", played.name, "--trials", train.name, "--storage", played.url)
    refused = ask(*words, cwd=played.folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert train.read_bytes() == b"PAR1, of a later version, PAR1"


def test_parquet_of_other_columns_is_not_replaced(played: Replayed) -> None:
    pytest.importorskip("pyarrow")
    played.run(budget={"trials": 3})
    train = played.folder / "train.parquet"
    pandas.DataFrame({"text": ["a"], "trial": [1]}).to_parquet(train)
    before = train.read_bytes()
    words = ("export", played.name, "--trials", train.name, "--storage", played.url)
    refused = ask(*words, cwd=played.folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "train.parquet exists" in refused.stderr
    assert train.read_bytes() == before


def test_file_of_the_kind_is_replaced(played: Replayed) -> None:
    played.run(budget={"trials": 3})
    for command in ("report --html a.html", "export --trials a.csv", "export -o a.yaml"):
        first, *others = command.split()
        target = played.folder / others[-1]
        target.touch()
        for _ in range(2):
            assert answered(played, first, played.name, *others).strip() == others[-1]
            assert target.stat().st_size > 0


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_reader_of_a_table_never_sees_a_part_of_it(played: Replayed, name: str) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    played.run(budget={"trials": 3})
    answered(played, "export", played.name, "--trials", name)
    with (played.folder / name).open("rb") as reader:
        answered(played, "export", played.name, "--trials", name)
        there = (played.folder / name).stat()
        assert not os.path.samestat(os.fstat(reader.fileno()), there)


def test_table_of_a_study_without_attempts_has_its_columns(played: Replayed) -> None:
    played.submit(budget={"trials": 3})
    printed = answered(played, "export", played.name, "--trials", "-")
    assert printed.splitlines() == [",".join(COLUMNS)]


def test_table_of_attempts_is_csv_or_parquet(played: Replayed) -> None:
    played.submit(budget={"trials": 3})
    words = ("export", played.name, "--trials", "all.xlsx", "--storage", played.url)
    refused = ask(*words, cwd=played.folder)
    assert refused.returncode == 2
    assert "*.parquet" in refused.stderr
    assert not (played.folder / "all.xlsx").exists()


def test_run_of_a_round_that_was_lost_has_no_ratio_of_the_run_that_repeats_it(
    played: Replayed,
) -> None:
    def first(launch: Launch) -> bool:
        name = launch.request.trial.split("/")[1]
        return "-confirm1" in name and name.endswith("-1")

    played.on(where(PLAIN, first, lost_agent=True, outcome=Outcome.CRASH)).run(budget={"trials": 3})
    baseline = figures_of(played.repository, played.study()).answer.baseline
    rows = [row for row in table(played) if (row["purpose"], row["round"]) == ("confirm", "1")]
    others = [row for row in rows if int(row["trial"]) != baseline]
    compared = {(row["state"], bool(row["ratio"])) for row in others}
    assert compared == {("LOST", False), ("COMPLETE", True)}


def test_comparison_says_what_still_holds(played: Replayed) -> None:
    first = tuned(played)
    again = comparison(first, first)
    assert {one.holds for one in again.checks} == {Holds.YES}
    assert (again.environments, again.settings) == ((), ())
    assert again.change is not None and again.change.low < 1 < again.change.high
    kept = dataclasses.replace(first.answer, kind="nothing_better", speedup=None, changes=())
    other = dataclasses.replace(
        first, answer=kept, environments=({"torch": "9", **first.environments[0]},)
    )
    changed = comparison(first, other)
    assert Holds.YES not in {one.holds for one in changed.checks}
    assert "does not hold" in comparison_text(changed)
    found = answered(played, "compare", played.name, played.name, "--json")
    assert json.loads(found)["checks"] == json.loads(json.dumps(as_json(again)))["checks"]


@pytest.mark.parametrize("kind", [Kind.UNDECIDED, Kind.NOTHING_BETTER])
def test_study_that_keeps_the_baseline_has_no_gain_to_compare(played: Replayed, kind: Kind) -> None:
    first = tuned(played)
    kept = dataclasses.replace(first.answer, kind=kind, speedup=Ratio(1, 1, 1), changes=())
    found = comparison(first, dataclasses.replace(first, study="kept", answer=kept))
    assert (found.gains, found.change) == ((first.answer.speedup, None), None)
    assert "kept: no gain" in comparison_text(found)
    assert "second over first" not in comparison_text(found)
    assert "speedup" not in metrics(dataclasses.replace(first, answer=kept))


def test_gain_that_was_seen_once_confirms_and_refutes_nothing(played: Replayed) -> None:
    first = tuned(played)
    seen = dataclasses.replace(first.answer, provisional=True, confirmed=False)
    second = dataclasses.replace(first, study="running", answer=seen)
    better, as_much, *_ = comparison(first, second).checks
    assert {better.holds, as_much.holds} == {Holds.UNKNOWN}
    assert "over yours, seen once, not confirmed" in comparison_text(comparison(first, second))
    kept = dataclasses.replace(
        first, answer=dataclasses.replace(first.answer, kind=Kind.NOTHING_BETTER, speedup=None)
    )
    [check] = comparison(kept, second).checks
    assert check.holds is Holds.UNKNOWN


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        (Kind.NOTHING_BETTER, Holds.YES),
        *(
            (kind, Holds.UNKNOWN)
            for kind in (Kind.UNDECIDED, Kind.NO_BASELINE, Kind.NOT_ENOUGH_TIME)
        ),
    ],
)
def test_only_two_studies_that_saw_nothing_faster_confirm_each_other(
    played: Replayed, kind: Kind, holds: Holds
) -> None:
    first = tuned(played)
    ended = dataclasses.replace(first.answer, kind=kind, speedup=None, changes=())
    same = dataclasses.replace(first, answer=ended)
    [found] = comparison(same, same).checks
    assert (found.statement, found.holds) == ("nothing is faster than yours", holds)
    assert kind.value.replace("_", " ") in found.why


def test_errors_of_two_gains_are_independent(played: Replayed) -> None:
    figures = tuned(played)
    first, second = (
        dataclasses.replace(figures, answer=dataclasses.replace(figures.answer, speedup=gain))
        for gain in (Ratio(1.30, 1.245, 1.357), Ratio(1.20, 1.145, 1.257))
    )
    change = comparison(first, second).change
    assert change is not None
    found = [round(value, 3) for value in (change.value, change.low, change.high)]
    assert found == [0.923, 0.866, 0.984]


@pytest.mark.parametrize(
    ("again", "holds"),
    [
        (Ratio(1.30, 1.28, 1.32), Holds.YES),
        (Ratio(1.30, 1.05, 1.60), Holds.UNKNOWN),
        (Ratio(1.10, 1.08, 1.12), Holds.NO),
    ],
)
def test_second_gain_is_as_large_only_if_it_is_known_well_enough(
    played: Replayed, again: Ratio, holds: Holds
) -> None:
    figures = tuned(played)
    first, second = (
        dataclasses.replace(figures, answer=dataclasses.replace(figures.answer, speedup=gain))
        for gain in (Ratio(1.30, 1.28, 1.32), again)
    )
    checks = comparison(first, second).checks
    [found] = [one for one in checks if one.statement == "by as much"]
    assert found.holds is holds


def test_comparison_of_speed_and_energy_confirms_and_refutes_nothing(played: Replayed) -> None:
    first = tuned(played)
    kept = dataclasses.replace(first.answer, kind="nothing_better", speedup=None, changes=())
    keeps = dataclasses.replace(first, answer=kept)
    saves = dataclasses.replace(first, unit="samples/J")
    for second in (saves, dataclasses.replace(keeps, unit="samples/J")):
        [found] = comparison(keeps, second).checks
        assert found.holds is Holds.UNKNOWN
    assert "the energy per sample of yours" in comparison_text(comparison(first, saves))


def test_comparison_with_a_study_that_has_measured_nothing_is_refused(
    played: Replayed, database: Database, tmp_path: Path
) -> None:
    played.run(budget={"trials": 3})
    folder = tmp_path / "blank"
    folder.mkdir()
    Replayed(folder, database, "blank").submit(budget={"trials": 3})
    for first, second in ((played.name, "blank"), ("blank", played.name)):
        refused = ask("compare", first, second, "--storage", played.url, cwd=played.folder)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "blank has measured nothing" in refused.stderr


def test_line_of_an_event_begins_with_time_kind_and_number(played: Replayed) -> None:
    tuned(played)
    printed = list(ProgressLines(played.repository, played.study()).new())
    kinds = {"study", "trial", "again", "round", "ablation", "check", "soak"}
    for line in printed:
        at, kind, number, *_ = line.split()
        assert re.fullmatch(r"\d+s", at), line
        assert kind in kinds, line
        assert number == "-" or number.isdecimal(), line
    assert sum(line.split()[1] == "trial" for line in printed) == 12


def test_repeated_run_of_a_round_has_a_line_of_its_own(played: Replayed) -> None:
    def lost(launch: Launch) -> bool:
        _, _, run = launch.request.trial.split("/")[1].partition("-confirm2-")
        # The first run is one beside the others, which is not counted; the second is alone.
        return launch.knobs["micro_batch"] == 16 and run in ("1", "2")

    failing = where(PLAIN, lost, outcome=Outcome.ERROR, cause="connection reset by peer")
    printed: list[str] = []
    progress: list[ProgressLines] = []

    def look(launch: Launch) -> Answer:
        if not progress:
            progress.append(ProgressLines(played.repository, played.study()))
        printed.extend(progress[0].new())
        return failing(launch)

    space = {"micro_batch": [2, 16]}
    played.on(look).run(search_space=space, measurement={"finalists": 1})
    printed += progress[0].new()
    first, second = (line for line in printed if line.split()[1:4] == ["round", "2", "trial"])
    assert "failed: connection reset by peer" in first
    assert "2.67x" in second


def test_table_is_the_same_as_parquet(played: Replayed, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tuned(played)
    target = tmp_path / "all.parquet"
    for _ in range(2):  # it may be replaced
        words = ("export", played.name, "--trials", str(target))
        assert answered(played, *words).strip() == str(target)
    written = pandas.read_parquet(target)
    rows = table(played)
    assert [str(trial) for trial in written["trial"]] == [row["trial"] for row in rows]
    assert written["ratio"].notna().sum() == sum(bool(row["ratio"]) for row in rows) > 0


def test_large_figures_have_no_exponent(played: Replayed) -> None:
    figures = tuned(played)
    assert figures.step is not None and figures.running is not None
    slow = dataclasses.replace(figures.step, before=61_725.0, after=12_345.0)
    large = dataclasses.replace(
        figures.running, step_p50=12.3, step_p95=12.4, watts=11_200.0, flops=4.2e15
    )
    cost = dataclasses.replace(figures.cost, device_hours=160.0)
    shown = dataclasses.replace(figures, step=slow, running=large, cost=cost)
    key = played.study().key  # in names of folders: random, so 3e7 may be in it
    for text in (report_of(shown), words(page(shown)), final_block(shown)):
        assert not re.findall(r"\de[+-]?\d", text.replace(key, ""))
        assert "160 device hours" in text
    assert "| a step | 61,725 | 12,345 | −49,380 |" in report_of(shown)
    assert "- power of all devices, mean: 11,200 W\n" in report_of(shown)


def test_counts_titles_and_commands_of_the_page_are_exact(played: Replayed) -> None:
    figures = tuned(played)
    assert figures.step is not None
    ran = {one.purpose: one.count for one in figures.runs}
    assert ran["confirm"] == len(played.attempts("confirm")) > len(figures.rounds)
    assert f"runs of the rounds {ran['confirm']} " in " ".join(words(page(figures)).split())
    assert f"({figures.step.looks[0]} steps)" in step_note(figures.step, figures.job, kept=True)
    script = dataclasses.replace(figures.job, run_words=("--", "python"))
    assert script.run_with("a b.yaml") == "autotune run 'a b.yaml' -- python"
    assert 'class="ys" aria-hidden="true"' in page(figures)
    many = dataclasses.replace(figures, trials=figures.trials * 40)
    text = " ".join(words(page(many)).split())
    assert "autotune export played --trials FILE" in text and "in the CSV" not in text


@pytest.mark.parametrize(
    ("later", "title"),
    [
        (0, "Keep what you have: the noise is larger than the difference"),
        (2, "Keep what you have: later rounds do not bear out what was seen"),
    ],
)
def test_title_of_an_undecided_study_says_why(played: Replayed, later: int, title: str) -> None:
    figures = tuned(played)
    contender = Contender(1, {}, Ratio(1.04, 1.03, 1.05), contradicted_by=later)
    verdict = dataclasses.replace(figures.verdict, contender=contender)
    answer = dataclasses.replace(figures.answer, kind=Kind.UNDECIDED)
    assert title in page(dataclasses.replace(figures, verdict=verdict, answer=answer))


def test_axis_of_small_differences_has_labels_that_differ(played: Replayed) -> None:
    figures = tuned(played)
    near = [
        dataclasses.replace(one, ratio=one.ratio and Ratio(1 + one.trial / 1000, 0.999, 1.013))
        for one in figures.trials
    ]
    answer = dataclasses.replace(figures.answer, speedup=Ratio(1.004, 1.002, 1.006))
    shown = dataclasses.replace(figures, trials=near, answer=answer)
    [labels] = re.findall(r'<div class="ys"[^>]*>(.*?)</div>', trials_chart(shown))
    told = re.findall(r">([^<]+)</span>", labels)
    assert len(told) == len(set(told)) > 2
    assert "1.005x" in told
    text = words(page(shown))
    assert "1.004x as fast (1.002 to 1.006, 95 % CI)" in " ".join(text.split())
    assert "0.4 % more samples a second (0.2 to 0.6 %)" in " ".join(text.split())


@pytest.mark.parametrize("members", [2, 3])
def test_rounds_before_those_of_the_speed_up_are_titled_as_those_that_chose(members: int) -> None:
    rates = {number: 100.0 + number for number in range(members)}
    chose = Round(1, Stage.CHOICE, counts=False, rates=rates)
    tells = Round(2, Stage.GAIN, counts=True, rates={0: 100.0, 1: 120.0})
    assert stage_title([chose]) == STAGES[Stage.CHOICE]
    assert stage_title([tells]) == STAGES[Stage.GAIN]


def test_rounds_of_a_single_finalist_that_the_speed_up_rests_on_chose_nothing() -> None:
    only = Round(1, Stage.CHOICE, counts=True, rates={0: 100.0, 1: 120.0})
    assert stage_title([only]) == STAGES[Stage.GAIN]


@pytest.mark.parametrize("known", [(), (2,)])
def test_rows_of_rounds_are_as_wide_as_their_heading(
    played: Replayed, known: tuple[int, ...]
) -> None:
    """The result by the first rounds that count is not known yet; other rounds have none."""
    played.run(budget={"trials": 3})
    figures = figures_of(played.repository, played.study())
    rates, ratios, so_far = {0: 100.0, 1: 120.0}, {1: 1.2}, {1: Ratio(1.2, 1.1, 1.3)}
    rounds = [
        Round(number, stage, counts, rates, ratios, so_far if number in known else {})
        for stage in (Stage.CHOICE, Stage.GAIN)
        for number, counts in ((1, True), (2, True), (3, False))
    ]
    text = report_of(dataclasses.replace(figures, rounds=rounds))
    assert text.count("| 3 | 1 | 1.20x |") == 2
    tables = [re.findall(r"(?m)^\|.*$", part) for part in text.split("\n\n")]
    assert all(len({row.count("|") for row in rows}) == 1 for rows in tables if rows)
