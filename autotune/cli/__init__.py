"""Commands. Each one reads its arguments, calls one function, and prints the result."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from autotune import __version__
from autotune.cli import examine, queueing, results, run_job, running, storage, studies
from autotune.errors import AutotuneError, BadInput
from autotune.views.terminal import show as print  # output may hold control characters of trials

_OF_SOME_COMMANDS = {
    "pandas": "pandas",
    "optuna_dashboard": "optuna-dashboard",
    "pyarrow": "pyarrow",
    "mlflow": "mlflow-skinny",
    "wandb": "wandb",
}
"""Module -> package that a command needs, and studies do not."""
_WITH_A_COMMAND = {"ignore_unknown_options": True}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Finds, with measured proof, the training configuration with the highest throughput.",
)
_TUNE, _LOOK, _USE = "Tune", "Look at a study", "Use the result"
_CHECK, _DATA, _UPKEEP = "Check and simulate", "Reference", "Upkeep"
_COMMANDS: tuple[tuple[str, str, Callable[..., None], bool], ...] = (
    (_TUNE, "init", running.init, True),
    (_TUNE, "start", running.start, True),
    (_TUNE, "submit", queueing.submit, True),
    (_TUNE, "resume", running.resume, False),
    (_TUNE, "stop", studies.stop, False),
    (_LOOK, "watch", running.watch, False),
    (_LOOK, "status", studies.status, False),
    (_LOOK, "list", studies.list_, False),
    (_LOOK, "queue", queueing.queue, False),
    (_LOOK, "history", studies.history, False),
    (_LOOK, "report", results.report, False),
    (_LOOK, "compare", results.compare, False),
    (_LOOK, "dashboard", results.dashboard, False),
    (_LOOK, "logs", studies.logs, False),
    (_USE, "run", run_job.run_job, True),
    (_USE, "export", results.export, False),
    (_CHECK, "doctor", examine.doctor, False),
    (_CHECK, "diagnose", examine.diagnose, False),
    (_CHECK, "record", examine.record, False),
    (_CHECK, "simulate", examine.simulate, False),
    (_DATA, "knobs", examine.knobs, False),
    (_DATA, "presets", examine.presets, False),
    (_DATA, "schema", examine.schema, False),
    (_UPKEEP, "move", queueing.move, False),
    (_UPKEEP, "hold", queueing.hold, False),
    (_UPKEEP, "release", queueing.release, False),
    (_UPKEEP, "quota", queueing.quota, False),
    (_UPKEEP, "weight", queueing.weight, False),
    (_UPKEEP, "delete", studies.delete, False),
    (_UPKEEP, "clean", studies.clean, False),
    (_UPKEEP, "daemon", running.daemon, False),
)
"""Group in `autotune --help`, name, function, and whether a command of the user's may follow."""
for _group, _name, _function, _takes_command in _COMMANDS:
    _settings = _WITH_A_COMMAND if _takes_command else {}
    app.command(_name, rich_help_panel=_group, context_settings=_settings)(_function)
app.add_typer(storage.app, name="storage", rich_help_panel=_UPKEEP)


def run() -> None:
    """Run the command line; autotune's own errors are shown without a traceback."""
    try:
        app()
    except AutotuneError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name not in _OF_SOME_COMMANDS:
            raise
        package = _OF_SOME_COMMANDS[error.name]
        print(
            f"error: this needs {package}, which is not installed: pip install {package}",
            file=sys.stderr,
        )
        sys.exit(BadInput.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
