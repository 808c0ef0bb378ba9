"""Studies over a script with knobs and constraints of their own: what is searched, launched, said and
written."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.analysis.verdict import Verdict
from autotune.config import StudySpec
from autotune.export.best import load
from autotune.export.formats.command_line import argv
from autotune.export.tuned_job import script_job
from autotune.service.submission import submit
from autotune.views.answer import final_block
from autotune.views.comparison import comparison
from autotune.views.figures import figures_of
from autotune.views.frame import COLUMNS, attempts_frame
from autotune.views.markdown_report import report
from autotune.views.page import page
from autotune.views.recompute import recomputed_verdict
from autotune.worker.protocol import Knobs, Outcome
from launchers.replay import Answer, Behaviour, Launch
from launchers.replay.behaviours import running_at
from storage import AttemptState
from tests.control.replayed import Replayed
from tests.support.behaviours import where

OWN: dict[str, Any] = {
    "workload": {"script": "pretrain.py", "args": ["--tp", "2", "--recompute=none"], "samples": 8},
    "resources": {"workers": 8},
    "search_space": {},
    "baseline": {},
    "objective": {"global_batch_size": "fixed"},
    "knobs": {
        "tensor_parallel": {"values": [1, 2, 4, 8], "flag": "--tp"},
        "pipeline_parallel": {"values": [1, 2, 4], "flag": "--pp", "default": 2},
        "recompute": {"values": ["none", "full"], "flag": "--recompute"},
        "overlap": {"values": [False, True], "flag": "--overlap", "numerics": False},
    },
    "constraints": [
        "tensor_parallel * pipeline_parallel <= world_size",
        "recompute == 'none' or pipeline_parallel > 1",
        "not overlap or tensor_parallel > 1",
    ],
    "budget": {"trials": 40, "min_improvement": 0},
}


FEW = {
    **OWN,
    "knobs": {name: knob for name, knob in OWN["knobs"].items() if name != "recompute"},
    "constraints": [rule for rule in OWN["constraints"] if "recompute" not in rule],
}


def speed(knobs: Knobs) -> float:
    """Samples per second: eight-fold tensor parallelism is best, which leaves no pipeline."""
    return float(
        100 * knobs["tensor_parallel"] / (1 + 0.3 * knobs["pipeline_parallel"])
        + 20 * knobs["overlap"]
        - 10 * (knobs.get("recompute") == "full")
    )


def allowed(knobs: Knobs) -> bool:
    several = knobs["tensor_parallel"] * knobs["pipeline_parallel"] <= 8
    recomputed = knobs.get("recompute", "none") == "none" or knobs["pipeline_parallel"] > 1
    return bool(several and recomputed and (not knobs["overlap"] or knobs["tensor_parallel"] > 1))


_BASELINE = {"tensor_parallel": 2, "pipeline_parallel": 2}


def wandering(knobs: Knobs) -> Behaviour:
    """The loss leaves the reference wherever a knob has such a value."""
    plain = running_at(lambda knobs: speed({**_BASELINE, **knobs}))

    def answer(launch: Launch) -> Answer:
        off = all(launch.knobs[name] == value for name, value in knobs.items())
        return Answer(rate=plain(launch).rate, loss=2.0 if off else 1.0)

    return answer


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["model", "grid"])
def test_all_that_is_allowed_is_tried_and_nothing_else(played: Replayed, sampler: str) -> None:
    few: dict[str, Any] = FEW["knobs"]
    verdict = played.on(running_at(speed), workers=8).run(**FEW, sampler=sampler)
    launched = [attempt.knobs for attempt in played.attempts()]
    assert all(map(allowed, launched))
    assert launched[0]["tensor_parallel"] == launched[0]["pipeline_parallel"] == 2
    tried = {tuple(attempt.knobs[name] for name in few) for attempt in played.attempts("search")}
    everything = itertools.product(*(knob["values"] for knob in few.values()))
    assert tried == {one for one in everything if allowed(dict(zip(few, one, strict=True)))}
    found = {name: verdict["knobs"][name] for name in few}
    assert found == {"tensor_parallel": 8, "pipeline_parallel": 1, "overlap": True}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_other_samplers_know_what_is_allowed(played: Replayed, sampler: str) -> None:
    budget = {"trials": 9, "min_improvement": 0}
    played.on(running_at(speed), workers=8).run(**{**OWN, "budget": budget}, sampler=sampler)
    launched = [attempt.knobs for attempt in played.attempts()]
    assert all(map(allowed, launched))
    assert len({tuple(knobs[name] for name in OWN["knobs"]) for knobs in launched}) == 9


@pytest.mark.long
def test_the_winner_goes_where_people_read_and_tools_load(played: Replayed) -> None:
    played.on(running_at(speed), workers=8).run(
        **FEW, sampler="grid", measurement={"ablation_rounds": 2}
    )
    best = load(played.folder / "best.yaml")
    assert best["tensor_parallel"] == 8
    command = ["torchrun", "pretrain.py", "--tp", "2", "--recompute=none"]
    job = script_job(best, command, {})
    assert job.command == (
        *("torchrun", "pretrain.py", "--tp", "8", "--recompute=none"),
        *("--overlap", "--pp", "1"),
    )
    assert sorted(argv(best).text.split()) == ["--overlap", "--pp", "--tp", "1", "8"]
    assert not argv(best).unsaid
    text = report(played.repository, "played", Verdict.from_dict(played.verdict))
    assert "| tensor_parallel (with pipeline_parallel" in text or "| tensor_parallel |" in text
    assert "| pipeline_parallel (with tensor_parallel) | 2 | 1 |" in text, "8 x 2 is too many"
    assert "| overlap | false | true |" in text
    frame = attempts_frame(played.repository, "played")
    assert {1, 2, 4, 8} == set(frame["tensor_parallel"])
    params = played.trials()[0].params
    assert params.keys() == {"tensor_parallel", "pipeline_parallel", "overlap"}
    assert recomputed_verdict(played.repository, "played").knobs == played.verdict["knobs"]


def test_knob_leaves_the_column_of_its_name_as_measured(played: Replayed) -> None:
    knob = {"values": [1, 2], "flag": "--rate", "default": 1}
    own = {**OWN, "knobs": {"rate": knob}, "constraints": [], "budget": {"trials": 2}}
    spec = StudySpec.model_validate({"name": played.name, **own})
    submit(played.repository, spec, played.folder)
    played.on(running_at(lambda knobs: 100.0 * knobs["rate"]), workers=8).serve()
    frame = attempts_frame(played.repository, played.name)
    assert tuple(frame.columns) == (*COLUMNS, *frame.columns[len(COLUMNS) :])
    assert frame.columns.is_unique
    assert set(frame["knob.rate"]) == {1, 2}
    assert frame["rate"].min() > 2


@pytest.mark.long
def test_the_loss_of_what_may_change_it_is_checked(played: Replayed) -> None:
    verdict = played.on(wandering({"tensor_parallel": 8}), workers=8).run(**FEW, sampler="grid")
    assert verdict["refused"][0]["knobs"]["tensor_parallel"] == 8
    assert verdict["knobs"]["tensor_parallel"] == 4
    assert AttemptState.REFUSED in played.states("numerics")


def test_what_cannot_change_it_is_not_checked(played: Replayed) -> None:
    only = {"overlap": OWN["knobs"]["overlap"]}
    verdict = played.on(wandering({"overlap": True}), workers=8).run(
        **{**OWN, "knobs": only, "constraints": []},
    )
    assert verdict["knobs"]["overlap"] is True
    assert not played.attempts("numerics")


def test_global_batch_of_a_script_that_has_its_own_is_not_told(played: Replayed) -> None:
    """The micro-batch is neither a setting of it nor given, so that it may be any."""
    only = {"overlap": OWN["knobs"]["overlap"]}
    played.on(running_at(lambda knobs: speed({**_BASELINE, **knobs})), workers=8)
    played.run(**{**OWN, "knobs": only, "constraints": []})
    figures = figures_of(played.repository, played.study())
    assert figures.answer.better
    assert (figures.job.batch_before, figures.job.batch_after) == (None, None)
    known = dataclasses.replace(figures.job, batch_before=64, batch_after=64)
    other = dataclasses.replace(figures, job=known)
    for text in (final_block, page):
        assert "global batch" not in text(figures)
        assert "global batch" in text(other)
    assert comparison(figures, figures).settings == ()
    [told] = comparison(other, figures).settings
    assert (told.name, told.before, told.after) == ("global batch", "64", "")


def test_it_is_said_what_is_left(played: Replayed) -> None:
    played.submit(**{**OWN, "budget": {"trials": 2}})
    path = played.folder / "study.yaml"
    study = yaml.safe_load(path.read_text())
    assert study["constraints"] == OWN["constraints"]
    played.on(running_at(speed), workers=8).serve()
    assert "configurations remain" in played.said()


def test_a_baseline_that_the_machine_does_not_allow_is_told(
    played: Replayed, tmp_path: Path
) -> None:
    """How many ranks there are, only the machine said."""
    played.on(running_at(speed), workers=2).submit(**{**OWN, "resources": {"workers": "auto"}})
    played.serve()
    study = played.study()
    assert "the baseline cannot run here: the constraint `tensor_parallel * pipeline" in study.error
    assert not played.attempts()


@pytest.mark.long
def test_what_runs_out_of_memory_tells_nothing_of_other_values(played: Replayed) -> None:
    failing = where(
        running_at(speed),
        lambda launch: launch.knobs["recompute"] == "none" and launch.knobs["tensor_parallel"] == 4,
        outcome=Outcome.OOM,
        cause="planted",
    )
    played.on(failing, workers=8).run(**OWN, sampler="grid")
    tried = {(a.knobs["tensor_parallel"], a.knobs["recompute"]) for a in played.attempts("search")}
    assert {(4, "none"), (4, "full"), (8, "none")} <= tried


def test_constraints_on_what_follows_do_not_rule_the_probes_out(played: Replayed) -> None:
    """Of a global batch that may only grow, a probe with little accumulation has too little."""
    changes = {
        "workload": "gpt",
        "resources": {"workers": 4, "memory_per_worker": "1GiB"},
        "baseline": {"micro_batch": 8, "accumulation_steps": 4},
        "search_space": {"micro_batch": ["max"]},
        "objective": {"global_batch_size": "free"},
        "constraints": ["global_batch_size >= 128"],
        "budget": {"trials": 3},
    }
    played.on(running_at(lambda _: 100.0), workers=4).run(**changes)
    fits = [attempt.knobs["micro_batch"] for attempt in played.attempts("fit")]
    assert fits[:3] == [8, 16, 32]


def test_the_largest_batch_is_one_that_is_allowed(played: Replayed) -> None:
    workload = {**OWN["workload"], "flags": {"micro_batch": "--batch"}}
    changes = {
        "workload": {**workload, "args": [*workload["args"], "--batch", "2"]},
        "resources": {"workers": 8, "memory_per_worker": "1GiB"},
        "search_space": {"micro_batch": ["max"]},
        "objective": {"global_batch_size": "free"},
        "constraints": ["micro_batch * tensor_parallel <= 16"],
        "budget": {"trials": 3},
    }
    played.on(running_at(speed), workers=8).run(**{**FEW, **changes})
    fits = [attempt.knobs["micro_batch"] for attempt in played.attempts("fit")]
    assert fits == [2, 4, 8]
    assert "micro_batch: 8 fits, more was not tried" in played.said()
