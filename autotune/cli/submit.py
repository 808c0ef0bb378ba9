"""Command that hands a study to a batch system."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from autotune.errors import BadInput
from autotune.views.terminal import show as print

_JOB = "job"


def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="STUDY.yaml [-- OPTIONS]", help="The study, and options of sbatch."),
    ],
    show: Annotated[
        bool, typer.Option("--print", help="Print the script; submit nothing.")
    ] = False,
    kubernetes: Annotated[
        str | None, typer.Option(help="Print a manifest instead: job.", metavar="KIND")
    ] = None,
) -> None:
    """Submit a study to Slurm, as a job that is requeued until it is done."""
    from autotune.config import load
    from autotune.service.batch import job_manifest, sbatch_script

    study, options = Path(words[0]), words[1:]
    spec, folder = load(study), Path.cwd()
    if kubernetes is not None:
        if kubernetes != _JOB:
            raise BadInput(f"--kubernetes takes {_JOB}, got {kubernetes}")
        print(job_manifest(spec, study, folder))
        return
    script = sbatch_script(spec, study, folder, options)
    if show:
        print(script)
        return
    if shutil.which("sbatch") is None:
        raise BadInput("there is no sbatch here; --print shows the script")
    done = subprocess.run(
        ["sbatch", *options], input=script, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout.strip())
    sys.exit(done.returncode)
