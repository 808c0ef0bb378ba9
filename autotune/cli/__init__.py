"""Commands. Each one reads its arguments, calls one function, and prints the result."""

import os
import sys
from typing import Annotated

import typer

from autotune import __version__
from autotune.cli import (
    examine,
    queueing,
    reference,
    results,
    run_job,
    running,
    storage,
    studies,
    submit,
)
from autotune.errors import AutotuneError, BadInput
from autotune.views.terminal import show as print  # output may hold control characters of trials

_OF_SOME_COMMANDS = {"pandas": "pandas", "optuna_dashboard": "optuna-dashboard"}
"""Module -> package that a command needs, and studies do not."""
_WITH_A_COMMAND = {"ignore_unknown_options": True}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Finds, with measured proof, the training configuration with the highest throughput.",
)
# `autotune --help` lists them in this order.
app.command(context_settings=_WITH_A_COMMAND)(running.init)
app.command(context_settings=_WITH_A_COMMAND)(running.start)
app.command(context_settings=_WITH_A_COMMAND)(submit.submit)
app.command()(running.resume)
app.command()(studies.stop)
app.command()(studies.delete)
app.command()(studies.clean)
app.command()(running.watch)
app.command()(studies.status)
app.command("list")(studies.list_)
app.command()(queueing.queue)
app.command()(queueing.move)
app.command()(queueing.hold)
app.command()(queueing.release)
app.command()(studies.logs)
app.command()(results.export)
app.command("run", context_settings=_WITH_A_COMMAND)(run_job.run_job)
app.command()(results.report)
app.command()(results.dashboard)
app.command()(examine.doctor)
app.command()(examine.diagnose)
app.command()(examine.record)
app.command()(examine.simulate)
app.command()(reference.knobs)
app.command()(reference.presets)
app.command()(reference.schema)
app.command()(running.daemon)
app.add_typer(storage.app, name="storage")


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
