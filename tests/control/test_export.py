"""`autotune export STUDY --format`: what a study recommends, or has in hand, without a file between."""

import json

import yaml

import autotune
from launchers.replay import Answer, Launch
from tests.control.replayed import PLAIN, Replayed
from tests.support.steering import ask

OF_ANOTHER = {
    "format": 3,
    "knobs": {"micro_batch": 4},
    "world_size": 2,
    "throughput": {"value": 1.0},
    "provenance": {"study": "another"},
}


def test_a_study_is_exported_as_its_best_yaml_is(played: Replayed) -> None:
    played.on(PLAIN).run(budget={"trials": 4, "min_improvement": 0})

    def exported(study: str, form: str) -> str:
        arguments = ("export", study, "--format", form, "--output", "-", "--storage", played.url)
        given = ask(*arguments, cwd=played.folder)
        assert given.returncode == 0, given.stderr
        return given.stdout

    best = autotune.load(played.folder / "best.yaml")
    content = json.loads(exported(played.name, "json"))
    assert content["knobs"] == best.knobs
    for form in ("json", "hf-trainer", "torchtitan"):
        assert exported(played.name, form) == exported("best.yaml", form)
    text = exported("best.yaml", "yaml")
    assert text == exported(played.name, "yaml")
    told = yaml.safe_load(text)
    assert {**told.pop("defaults"), **told.pop("knobs")} == content.pop("knobs")
    assert told == content
    assert exported("study.yaml", "json") == exported(played.name, "json")


def test_a_study_that_recommends_nothing_yet_has_nothing_to_say(played: Replayed) -> None:
    played.submit()
    arguments = ("export", played.name, "--format", "hydra", "--storage", played.url)
    given = ask(*arguments, cwd=played.folder)
    assert given.returncode == 2
    assert given.stdout == ""
    assert "recommends nothing" in given.stderr
    (played.folder / "best.yaml").write_text(yaml.safe_dump(OF_ANOTHER))
    given = ask("export", played.name, "--storage", played.url, cwd=played.folder)
    assert given.returncode == 2
    assert "recommends nothing" in given.stderr


def test_what_another_study_has_found_is_replaced_by_no_kept_baseline(played: Replayed) -> None:
    best = played.folder / "best.yaml"
    best.write_text(yaml.safe_dump(OF_ANOTHER))
    before = best.read_text()
    fastest = {"micro_batch": 16, "accumulation_steps": 2}
    played.on(PLAIN).run(budget={"trials": 4, "min_improvement": 0}, baseline=fastest)
    given = ask("export", played.name, "--storage", played.url, cwd=played.folder)
    assert given.returncode == 2
    assert "belongs to another study, and the answer of played recommends no change" in given.stderr
    assert best.read_text() == before
    by_name = ("--output", "best.yaml", "--storage", played.url)
    assert ask("export", played.name, *by_name, cwd=played.folder).returncode == 0
    assert autotune.load(best).provenance["study"] == played.name


def test_a_file_that_is_not_ours_is_left_alone(played: Replayed) -> None:
    """It was not there yet when the study was started."""
    mine = played.folder / "best.yaml"

    def writing(launch: Launch) -> Answer:
        mine.write_text("layers: 12\n")
        return PLAIN(launch)

    played.on(writing).run(budget={"trials": 4, "min_improvement": 0})
    assert played.study().state == "DONE"
    assert mine.read_text() == "layers: 12\n"
    assert "best.yaml is not written (autotune has not written what is there" in played.said()
    given = ask("export", played.name, "--storage", played.url, cwd=played.folder)
    assert given.returncode == 2
    assert "best.yaml exists and is no best.yaml of autotune" in given.stderr
    assert mine.read_text() == "layers: 12\n"
    elsewhere = ("--output", "other.yaml", "--storage", played.url)
    assert ask("export", played.name, *elsewhere, cwd=played.folder).returncode == 0
    assert autotune.load(played.folder / "other.yaml").knobs
