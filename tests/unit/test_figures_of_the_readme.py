"""Figures of README.md, computed again from what the benchmarks have printed."""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quickstart import summary
from benchmarks.verdicts import by_power

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
_MISSED = 61
"""Trials of a course that ended without a good row."""


def recorded(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def quickstarts() -> str:
    found = recorded("quickstart-one-build-cpu")
    assert found["verdicts"] == {"better": 8}
    gains = [run["speedup"][0] for run in found["runs"]]
    fastest, _, slowest = found["seconds"]
    return f"{min(gains):.2f}x to {max(gains):.2f}x, {fastest:.0f} to {slowest:.0f} s"


STOPPED_EARLY = (
    "searches that ended although a configuration more than 2 % faster existed (target 5 %)"
)


def cost_of_a_trial() -> str:
    seconds = recorded("overhead-cpu")["seconds_per_trial"]
    return f"{seconds['local']['median']:.2f} s; {seconds['torchrun']['median']:.1f} s"


def simulated_verdicts() -> str:
    cells = recorded("verdicts-cpu")["cells"]
    equal = [one for one in cells if re.search(r"^equal|gain 0%", one["world"])]
    better = {one["world"]: one["better"]["share"] for one in cells}
    wrong = statistics.fmean(better[one["world"]] for one in equal)
    gain = [one for one in cells if one not in equal]
    held = statistics.fmean(
        [one["coverage_given_better"]["share"] for one in gain],
        [better[one["world"]] for one in gain],
    )
    return f"{wrong:.1f} %; {held:.1f} %"


def section(name: str) -> str:
    """Return a section of the page of results, with single spaces."""
    page = (RESULTS / "README.md").read_text()
    return " ".join(page.partition(f"\n## {name}\n")[2].partition("\n## ")[0].split())


def verdict_cells() -> dict[str, Any]:
    """Return the cells of the simulated verdicts by the name of their world."""
    return {cell["world"]: cell for cell in recorded("verdicts-cpu")["cells"]}


def refused() -> str:
    faults, harmless = [0, 0], [0, 0]
    for model in recorded("gate-seeds-cpu").values():
        for name, case in model["refused"].items():
            is_fault = name not in model["largest errors where nothing is wrong"]
            sums = faults if is_fault else harmless
            sums[0] += round(case["share"] * case["runs"])
            sums[1] += case["runs"] - (0 if is_fault else case["bit for bit as the reference"])
    return f"{faults[0]} of {faults[1]}; {harmless[0]} of {harmless[1]}"


def trials_to_a_good_row() -> str:
    courses = recorded("search-courses-cpu")["courses"]
    ours, theirs = (
        statistics.median(
            one["trials"]["2"] or _MISSED for one in courses if one["sampler"] == name
        )
        for name in ("model", "tpe")
    )
    return f"{ours:g}; {theirs:g}"


def ends_with_more_left() -> str:
    return f"{recorded('search-courses-cpu')['stop']['share_with_more_than_2_percent_left']:.0%}"


FIGURES: dict[str, Callable[[], str]] = {
    "a trial besides its steps, suggested at random; torchrun's": cost_of_a_trial,
    'simulated: equals called "better"; gains that lie in their interval': simulated_verdicts,
    "planted faults refused; harmless changes refused": refused,
    "trials to within 2 % of the best, median; Optuna's TPE": trials_to_a_good_row,
    STOPPED_EARLY: ends_with_more_left,
}


def told() -> dict[str, str]:
    """Return figure -> value, as README.md has them."""
    rows = re.findall(
        r"^\| (.+) \| (.+) \| `\w+\.py[^`]*` \|$", (ROOT / "README.md").read_text(), re.M
    )
    return dict(rows)


QUICKSTART_ROW = "quickstart: what is found"
ROWS = (
    "what a trial costs besides its training steps, local",
    "simulated studies whose truth is known",
    "faults planted in training",
    "trials to within 2 % of the best of a recorded table",
    "how often the search of such a table ends with more than 2 % left",
)
"""Beginnings of the rows of these figures, in turn, on the page of results."""


def value_in_results(row: str) -> str:
    """Return the value in a row of the page of results."""
    page = (RESULTS / "README.md").read_text()
    (value,) = re.findall(rf"^\| {re.escape(row)}[^|]* \| ([^|]+) \|", page, re.M)
    return str(value)


def is_among(part: str, text: str) -> bool:
    """Return whether a figure stands in a text, where a percentage may have decimals."""
    number = re.sub(r"^(\d+) %$", r"\1(\\.\\d+)? %", part)
    pattern = number if number != part else re.escape(part)
    return re.search(rf"(?<![\d.]){pattern}(?!\d|\.\d)", text) is not None


@pytest.mark.parametrize(("figure", "row"), [*zip(FIGURES, ROWS, strict=True)])
def test_figure_is_that_of_the_recorded_run(figure: str, row: str) -> None:
    value = FIGURES[figure]().replace("%", " %").replace("  ", " ")
    assert told()[figure] == value
    there = value_in_results(row)
    for part in re.split("[;,] ", value):
        assert is_among(part, there), "the page of results says so, too"


def test_cost_of_a_trial_tells_what_the_models_suggestions_add() -> None:
    milliseconds = recorded("suggestion-cost-cpu")["after_100"]["model"]["median_ms"]
    added = f"{milliseconds / 1000:.2f} s after 100 trials"
    assert f"with random suggestions; the model's add {added}" in section("Cost of a trial")
    assert added in value_in_results(ROWS[0])


def test_rows_of_simulated_verdicts_are_those_of_the_recorded_run() -> None:
    worlds = {
        **{
            f"gain {gain} %, sigma {sigma} %": f"gain {gain:.1f}%, sigma {sigma:.1f}%"
            for gain, sigma in ((0.5, 0.3), (1, 1), (2, 1), (2, 3), (5, 3))
        },
        **{
            f"gain 2 %, {event}": f"{event}, gain 2%, sigma 1.0%"
            for event in ("drift", "hiccups", "uneven")
        },
    }
    text, cells = section("Verdicts"), verdict_cells()
    for row, world in worlds.items():
        cell = cells[world]
        better, holds = cell["better"]["share"], cell["coverage_given_better"]["share"]
        assert f"| {row} | {better:.1f} % | {holds:.0f} % | {cell['runs']:.0f} |" in text
    assert text.count("| gain") == len(worlds)


def test_text_on_simulated_verdicts_has_the_figures_of_the_recorded_run() -> None:
    text, cells = section("Verdicts"), verdict_cells()
    denied = sorted((cell["denied"]["share"], world) for world, cell in cells.items())
    (third, _), (second, uneven), (most, hiccups) = denied[-3:]
    assert (uneven[:6], hiccups[:7]) == ("uneven", "hiccups")
    assert f"at most {most:.1f} % of the studies of any cell (hiccups; {second:.1f} %" in text
    assert f"with uneven noise, at most {third:.1f} % in the others)" in text
    near = [cells[f"gain 5.0%, sigma {sigma}.0%"]["near_best"]["share"] for sigma in (1, 3, 8)]
    assert (
        f"in {near[0]:.0f} % of studies with a gain of 5 % and 1 % of noise, "
        f"in {near[1]:.0f} % with 3 %, in {near[2]:.0f} % with 8 %"
    ) in text


def test_intervals_where_better_is_rare_are_told_by_themselves() -> None:
    rare, some, common = by_power(recorded("verdicts-cpu")["cells"])
    text = section("Verdicts")
    for row in (rare, some, common):
        assert f"({row['cells']} cells) {row['hold']:,} of {row['better']:,}" in text
    assert f"of {rare['better']}: {100 * rare['hold'] / rare['better']:.0f} %" in text
    rows = [rare, some, common]
    pooled = sum(row["hold"] for row in rows) / sum(row["better"] for row in rows)
    assert f"holds the truth in {100 * pooled:.1f} %" in text
    assert f"; {rare['hold']} of {rare['better']}" in value_in_results(ROWS[1])


def test_quickstart_at_the_top_is_that_of_the_recorded_runs() -> None:
    gains, seconds = quickstarts().split(", ")
    page = (ROOT / "README.md").read_text()
    assert f"| {gains}, eight in a row, {seconds} | `make quickstart`" in page
    assert "here: one run of the quickstart" in page, "the block is another run"
    there = value_in_results(QUICKSTART_ROW)
    for part in (gains, seconds):
        assert is_among(part, there), "the page of results says so, too"


def test_simulated_studies_at_the_top_are_those_of_the_recorded_run() -> None:
    cells = [
        one
        for one in recorded("policy-gpu")["cells"]
        if (one["device"], one["budget"], one["policy"]) == ("h200", 120.0, "after")
    ]
    page = " ".join((ROOT / "README.md").read_text().split())
    told = {}
    for baseline in ("mb4", "mb16"):
        found = [one for one in cells if one["baseline"] == baseline]
        studies = sum(one["seeds"] for one in found)
        best = sum(round(one["seeds"] * one["within_3"]) for one in found)
        nothing = sum(round(one["seeds"] * one["nothing"]) for one in found)
        (gain,) = {f"{one['speedup_median']:.2f}x" for one in found}
        told[baseline] = studies, best, nothing, gain
    assert told == {"mb4": (400, 395, 2, "1.95x"), "mb16": (400, 400, 0, "1.37x")}
    assert "395 ended within 3 % of the best, 1.95x, and two recommended nothing" in page
    assert "From micro-batch 16 all 400 found 1.37x" in page


def test_promises_that_were_kept_are_those_of_the_tables() -> None:
    pages = (ROOT / "docs" / "public-scripts.md", RESULTS / "public-scripts.md")
    rows = [row for page in pages for row in page.read_text().splitlines()]
    ends = [re.search(r"\| (yes|no, above|no, below)[^|]*\| [^|]+\|$", row) for row in rows]
    kept = [end[1] for end in ends if end]
    assert [kept.count(one) for one in ("yes", "no, above", "no, below")] == [16, 2, 3]
    assert "| 16 of 21; two means above, three below |" in (ROOT / "README.md").read_text()


def test_a_figure_is_not_found_in_another_number() -> None:
    assert not is_among("6", "16 (13) / 20.6 / 60 / 6.5")
    assert not is_among("1 of 48", "1 of 480; 11 of 48")
    assert is_among("14 %", "14.4 %")


def test_every_figure_is_computed_here() -> None:
    assert told().keys() == FIGURES.keys()


def test_summary_of_quickstarts_has_the_median_of_an_even_number() -> None:
    found = recorded("quickstart-one-build-cpu")
    runs = found.pop("runs")
    assert summary(runs) == found
