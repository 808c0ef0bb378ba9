"""Golden texts of verdicts: the one place where their prose is asserted."""

import dataclasses
import math
import re
from pathlib import Path

import pytest

from autotune.analysis.batches import BatchChange
from autotune.analysis.gate import Refusal
from autotune.analysis.memory import Memory, Outgrown
from autotune.analysis.outcomes import Failure, Outcomes, SearchBest
from autotune.analysis.verdict import (
    Contender,
    FasterUnverified,
    Finalist,
    Kind,
    Numerics,
    SoakResult,
    Verdict,
)
from autotune.measurement.estimate import Ratio
from autotune.views.verdict_text import memory_facts, remarks, shown, text_of
from search_spaces import defaults
from storage import AttemptState

GIB = 2**30
BASELINE = defaults()


def knobs(**changes):
    return {**BASELINE, **changes}


def finalist(trial, **changes):
    rates = (1200.0, 1268.0) if trial else (800.0, 845.0)
    return Finalist(trial, knobs(**changes), trial == 0, rates, None, None)


BETTER = Verdict(
    Kind.BETTER,
    trial=1,
    knobs=knobs(micro_batch=64),
    throughput=Ratio(1234.0, 1200.0, 1268.0),
    speedup=Ratio(1.5, 1.4, 1.6),
    baseline=Ratio(823.0, 800.0, 845.0),
    finalists=(finalist(0), finalist(1, micro_batch=64)),
    rounds=5,
    unit="samples/s",
    study="tiny",
    baseline_knobs=BASELINE,
    trials=8,
    exhausted=True,
)
KEPT = dataclasses.replace(
    BETTER,
    trial=0,
    knobs=BASELINE,
    throughput=Ratio(823.0, 800.0, 845.0),
    speedup=Ratio(1, 1, 1),
)
HEAD = (
    "1.50x your configuration (1.40 to 1.60, 95 % CI): micro_batch=64, measured again 5 times in "
    "turn with yours, at 1,200 to 1,268 samples/s."
)
MORE = "a longer `budget.wall_time`; `autotune start` then goes on"
SURE = "The interval is wide: at least 1.10x is sure."


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"behind": 0.0001}, " None of the finalists is faster."),
        ({"behind": 0.012}, " It is at most 1.2% slower than the best of the finalists."),
        ({"behind": 0.0121}, " It is at most 1.3% slower than the best of the finalists."),
        (
            {"failed": (2, 3)},
            " Not among the finalists any more: trial 2, 3, which failed as it was measured again.",
        ),
        (
            {"reverted": {"log_interval": 10}},
            " What brought nothing is back as you have it: log_interval=10.",
        ),
        (
            {"batch": BatchChange(16, 128)},
            " The global batch changes from 16 to 128: adjust the learning rate.",
        ),
        (
            {"batch": BatchChange(16, 8, compared=True)},
            " The global batch changes from 16 to 8: adjust the learning rate. At your 16 nothing "
            "that was "
            "tried is surely faster.",
        ),
        (
            {"batch": BatchChange(16, 128, True, knobs(precision="bf16"), Ratio(1.35, 1.34, 1.37))},
            " The global batch changes from 16 to 128: adjust the learning rate. 1.35x (1.34 to "
            "1.37) at "
            "your 16, with precision=bf16; 1.50x if it may grow to 128.",
        ),
        (
            {"touched": ("precision",), "numerics": Numerics(0.00123, 1.0, steps=32)},
            " With precision the loss over the last quarter of 32 steps differs from fp32 by 0.12%.",
        ),
        (
            {"touched": ("precision",), "numerics": Numerics(0.00001, 1.0, steps=32)},
            " With precision the loss over the last quarter of 32 steps differs from fp32 by less "
            "than 0.01%.",
        ),
        (
            {
                "touched": ("precision",),
                "numerics": Numerics(0.00123, 1.0, steps=32, share_of_progress=-0.0123),
            },
            " With precision the loss over the last quarter of 32 steps differs from fp32 by 0.12%, "
            "which is 1.2% of its fall (limit 5%).",
        ),
        (
            {"touched": ("precision",), "numerics": Numerics(unverified="no reference")},
            " precision can change the loss, which could not be checked: compare a longer run.",
        ),
        ({"risks": "The graph was static."}, " The graph was static."),
        (
            {"refused": (Refusal(2, knobs(precision="bf16"), "its loss leaves fp32"),)},
            " 1 trial refused: precision=bf16, as its loss leaves fp32.",
        ),
        (
            {"soak": SoakResult(480.0, Ratio(1.52, 1.5, 1.54), Ratio(1.013, 0.99, 1.03))},
            " In runs of 8 minutes: 1.52x (1.50 to 1.54, 95 % CI), 1.3% more than in short ones "
            "(-1.0% to +3.0%).",
        ),
        (
            {"soak_failure": Failure(1, AttemptState.OOM, "rank 0: no memory")},
            " See why before you rely on it: a run for minutes ended in OOM: rank 0: no memory.",
        ),
        (
            {"memory": Memory(10 * GIB, 13 * GIB, 16 * GIB)},
            " At its peak a rank takes 10.0 of 16.0 GiB, 13.0 with the longest samples.",
        ),
        ({"memory": Memory(10 * GIB)}, ""),
        (
            {"outgrown": Outgrown(1, knobs(micro_batch=128))},
            " 1 faster trial refused: micro_batch=128 runs out of memory with the longest samples.",
        ),
    ],
    ids=str,
)
def test_text_of_a_faster_configuration_tells_each_part(changes, told):
    assert text_of(dataclasses.replace(BETTER, **changes)) == HEAD + told


def test_text_of_a_choice_by_earlier_rounds_names_both():
    found = dataclasses.replace(BETTER, chosen_in=3)
    assert text_of(found) == HEAD.replace(
        "measured again 5 times in turn with yours",
        "measured 5 times in turn with yours, besides the 3 rounds that selected it",
    )


THREE = (*BETTER.finalists, finalist(2, micro_batch=32))
BY_CHOICE = (
    "The rounds that chose it count for the figure, as later ones were too few or too restless; the "
    "interval allows for that."
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"finalists": THREE}, True),
        ({"finalists": THREE, "chosen_in": 3}, False),
        ({"finalists": THREE, "provisional": True}, False),
        ({}, False),
    ],
    ids=["no later ones", "later ones", "goes on", "no choice"],
)
def test_text_says_that_the_rounds_that_chose_tell_the_figure(changes, says):
    found = dataclasses.replace(BETTER, **changes)
    assert (BY_CHOICE in text_of(found)) == says
    assert (BY_CHOICE in remarks(found)) == says


@pytest.mark.parametrize(
    ("changes", "first", "last"),
    [
        (
            {"missing_seconds": 75.0, "exhausted": False},
            "1.50x your configuration (1.10 to 2.00, 95 % CI)",
            f" {SURE} By how much it is faster, about 75 s more would tell ({MORE}).",
        ),
        (
            {"exhausted": True},
            "1.50x your configuration (1.10 to 2.00, 95 % CI)",
            f" {SURE} All rounds that the study may have are over: one of another name with "
            "`measurement.rounds` above 5 would tell more.",
        ),
        (
            {"speedup": Ratio(1.5, 1.001, 2.2), "exhausted": False},
            "1.50x your configuration (1.001 to 2.20, 95 % CI)",
            " That it is faster is sure, by how much is not. By how much it is faster, no number of "
            "rounds that the study may have would tell: its runs lie too far apart.",
        ),
        (
            {"missing_rounds": 7, "exhausted": False},
            "1.50x your configuration (1.10 to 2.00, 95 % CI)",
            f" {SURE} By how much it is faster, about 7 more rounds, which are more than the study "
            "may have (one of another name with `measurement.rounds: 12`), would tell.",
        ),
    ],
    ids=["more time", "more rounds", "nothing", "rounds beyond"],
)
def test_text_of_a_vague_speed_up_begins_with_its_estimate_and_has_what_would_narrow_it(
    changes, first, last
):
    found = dataclasses.replace(BETTER, **{"speedup": Ratio(1.5, 1.1, 2.0), **changes})
    assert text_of(found).startswith(f"{first}: micro_batch=64, measured again ")
    assert text_of(found).endswith(f"in turn with yours, at 1,200 to 1,268 samples/s.{last}")


RATE = "800 to 845 samples/s"


def test_text_of_a_baseline_that_nothing_beats():
    found = dataclasses.replace(KEPT, kind=Kind.NOTHING_BETTER, most_gain=0.0031)
    assert text_of(found) == (
        "Nothing that was measured again beats your configuration by more than 0.4%: it ran at "
        f"{RATE}, measured 5 times in turn with 1 finalist."
    )
    alone = dataclasses.replace(found, finalists=(finalist(0),), most_gain=None)
    assert text_of(alone) == (
        f"Nothing else was measured again, so keep your configuration: it ran at {RATE}, measured 5 "
        "times more, for this rate alone."
    )
    looked = Contender(1, knobs(precision="bf16"), Ratio(1.59, 0.38, 6.56))
    assert text_of(dataclasses.replace(alone, unmeasured_leader=looked)).endswith(
        " Trial 1, seen once at 1.59x yours, was not measured again, as the 95 % CI of that is 0.38 to "
        "6.56: precision=bf16."
    )
    hopeless = dataclasses.replace(looked, gain=Ratio(3.77, 0.001, 10_880.0))
    assert text_of(dataclasses.replace(alone, unmeasured_leader=hopeless)).endswith(
        " was not measured again, as the 95 % CI of that is too wide to tell anything: precision=bf16."
    )
    faster = dataclasses.replace(looked, gain=Ratio(1.59, 1.38, 1.8))
    assert text_of(dataclasses.replace(alone, unmeasured_leader=faster)).endswith(
        " was not measured again: precision=bf16."
    )


@pytest.mark.parametrize(
    ("contender", "told"),
    [
        (
            Contender(1, knobs(bucket_cap_mb=5), Ratio(1.02, 0.99, 1.05)),
            "bucket_cap_mb=5 measured 1.02x in 5 rounds, but the 95 % CI is 0.99 to 1.05",
        ),
        (
            Contender(1, knobs(bucket_cap_mb=5), Ratio(1.3, 0.5, 3.0)),
            "5 rounds of bucket_cap_mb=5 against yours tell too little",
        ),
        (
            Contender(1, knobs(bucket_cap_mb=5), Ratio(1.3, 0.0, math.inf)),
            "5 rounds of bucket_cap_mb=5 against yours tell nothing",
        ),
        (
            Contender(1, knobs(bucket_cap_mb=5), Ratio(1.04, 1.03, 1.05), contradicted_by=2),
            "bucket_cap_mb=5 measured 1.04x in the rounds that chose it, and no more than yours in 2 "
            "rounds after that",
        ),
    ],
    ids=["interval", "vague", "one round", "contradicted"],
)
def test_text_of_an_undecided_study_names_the_contender(contender, told):
    found = dataclasses.replace(
        KEPT, kind=Kind.UNDECIDED, contender=contender, missing_seconds=75.0
    )
    assert text_of(found) == (
        f"Cannot tell whether anything beats your configuration, so keep it: {told}. About 75 s more "
        f"would do ({MORE}), and less on a quieter machine."
    )


@pytest.mark.parametrize(
    ("gain", "told"),
    [
        (
            Ratio(1.3, 0.5, 3.0),
            "10 rounds of bucket_cap_mb=5 against yours after the 5 that chose it",
        ),
        (Ratio(1.02, 0.99, 1.05), "1.02x in 10 rounds after the 5 that chose it, but"),
    ],
    ids=["vague", "interval"],
)
def test_text_of_an_undecided_study_counts_the_rounds_that_tell_its_figure(gain, told):
    contender = Contender(1, knobs(bucket_cap_mb=5), gain)
    found = dataclasses.replace(
        KEPT, kind=Kind.UNDECIDED, contender=contender, chosen_in=5, rounds=10
    )
    assert told in text_of(found)
    assert text_of(found).endswith("`measurement.rounds` above 10 would tell more.")


def test_text_of_a_provisional_answer_counts_all_rounds():
    found = dataclasses.replace(BETTER, provisional=True, chosen_in=5, rounds=3)
    assert text_of(found).startswith("Provisional, after 8 rounds of confirmation: ")


def test_text_of_a_baseline_that_does_not_run():
    found = dataclasses.replace(
        BETTER,
        kind=Kind.NO_BASELINE,
        speedup=None,
        baseline_failure=Failure(0, AttemptState.CRASH, "why"),
    )
    end = f" ran at 1,200 to 1,268 samples/s with {', '.join(f'{name}=' for name in list(BASELINE)[:1])}"
    assert text_of(found).startswith(
        f"Your configuration does not run here (CRASH: why); the best that does{end}"
    )
    assert text_of(found).endswith(
        ". If you have mended what stopped yours since, start a study of another name."
    )
    failed = dataclasses.replace(found, baseline_rounds=1)
    assert text_of(failed).startswith(
        f"Your configuration fails after 1 run in turn (CRASH: why); the best that does not{end}"
    )


CONTENDER = Contender(1, knobs(bucket_cap_mb=5), Ratio(1.04, 0.99, 1.1))
OF_EACH_KIND = [
    BETTER,
    dataclasses.replace(BETTER, unit="samples/J"),
    dataclasses.replace(KEPT, kind=Kind.NOTHING_BETTER, most_gain=0.003),
    dataclasses.replace(KEPT, kind=Kind.NOTHING_BETTER, finalists=(finalist(0),)),
    dataclasses.replace(KEPT, kind=Kind.UNDECIDED, contender=CONTENDER),
    dataclasses.replace(BETTER, kind=Kind.NO_BASELINE, speedup=None),
    Verdict(Kind.NO_RESULT, baseline_knobs=BASELINE, outcomes=Outcomes(False, {}, None)),
    Verdict(Kind.NOT_ENOUGH_TIME, baseline_knobs=BASELINE, search_best=SearchBest(False)),
    Verdict(
        Kind.NOT_ENOUGH_TIME,
        baseline_knobs=BASELINE,
        search_best=SearchBest(False),
        hindrance=Failure(1, AttemptState.OOM, "full"),
    ),
]


def test_page_on_measurement_has_a_row_for_each_beginning_of_a_verdict():
    page = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text()
    table = page.partition("| it begins with |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    found = {row: [] for row in rows}
    for verdict in OF_EACH_KIND:
        figure = "0.83x" if verdict.unit == "samples/J" else "1.56x"
        text = re.sub(r"^\d\.\d+x", figure, text_of(verdict))
        starts = [row for row in rows if text.startswith(re.findall(r"`([^`]+)`", row)[0])]
        assert len(starts) == 1, text
        found[starts[0]].append(verdict.kind)
    assert all(found.values()), "a row that no verdict begins with"
    assert {verdict.kind for verdict in OF_EACH_KIND} == {*Kind}


LONG = SoakResult(480.0, Ratio(1.2, 1.18, 1.22), Ratio(0.8, 0.78, 0.82))
FIGURE = (
    "In runs of 8 minutes: 1.20x (1.18 to 1.22, 95 % CI), 20.0% less than in short ones (-22.0% to "
    "-18.0%)"
)


def test_text_of_a_speed_up_that_long_runs_contradict():
    found = dataclasses.replace(BETTER, soak=LONG)
    doubt = "Compare both for longer before you rely on it."
    assert text_of(found) == f"{HEAD} {FIGURE}. {doubt}"


EMPTY = Verdict(Kind.NO_RESULT, unit="samples/s", study="tiny", baseline_knobs=BASELINE)


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        (
            Outcomes(False, {"OOM": 1}, Failure(1, AttemptState.OOM, "rank 1: full")),
            "No configuration could be measured (1 OOM). The first cause: rank 1: full. Every trial ran "
            "out of memory: try smaller micro_batch values.",
        ),
        (
            Outcomes(
                False, {"ERROR": 1, "PRUNED": 1}, Failure(2, AttemptState.ERROR, "rank 1: planted")
            ),
            "No configuration could be measured (1 ERROR, 1 PRUNED). The first cause: rank 1: planted. "
            "`autotune logs tiny --trial 2` shows what it printed.",
        ),
        (
            Outcomes(True, {"CRASH": 1}, Failure(1, AttemptState.CRASH, "rank 0: gone")),
            "No configuration could be measured again (1 CRASH). The first cause: rank 0: gone. "
            "`autotune logs tiny --trial 1` shows what it printed.",
        ),
        (Outcomes(False, {}, None), "No configuration could be measured (none ran)."),
        (None, "Nothing has been measured yet."),
    ],
    ids=["memory", "error", "again", "none", "yet"],
)
def test_text_of_a_study_without_a_result(outcomes, text):
    assert text_of(dataclasses.replace(EMPTY, outcomes=outcomes)) == text


SEEN = SearchBest(True, knobs(micro_batch=64), 100.0, Ratio(1.125, 1.04, 1.21))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"search_best": SEEN, "missing_seconds": 90.0},
            "Not enough time: by one run of it, micro_batch=64 is 1.12x yours (1.04 to 1.21, "
            f"95 % CI). About 90 s more would do to prove something ({MORE}).",
        ),
        (
            {"search_best": SearchBest(True, BASELINE, 100.0)},
            "Not enough time: your configuration ran at 100 samples/s, and nothing was seen to be "
            "faster.",
        ),
        (
            {"search_best": SearchBest(False)},
            "Not enough time: not even your configuration could be timed. How much it needs is not "
            "known; "
            f"try several times as much ({MORE}).",
        ),
        (
            {"search_best": SEEN, "hindrance": Failure(1, AttemptState.COMPLETE, "it outgrows")},
            "Nothing is proved: by one run of it, micro_batch=64 is 1.12x yours (1.04 to 1.21, "
            "95 % CI); more time would not help, as it outgrows.",
        ),
        (
            {"search_best": SEEN, "hindrance": Failure(2, AttemptState.OOM, "full")},
            "Nothing is proved: by one run of it, micro_batch=64 is 1.12x yours (1.04 to 1.21, "
            "95 % CI); more time would not help, as what was tried failed: trial 2, OOM: full.",
        ),
        (
            {
                "search_best": SearchBest(True, BASELINE, 100.0),
                "missing_seconds": 20.0,
                "refused": (Refusal(2, knobs(precision="bf16"), "its loss leaves fp32"),),
            },
            "Not enough time: your configuration ran at 100 samples/s, and nothing was seen to be "
            f"faster. About 20 s more would do to prove something ({MORE}). 1 trial refused: "
            "precision=bf16, as its loss leaves fp32.",
        ),
    ],
    ids=["missing", "baseline", "nothing", "barred", "failed", "refused"],
)
def test_text_of_a_study_without_time(changes, text):
    assert text_of(dataclasses.replace(EMPTY, kind=Kind.NOT_ENOUGH_TIME, **changes)) == text


def test_texts_of_energy_tell_ratios_and_rates_of_energy():
    left_out = Contender(1, knobs(precision="bf16"), Ratio(1.25, 0.5, 2.0))
    alone = dataclasses.replace(
        KEPT, kind=Kind.NOTHING_BETTER, finalists=(finalist(0),), unit="samples/J"
    )
    assert text_of(dataclasses.replace(alone, unmeasured_leader=left_out)).endswith(
        " Trial 1, seen once at 0.80x the energy per sample of yours, was not measured again, as the "
        "95 % CI of that is 0.50 to 2.00: precision=bf16."
    )
    found = dataclasses.replace(
        EMPTY,
        kind=Kind.NOT_ENOUGH_TIME,
        search_best=SearchBest(True, BASELINE, 0.25),
        unit="samples/J",
    )
    assert "your configuration ran at 4 J/sample, and nothing" in text_of(found)


def test_text_of_a_provisional_answer_by_the_search():
    found = dataclasses.replace(BETTER, provisional=True, rounds=0)
    assert text_of(found) == (
        "Provisional, after 8 trials: 1.50x your configuration (1.40 to 1.60, 95 % CI): "
        "micro_batch=64, by one run of each. That is not confirmed: the first of many trials owes a "
        "part of it to luck."
    )


def test_text_of_a_provisional_answer_by_rounds():
    found = dataclasses.replace(BETTER, provisional=True)
    assert text_of(found) == f"Provisional, after 5 rounds of confirmation: {HEAD}"


def test_text_of_a_provisional_answer_that_keeps_the_baseline():
    kept = dataclasses.replace(KEPT, kind=Kind.NOTHING_BETTER, provisional=True, rounds=0, trials=1)
    assert text_of(kept) == (
        f"Provisional, after 1 trial: your configuration ran at {RATE}, and there is nothing to "
        "compare "
        "it with yet."
    )
    contender = Contender(1, knobs(micro_batch=64), Ratio(1.05, 0.99, 1.11))
    unverified = FasterUnverified(knobs(precision="bf16"), Ratio(1.3, 1.2, 1.4), ("precision",))
    found = dataclasses.replace(kept, contender=contender, unverified=unverified, trials=3)
    assert text_of(found) == (
        f"Provisional, after 3 trials: keep your configuration, which ran at {RATE}: nothing is surely "
        "faster; next comes micro_batch=64: not distinguishable from your configuration (0.99 to "
        "1.11, 95 % CI). Seen ahead: 1.30x yours (1.20 to 1.40, 95 % CI), but not an answer before "
        "precision has been checked against fp32: precision=bf16."
    )


def test_time_that_is_missing_is_told_in_the_unit_of_its_size():
    seen = dataclasses.replace(EMPTY, kind=Kind.NOT_ENOUGH_TIME, search_best=SearchBest(False))
    text = text_of(dataclasses.replace(seen, missing_seconds=5400.0))
    assert "About 90 min more would do" in text


def test_text_of_version_1_is_what_was_told():
    found = Verdict(Kind.BETTER, version=1, told="2.00x yours")
    assert text_of(found) == "2.00x yours"
    assert shown(found)["sentence"] == "2.00x yours"


def test_facts_about_memory_of_the_longest_samples():
    assert list(memory_facts(Memory(10 * GIB, 13 * GIB, 16 * GIB))) == [
        ("peak memory with the longest samples", "13,312 MiB"),
        ("memory left free by them", "18.8%"),
    ]
    assert list(memory_facts(Memory(1, untold="there was no time"))) == [
        ("with the longest samples", "not run: there was no time")
    ]
