"""A study as runs of experiment trackers, with the real libraries and without a network."""

import json

import pytest

from autotune.views.trackers import metrics, parameters, trial_metrics
from search_spaces.knob import written
from tests.control.replayed import Replayed
from tests.support.states import tuned
from tests.support.steering import ask
from tests.unit.database.opening import closed_port


@pytest.mark.long
def test_run_of_mlflow_holds_the_figures_of_the_study(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    figures = tuned(played)
    tracking = f"sqlite:///{played.folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    words = ("export", played.name, "--tracker", "mlflow", "--storage", played.url)
    assert ask(*words, cwd=played.folder, check=True).stdout.startswith("MLflow: run ")
    client = mlflow.MlflowClient(tracking_uri=tracking)
    [experiment] = client.search_experiments(filter_string="name = 'autotune'")
    runs = client.search_runs([experiment.experiment_id], max_results=100)
    [whole] = [run for run in runs if "verdict" in run.data.tags]
    assert whole.data.metrics == pytest.approx(metrics(figures))
    assert whole.data.params == parameters(figures)
    assert whole.data.tags["unit"] == figures.unit
    nested = {int(run.data.tags["trial"]): run.data for run in runs if run is not whole}
    assert nested.keys() == {one.trial for one in figures.trials}
    for one in figures.trials:
        assert nested[one.trial].metrics == pytest.approx(trial_metrics(one))
        assert nested[one.trial].params == {k: written(v) for k, v in one.changes.items()}


@pytest.mark.long
def test_offline_run_of_wandb_holds_the_figures_of_the_study(played: Replayed) -> None:
    pytest.importorskip("wandb")
    figures = tuned(played)
    words = ("export", played.name, "--tracker", "wandb", "--storage", played.url)
    printed = ask(*words, cwd=played.folder, check=True).stdout
    assert "wandb sync " in printed
    [folder] = (played.folder / "wandb").glob("offline-run-*")
    [table] = (folder / "files" / "media" / "table").glob("*.json")
    rows = {row[0]: row for row in json.loads(table.read_text())["data"]}
    for one in figures.trials:
        assert one.ratio is not None
        assert rows[one.trial][3] == pytest.approx(one.ratio.value)
    [record] = folder.glob("*.wandb")
    stored = record.read_bytes()
    assert figures.answer.speedup is not None
    assert b"speedup" in stored
    assert repr(figures.answer.speedup.value).encode() in stored


@pytest.mark.long
def test_server_of_mlflow_that_cannot_be_reached_is_named(
    played: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    played.run(budget={"trials": 3})
    address = f"http://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    words = ("export", played.name, "--tracker", "mlflow", "--storage", played.url)
    refused = ask(*words, cwd=played.folder)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"MLflow at {address}: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_unknown_tracker_is_refused_with_those_that_are_known(played: Replayed) -> None:
    played.run(budget={"trials": 3})
    words = ("export", played.name, "--tracker", "excel", "--storage", played.url)
    refused = ask(*words, cwd=played.folder)
    assert refused.returncode == 2
    assert "mlflow or wandb" in refused.stderr
