"""A study as runs of an experiment tracker: MLflow, and Weights & Biases without a connection.

The figures are those of autotune.views.study_figures, under names that are the same in both.
"""

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.analysis.saving import EnergySaving
from autotune.analysis.wording import Terms
from autotune.errors import BadInput
from autotune.measurement.estimate import Ratio
from autotune.views.page import page
from autotune.views.study_figures import StudyFigures
from autotune.views.trial_figures import TrialFigures
from search_spaces.knob import written

PROJECT = "autotune"
"""Experiment of MLflow, and project of Weights & Biases."""
PAGE = "page.html"
_TRIAL_COLUMNS = (
    "trial",
    "state",
    "interleaved",
    "ratio",
    "ratio_low",
    "ratio_high",
    "rate",
    "peak_bytes",
)


def parameters(figures: StudyFigures) -> dict[str, str]:
    """Return the knobs of the job: the recommended value of each, and yours as 'yours.NAME'."""
    own = figures.own_knobs
    before = {f"yours.{one.knob}": written(one.before) for one in own}
    return {one.knob: written(one.after) for one in own} | before


def metrics(figures: StudyFigures) -> dict[str, float]:
    """Return the figures of the answer that are known, each with the bounds of its interval."""
    found = {"rounds": float(figures.answer.rounds), "device_hours": figures.cost.device_hours}
    if figures.answer.gain is not None:
        terms = Terms.of(figures.unit)
        name = "energy_ratio" if terms.of_energy else "speedup"
        found |= _bounded(name, terms.said(figures.answer.gain))
    if isinstance(figures.saving, EnergySaving):
        found |= _bounded("saved_kilowatt_hours", figures.saving.kilowatt_hours)
    elif figures.saving is not None:
        found |= _bounded("saved_hours", figures.saving.hours)
    return found


def trial_metrics(one: TrialFigures) -> dict[str, float]:
    """Return the figures of a trial that are known; its ratio is over yours, seen once."""
    found = _bounded("ratio", one.ratio) if one.ratio is not None else {}
    if one.rate is not None:
        found["rate"] = one.rate
    return found | ({"peak_bytes": float(one.peak_bytes)} if one.peak_bytes else {})


def _bounded(name: str, ratio: Ratio) -> dict[str, float]:
    several = {name: ratio.value, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    return {key: value for key, value in several.items() if math.isfinite(value)}


def _tags(figures: StudyFigures) -> dict[str, str]:
    return {
        "study": figures.study,
        "state": figures.state,
        "unit": figures.unit,
        "verdict": figures.answer.text,
        "measured_on": figures.verdict.measured_on,
    }


def to_mlflow(figures: StudyFigures) -> str:
    """Log a study as a run of MLflow with a nested run per trial; return where it is.

    MLflow's own settings say where that is (MLFLOW_TRACKING_URI).

    Raises:
        BadInput: its server cannot be reached, or refuses the run.
    """
    mlflow: Any = importlib.import_module("mlflow")
    try:
        run = _logged(mlflow, figures)
    except mlflow.MlflowException as error:
        raise BadInput(f"MLflow at {mlflow.get_tracking_uri()}: {error}") from None
    return f"MLflow: run {run} at {mlflow.get_tracking_uri()}"


def _logged(mlflow: Any, figures: StudyFigures) -> str:
    """Log a study by this module of MLflow; return the identity of its run."""
    mlflow.set_experiment(PROJECT)
    with mlflow.start_run(run_name=figures.study) as run:
        mlflow.set_tags(_tags(figures))
        mlflow.log_params(parameters(figures))
        mlflow.log_metrics(metrics(figures))
        mlflow.log_text(page(figures), PAGE)
        for one in figures.trials:
            with mlflow.start_run(run_name=f"trial {one.trial}", nested=True):
                mlflow.set_tags({"trial": str(one.trial), "state": one.state, "cause": one.cause})
                mlflow.log_params({knob: written(value) for knob, value in one.changes.items()})
                mlflow.log_metrics(trial_metrics(one))
    return str(run.info.run_id)


def to_wandb(figures: StudyFigures) -> str:
    """Write a study as an offline run of Weights & Biases with a table of its trials; return where.

    Nothing is sent: `wandb sync` does that.
    """
    wandb: Any = importlib.import_module("wandb")
    run = wandb.init(
        project=PROJECT,
        name=figures.study,
        mode="offline",
        config={**parameters(figures), **_tags(figures)},
        settings=wandb.Settings(console="off", silent=True),
    )
    rows = [list(_row(one)) for one in figures.trials]
    columns = [*_TRIAL_COLUMNS, "changes"]
    run.log({"trials": wandb.Table(columns=columns, data=rows), "page": wandb.Html(page(figures))})
    run.summary.update(metrics(figures))
    folder = Path(run.dir).parent
    run.finish()
    wandb.teardown()  # its service writes the last records as it ends
    return f"Weights & Biases, offline: wandb sync {folder}"


def _row(one: TrialFigures) -> Iterator[Any]:
    known: Mapping[str, Any] = {
        **trial_metrics(one),
        "trial": one.trial,
        "state": one.state,
        "interleaved": one.interleaved,
    }
    yield from (known.get(name) for name in _TRIAL_COLUMNS)
    yield ", ".join(f"{knob}={written(value)}" for knob, value in one.changes.items())


TRACKERS: Mapping[str, Callable[[StudyFigures], str]] = {"mlflow": to_mlflow, "wandb": to_wandb}
"""Writer of a study's runs, by the name of the tracker."""
