"""`autotune export STUDY --format`: what a study recommends, or has in hand, without a file between."""

import json

import yaml

import autotune
from tests.control.replayed import PLAIN, Replayed
from tests.steering import ask


def test_a_study_is_exported_as_its_best_yaml_is(played: Replayed) -> None:
    played.on(PLAIN).run(budget={"trials": 4, "least_gain": 0})

    def exported(study: str, form: str) -> str:
        given = ask("export", study, "--format", form, "--storage", played.url, cwd=played.folder)
        assert given.returncode == 0, given.stderr
        return given.stdout

    best = autotune.load(played.folder / "best.yaml")
    content = json.loads(exported(played.name, "json"))
    assert content["knobs"] == best.knobs
    for form in ("json", "hf-trainer", "torchtitan"):
        assert exported(played.name, form) == exported("best.yaml", form)
    assert yaml.safe_load(exported("best.yaml", "yaml")) == content
    assert json.loads(exported("study.yaml", "json")) == content


def test_a_study_that_recommends_nothing_yet_has_nothing_to_say(played: Replayed) -> None:
    played.submit()
    arguments = ("export", played.name, "--format", "hydra", "--storage", played.url)
    given = ask(*arguments, cwd=played.folder)
    assert given.returncode == 2
    assert given.stdout == ""
    assert "recommends nothing" in given.stderr
