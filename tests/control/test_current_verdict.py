"""What a study has in hand at any moment: while it runs, when it is stopped, when it has failed."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna
import pytest
from optuna.trial import Trial
from optuna_dashboard import get_note

import autotune
from autotune.analysis.policy import PROOF
from autotune.analysis.verdict import Verdict
from autotune.config import StudySpec
from autotune.export import publish
from autotune.service.daemon import Daemon
from autotune.service.follow import conclusion
from autotune.service.queues import this_queue
from autotune.study import dashboard_sync
from autotune.views.dashboard_notes import study_note
from autotune.views.figure_text import range_text
from autotune.views.recompute import current_verdict, recomputed_verdict
from autotune.views.verdict_text import text_of
from autotune.worker.protocol import Outcome
from launchers.replay import Behaviour, Launch
from launchers.replay.behaviours import noisy
from storage import Repository, StoredAttempt
from tests.control.replayed import PLAIN, Replayed
from tests.support.behaviours import where
from tests.support.records import Records
from tests.support.steering import ask

SPACE = {"micro_batch": [1, 2, 4, 8, 16], "precision": ["fp32", "bf16"]}
WHOLE = {
    "search_space": SPACE,
    "budget": {"trials": 8, "min_improvement": 0},
    "measurement": {"finalists": 2, "rounds": 4, "ablation_rounds": 1, "baseline_runs": 2},
}


def in_bf16(launch: Launch) -> bool:
    return launch.knobs["precision"] == "bf16"


NOISY = noisy(where(PLAIN, in_bf16, rate=95.0), run=0.05, block=0.01)


@dataclass
class Interrupted:
    """A behaviour that is looked at, or stopped, at some of its launches."""

    behaviour: Behaviour
    played: Replayed
    stops_at: int | None = None
    look: Any = None
    launches: int = 0
    daemon: Daemon | None = field(default=None, init=False)

    def __call__(self, launch: Launch) -> Any:
        self.launches += 1
        if self.look:
            self.look()
        if self.launches == self.stops_at:
            assert self.daemon
            self.daemon.stop()
        return self.behaviour(launch)

    def serve(self) -> None:
        repository = Repository(self.played.repository.database)
        self.played.on(self)
        self.daemon = Daemon(repository, this_queue(), self.played.machine.open)
        self.daemon.serve(idle_seconds=0.0)


def runs_of(attempts: list[StoredAttempt], trial: int, purpose: str) -> list[float]:
    return [
        a.result.throughput or 0.0
        for a in attempts
        if a.trial == trial and a.purpose == purpose and a.result.state == "COMPLETE"
    ]


def mean(rates: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, rates)) / len(rates))


def told_from(verdict: Verdict, rates: Sequence[float]) -> list[float]:
    """Those of the rounds after the choice, if there are enough; else those before."""
    if verdict.rounds < 3:
        return list(rates)
    return list(rates[-verdict.rounds :] if verdict.chosen_in else rates[: verdict.rounds])


def assert_agrees(verdict: Verdict, played: Records) -> None:
    """The answer is what the records say, computed from them once more."""
    attempts = played.attempts()
    searched = [a for a in attempts if a.purpose == "search" and a.result.state == "COMPLETE"]
    if not searched:
        assert verdict.trial is None
        return
    chosen = next(a for a in searched if a.trial == verdict.trial)
    assert verdict.knobs == chosen.knobs
    purpose = "search" if verdict.rounds < 3 else "confirm"
    rates = {f.trial: runs_of(attempts, f.trial, purpose) for f in verdict.finalists}
    for finalist in verdict.finalists:
        # A round that is under way counts once it is complete, those after the choice once they are
        # enough.
        assert list(finalist.rates) == rates[finalist.trial][: len(finalist.rates)]
        pending = PROOF.fewest_rounds if purpose == "confirm" else 0
        assert len(finalist.rates) >= len(rates[finalist.trial]) - pending
    shown = {f.trial: mean(told_from(verdict, f.rates)) for f in verdict.finalists}
    assert verdict.throughput is not None
    assert verdict.throughput.value == pytest.approx(shown[chosen.trial])
    assert verdict.speedup is not None
    # Before the rounds tell, a trial is compared with all runs of the baseline alone.
    alone = [] if purpose == "confirm" else runs_of(attempts, 0, "calibrate")
    baseline = mean([shown[0], *alone]) if chosen.trial else shown[0]
    assert verdict.speedup.value == pytest.approx(shown[chosen.trial] / baseline)
    assert chosen.trial == 0 or verdict.speedup.low > 1
    passed = {a.trial for a in attempts if a.purpose == "numerics" and a.result.state == "COMPLETE"}
    assert chosen.knobs["precision"] != "bf16" or chosen.trial in passed


@pytest.fixture
def stopped(played: Replayed) -> Iterator[Interrupted]:
    yield Interrupted(NOISY, played)


@pytest.mark.long
def test_at_each_launch_what_is_in_hand_agrees_with_the_records(
    played: Replayed, stopped: Interrupted
) -> None:
    seen: list[Verdict] = []

    def look() -> None:
        seen.append(current_verdict(played.repository, played.study()))
        assert_agrees(seen[-1], played)

    stopped.look = look
    played.submit(**WHOLE)
    stopped.serve()
    assert len(seen) > 15
    assert all(verdict.provisional for verdict in seen)
    assert (seen[0].kind, seen[0].outcomes) == ("no_result", None)
    assert {verdict.rounds for verdict in seen} >= {0, 1, 2, 3}
    assert any(verdict.trial != 0 and verdict.rounds == 0 for verdict in seen)
    final = current_verdict(played.repository, played.study())
    assert not final.provisional
    assert final.as_dict() == played.verdict


@pytest.mark.slow
def test_stopped_at_ten_random_moments(played: Replayed, stopped: Interrupted) -> None:
    played.submit(**WHOLE)
    moments = random.Random(3)
    best = played.folder / "best.yaml"
    for _ in range(10):
        stopped.stops_at, stopped.launches = moments.randint(1, 3), 0
        stopped.serve()
        assert played.study().state == "STOPPED"
        told = ask("report", played.name, "--json", "--storage", played.url, cwd=played.folder)
        assert told.returncode == 0, told.stderr
        verdict = Verdict.from_dict(json.loads(told.stdout)["verdict"])
        assert verdict.provisional
        assert_agrees(verdict, played)
        read = ask("report", played.name, "--storage", played.url, cwd=played.folder)
        assert text_of(verdict) in read.stdout
        assert "The study is STOPPED." in read.stdout
        assert recomputed_verdict(played.repository, played.name).trial == verdict.trial
        given = ask("export", played.name, "--storage", played.url, cwd=played.folder)
        assert_exported(given.stderr, verdict, played)
        played.repository.studies.enqueue(played.name)
    stopped.stops_at = None
    stopped.serve()
    assert not autotune.load(best).provisional
    played.assert_complete(trials=8)


def assert_exported(said: str, verdict: Verdict, played: Replayed) -> None:
    path = played.folder / "best.yaml"
    if verdict.trial is None:
        assert "recommends nothing: " in said
        assert not path.exists()
        return
    assert said.strip() == text_of(verdict)
    with pytest.warns(UserWarning, match=f"study {played.name} had not come to its end"):
        found = autotune.load(path)
    assert found.provisional
    assert found.knobs == verdict.knobs
    assert found.provenance["trial"] == verdict.trial
    assert verdict.throughput is not None
    assert found.throughput["value"] == pytest.approx(verdict.throughput.value, rel=1e-5)


def test_after_a_failure(played: Replayed) -> None:
    class Broken(RuntimeError):
        pass

    def breaking(launch: Launch) -> Any:
        if "-confirm2" in launch.request.trial:
            raise Broken("the launcher is gone")
        return PLAIN(launch)

    played.submit(budget={"trials": 8})
    played.on(breaking).serve()
    assert played.study().state == "FAILED"
    verdict = current_verdict(played.repository, played.study())
    assert verdict.provisional
    assert verdict.trial not in (None, 0)
    read = ask("report", played.name, "--storage", played.url, cwd=played.folder).stdout
    said = conclusion(played.repository, played.study(), played.folder / "best.yaml")
    assert said.startswith("\nFailed: internal error: ")
    unwrapped = " ".join(said.split())
    assert f"{text_of(verdict)} `autotune export played` writes that." in unwrapped
    assert "The study is FAILED: internal error: Broken('the launcher is gone')" in read
    assert text_of(verdict) in read


def test_what_was_not_checked_against_fp32_is_named_and_not_given(
    played: Replayed, stopped: Interrupted
) -> None:
    stopped.behaviour = where(PLAIN, in_bf16, rate=200.0)
    stopped.stops_at = 5
    played.submit(
        **{**WHOLE, "search_space": {"micro_batch": [2, 4], "precision": ["fp32", "bf16"]}}
    )
    stopped.serve()
    verdict = current_verdict(played.repository, played.study())
    assert verdict.knobs is not None
    assert verdict.knobs["precision"] == "fp32"
    assert verdict.unverified is not None
    assert verdict.unverified.touched == ("precision",)
    assert verdict.unverified.knobs["precision"] == "bf16"


def test_what_failed_when_it_was_run_again_is_not_given(
    played: Replayed, stopped: Interrupted
) -> None:
    def again(launch: Launch) -> bool:
        return launch.knobs["micro_batch"] == 16 and "-confirm" in launch.request.trial

    stopped.behaviour = where(PLAIN, again, outcome=Outcome.CRASH, cause="rank 0: killed")
    played.submit(budget={"trials": 10}, measurement={"finalists": 1})
    given: set[int | None] = set()

    def look() -> None:
        answer = current_verdict(played.repository, played.study()).trial
        crashed = {a.trial for a in played.attempts("confirm") if a.result.state == "CRASH"}
        assert answer not in crashed
        given.add(answer)

    stopped.look = look
    stopped.serve()
    assert given & {a.trial for a in played.attempts("confirm") if a.result.state == "CRASH"}


@pytest.mark.long
def test_an_end_while_it_is_exported_is_what_stays(
    played: Replayed, stopped: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study concludes between the look at its records and the writing of the file."""
    stopped.stops_at = 6
    played.submit(**WHOLE)
    stopped.serve()
    study = played.study()
    answer = current_verdict(played.repository, study)
    assert answer.provisional
    write = publish.write

    def write_late(*arguments: Any) -> None:
        monkeypatch.setattr(publish, "write", write)
        played.repository.studies.enqueue(played.name)
        stopped.stops_at = None
        stopped.serve()
        write(*arguments)

    monkeypatch.setattr(publish, "write", write_late)
    target = played.folder / "best.yaml"
    assert not publish.export(played.repository, study, answer, "", target)
    assert not autotune.load(target).provisional
    assert autotune.load(target).provenance["verdict"] == text_of(Verdict.from_dict(played.verdict))


@pytest.mark.long
def test_an_earlier_verdict_stands_when_the_study_goes_on(
    played: Replayed, stopped: Interrupted
) -> None:
    before = played.on(PLAIN).run(budget={"trials": 4, "min_improvement": 0})
    stopped.behaviour = PLAIN
    stopped.stops_at = 2
    played.submit(budget={"trials": 9, "min_improvement": 0})
    stopped.serve()
    assert played.study().state == "STOPPED"
    assert current_verdict(played.repository, played.study()).as_dict() == before
    read = ask("report", played.name, "--storage", played.url, cwd=played.folder).stdout
    assert "The verdict is from before it went on." in read
    assert ", before it went on" in ask("list", "--storage", played.url, cwd=played.folder).stdout
    given = ask("export", played.name, "--storage", played.url, cwd=played.folder)
    assert given.stderr == ""
    assert not autotune.load(played.folder / "best.yaml").provisional


@pytest.mark.long
@pytest.mark.usefixtures("shown_at_once")  # but for the one limit
@pytest.mark.parametrize(("limit", "value"), [("EVERY_SECONDS", 3600.0), ("LARGEST_SHARE", 1e-9)])
def test_the_dashboard_is_written_now_and_then_and_when_the_study_stops(
    limit: str,
    value: float,
    played: Replayed,
    stopped: Interrupted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dashboard_sync, limit, value)
    played.submit(**WHOLE)
    shown: list[set[str]] = []
    stopped.look = lambda: shown.append({*dashboards_study(played).user_attrs.values()})
    stopped.stops_at = 9
    stopped.serve()
    assert played.study().state == "STOPPED"
    assert [len({*map(frozenset, shown[2:])}), len(played.recorded("search")) > 2] == [1, True]
    study, now = dashboards_study(played), current_verdict(played.repository, played.study())
    assert study.user_attrs["verdict"] == text_of(now)
    assert study.user_attrs["recommended"].startswith(f"trial {now.trial}: ")


@pytest.mark.long
@pytest.mark.usefixtures("shown_at_once")
def test_the_dashboard_has_it_beside_the_best_trial(played: Replayed, stopped: Interrupted) -> None:
    played.submit(**WHOLE)
    shown: list[dict[str, str]] = []

    def look() -> None:
        if played.recorded("search"):
            shown.append(dashboards_study(played).user_attrs)

    stopped.look = look
    stopped.serve()
    assert all(attributes["throughput"].startswith("provisional: ") for attributes in shown)
    study, verdict = dashboards_study(played), Verdict.from_dict(played.verdict)
    assert study.metric_names == ["throughput over yours"]
    assert len(study.user_attrs) == 5, "as many as are shown without turning a page"
    assert study.user_attrs["verdict"] == text_of(verdict)
    assert study.user_attrs["recommended"].startswith(f"trial {verdict.trial}: ")
    ran = range_text(verdict.own_rates, "samples/s")
    assert study.user_attrs["throughput"] == f"confirmed: {ran}"
    assert study.user_attrs["speed-up"].startswith("confirmed: ")
    assert f"trial {study.best_trial.number}: seen once" in study.user_attrs["highest value"]
    assert get_note(study).startswith("## Verdict")
    for finalist in verdict.finalists:
        trial = Trial(study, study.trials[finalist.trial]._trial_id)
        assert f"measured again in {len(verdict.telling(finalist))} rounds" in get_note(trial)


def test_the_note_of_a_study_that_is_stopped_is_what_is_in_hand(
    played: Replayed, stopped: Interrupted
) -> None:
    stopped.stops_at = 9
    played.submit(**WHOLE)
    stopped.serve()
    answer = current_verdict(played.repository, played.study())
    own = StudySpec.model_validate(played.study().spec).job_knobs
    assert get_note(dashboards_study(played)) == study_note(answer, own)


def dashboards_study(played: Replayed) -> optuna.Study:
    storage = played.repository.database.optuna()
    return optuna.load_study(study_name=played.name, storage=storage)
