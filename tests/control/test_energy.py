"""Energy per sample and power as objectives, over whole replayed studies."""

import csv
import io
import json
import re
from typing import Any

import pytest
import yaml
from optuna_dashboard import get_note

from autotune.analysis.saving import EnergySaving
from autotune.analysis.wording import quantity
from autotune.views.figure_text import bounds_text, kilowatt_hours, times
from autotune.views.figures import figures_of
from autotune.views.markdown_report import report_of
from autotune.views.page import page
from autotune.views.study_figures import as_json
from autotune.views.trackers import metrics
from autotune.views.trust import Trust
from autotune.worker.protocol import Knobs
from launchers.replay.behaviours import noisy, running_at
from launchers.replay.launcher import ENVIRONMENT
from storage import AttemptState
from tests.control.replayed import Replayed, rate
from tests.control.shown import answered, texts_of, words
from tests.support.behaviours import by_utilisation, drawing

FREE: dict[str, Any] = {"global_batch_size": "free"}
ENERGY: dict[str, Any] = {"metric": "samples_per_joule", **FREE}
SEARCH: dict[str, Any] = {
    "budget": {"trials": 8},
    "search_space": {"micro_batch": [1, 2, 4, 8, 16, 32]},
    "measurement": {"baseline_runs": 3, "search_ci_half_width": 0.05},
}


def watts(knobs: Knobs) -> float:
    """Return a power that rises faster than the rate: the fastest is not the most efficient."""
    return 50.0 + 4.0 * float(knobs["micro_batch"]) ** 1.3


def efficient(knobs: Knobs) -> float:
    return rate(knobs) / watts(knobs)


def test_least_energy_is_chosen_though_it_is_not_the_fastest(played: Replayed) -> None:
    behaviour = drawing(noisy(running_at(rate), run=0.003, block=0.01), watts)
    verdict = played.on(behaviour).run(objective=ENERGY, **SEARCH)
    sizes = {
        size: efficient({"micro_batch": size, "accumulation_steps": 1})
        for size in (1, 2, 4, 8, 16, 32)
    }
    best = max(sizes, key=lambda size: sizes[size])
    assert best not in (2, 32)
    assert verdict["kind"] == "better" and verdict["unit"] == "samples/J"
    assert verdict["knobs"]["micro_batch"] == best
    assert verdict["speedup"]["low"] < sizes[best] / sizes[2] < verdict["speedup"]["high"]


def test_rates_of_energy_are_samples_per_joule_of_the_blocks(played: Replayed) -> None:
    played.on(drawing(running_at(rate), watts)).run(objective=ENERGY, **SEARCH)
    for attempt in played.attempts("search"):
        blocks = [b for b in played.repository.attempts.blocks(attempt.id) if b.kept]
        joules = sum(block.observed["energy_joules"] for block in blocks)
        assert attempt.result.rate == pytest.approx(sum(b.samples for b in blocks) / joules)
        assert attempt.result.rate == pytest.approx(efficient(attempt.knobs))


def test_configuration_over_the_power_limit_is_not_chosen(played: Replayed) -> None:
    behaviour = drawing(noisy(running_at(rate), run=0.003, block=0.01), watts)
    limit = watts({"micro_batch": 8}) + 1.0
    verdict = played.on(behaviour).run(objective={"power_limit": limit, **FREE}, **SEARCH)
    assert verdict["knobs"]["micro_batch"] == 8 and verdict["unit"] == "samples/s"
    over = [one for one in played.attempts("search") if one.knobs["micro_batch"] > 8]
    assert over and {one.result.state for one in over} == {AttemptState.POWER}
    assert all("objective.power_limit" in one.result.cause for one in over)


def test_baseline_over_the_power_limit_is_measured_all_the_same(played: Replayed) -> None:
    behaviour = drawing(running_at(rate), watts)
    limit = watts({"micro_batch": 8}) + 1.0
    baseline = {"micro_batch": 16}
    verdict = played.on(behaviour).run(
        objective={"power_limit": limit, **FREE}, **{**SEARCH, "baseline": baseline}
    )
    assert played.attempts("search")[0].result.state == AttemptState.COMPLETE
    assert verdict["knobs"]["micro_batch"] == 16, "nothing within the limit is faster"


@pytest.mark.parametrize("values", [[1, 2, 4], ["max"]])
@pytest.mark.parametrize("objective", [ENERGY, {"power_limit": 100.0}])
def test_study_fails_at_the_start_where_energy_cannot_be_read(
    played: Replayed, objective: dict[str, Any], values: list[Any]
) -> None:
    reason = "/sys/class/powercap has no counter of a processor package (Intel RAPL)"
    environment = {**ENVIRONMENT, "energy_unreadable": reason}
    played.on(running_at(rate), environment=environment)
    space = {"micro_batch": values}
    resources = {"workers": 2, "memory_per_worker": "8GiB"}
    played.run_until_it_fails(
        objective=objective, **{**SEARCH, "search_space": space, "resources": resources}
    )
    error = played.study().error
    field = "metric" if "metric" in objective else "power_limit"
    assert error is not None and f"objective.{field}" in error and reason in error
    assert not played.attempts(), "it has run nothing"


def test_trial_whose_energy_is_not_told_is_an_error_with_what_to_do(played: Replayed) -> None:
    played.on(running_at(rate)).run_until_it_fails(objective=ENERGY, **SEARCH)
    *_, last = played.attempts("search")
    assert (last.trial, last.result.state) == (0, AttemptState.ERROR)
    error = played.study().error
    assert error is not None and "objective.metric" in error and "autotune doctor" in error


def test_counter_that_stands_still_tells_no_energy(played: Replayed) -> None:
    played.on(drawing(running_at(rate), lambda _: 0.0)).run(objective=FREE, **SEARCH)
    assert figures_of(played.repository, played.study()).energy is None


def test_trial_whose_power_counter_stands_still_is_an_error(played: Replayed) -> None:
    behaviour = drawing(running_at(rate), lambda _: 0.0)
    played.on(behaviour).run(objective={"power_limit": 100.0, **FREE}, **SEARCH)
    others = [one for one in played.recorded("search") if one.knobs["micro_batch"] != 2]
    assert {one.result.state for one in others} == {AttemptState.ERROR}
    assert all("objective.power_limit" in one.result.cause for one in others)


@pytest.mark.long
def test_every_figure_of_energy_is_the_same_wherever_it_is_shown(played: Replayed) -> None:
    played.on(drawing(noisy(running_at(rate), run=0.003, block=0.01), watts))
    played.run(objective=ENERGY, **SEARCH)
    figures = figures_of(played.repository, played.study())
    answer, saving, used = figures.answer, figures.saving, figures.energy
    assert (
        answer.speedup is not None
        and answer.rates is not None
        and isinstance(saving, EnergySaving)
        and used is not None
    )
    energy = answer.speedup.inverse
    texts = {
        **texts_of(played, figures),
        "note": get_note(played.trials_of_optuna()),
        "list": answered(played, "list"),
    }
    for name, text in texts.items():
        shown = " ".join(text.split())
        assert f"{times(energy.value)}" in shown and "energy" in shown, name
        assert bounds_text(energy) in shown, name
        assert not re.search(r"faster|slower|speed-up", shown), name
    for name in ("page", "report", "block", "status", "watch"):
        assert kilowatt_hours(saving.kilowatt_hours.value) in texts[name], name
    joules = (1 / answer.rates[1], 1 / answer.rates[0])
    for name in ("report", "page", "note"):
        assert f"{quantity(joules[0])} to {quantity(joules[1])} J/sample" in texts[name], name
    assert answer.rates[0] <= 1 / used.joules_per_sample[1] <= answer.rates[1]
    told = json.loads(answered(played, "report", played.name, "--json"))
    status = json.loads(answered(played, "status", played.name, "--json"))
    [listed] = json.loads(answered(played, "list", "--json"))
    for found in (told["answer"], told["verdict"], status, status["verdict"], listed):
        assert found["speedup"] is None and found["energy_ratio"] == as_json(energy)
    assert told["unit"] == "samples/J"
    assert not re.search(r"faster|slower|[Ss]peed-up", page(figures)), "labels of its charts"
    attributes = played.trials_of_optuna().user_attrs
    assert "throughput" not in attributes
    assert attributes["energy of a sample"].startswith("confirmed: ")
    assert played.trials_of_optuna().metric_names == ["samples per joule over yours"]
    assert told["energy"] == as_json(used)
    rows = csv.DictReader(io.StringIO(answered(played, "export", played.name, "--trials", "-")))
    for row in rows:
        if row["purpose"] == "search" and row["rate"]:
            assert 1 / float(row["rate"]) == pytest.approx(float(row["sample_joules"]))
    answered(played, "export", played.name)
    best = yaml.safe_load((played.folder / "best.yaml").read_text())
    assert best["energy"]["ratio"]["value"] == pytest.approx(energy.value, rel=1e-5)
    assert best["energy"]["unit"] == "J/sample" and "speedup" not in best
    assert not best["throughput"]
    assert metrics(figures)["energy_ratio"] == energy.value


def test_pace_that_is_told_as_equal_takes_no_longer(played: Replayed) -> None:
    played.on(
        drawing(
            running_at(lambda knobs: 50.0 if knobs["micro_batch"] == 2 else 49.9),
            lambda knobs: 200.0 if knobs["micro_batch"] == 2 else 100.0,
        )
    )
    played.run(objective=ENERGY, **SEARCH)
    [point] = [
        one for one in figures_of(played.repository, played.study()).trust if one.code == "pace"
    ]
    assert "1.00x as fast" in point.text and point.trust is Trust.MEASURED


def test_study_under_a_power_limit_tells_the_power_of_both(played: Replayed) -> None:
    limit = watts({"micro_batch": 8}) + 1.0
    played.on(drawing(running_at(rate), watts))
    played.run(objective={"power_limit": limit, **FREE}, **SEARCH)
    figures = figures_of(played.repository, played.study())
    assert figures.energy is not None and figures.energy.limit == limit
    assert figures.energy.watts == pytest.approx(
        (watts({"micro_batch": 2}), watts({"micro_batch": 8}))
    )
    [point] = [one for one in figures.trust if one.code == "power"]
    assert point.trust is Trust.MEASURED
    for text in (words(page(figures)), report_of(figures)):
        assert point.text in text and "POWER" in text


def test_baseline_over_the_limit_wants_care(played: Replayed) -> None:
    played.on(drawing(running_at(lambda _: 50.0), lambda _: 200.0))
    played.run(objective={"power_limit": 150.0, **FREE}, **SEARCH)
    figures = figures_of(played.repository, played.study())
    [point] = [one for one in figures.trust if one.code == "power"]
    assert point.trust is Trust.CARE and "200 W" in point.text
    assert {one.state for one in figures.trials if not one.baseline} == {"POWER"}


def test_power_grows_with_utilisation() -> None:
    power = by_utilisation(lambda knobs: knobs["micro_batch"], fastest=8.0, idle=60.0, full=300.0)
    assert [power({"micro_batch": size}) for size in (0, 4, 8, 16)] == [60, 180, 300, 300]
