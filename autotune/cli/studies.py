"""Commands about existing studies: stop, delete, status and logs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.shared_options import (
    JsonOption,
    StorageOption,
    StudyArgument,
    export_path,
    located,
    open_storage,
    url_of,
)
from autotune.views.terminal import show as print  # output may hold control characters of trials


def stop(study: StudyArgument, storage: StorageOption = None) -> None:
    """Stop a study; its running trial is abandoned, all records stay."""
    url, name = located(study, storage)
    repository = open_storage(url, existing=True)
    if repository.studies.named(name).state.ended:
        print(f"{name} is not running ({repository.studies.named(name).state}).")
        return
    from autotune.views.overview import status_of

    repository.studies.request_stop(name)
    standing = status_of(repository, name)
    if repository.studies.named(name).state.ended:
        how = "is stopped"
    elif standing["running"]:
        how = "stops within seconds, or two minutes where a node or a process does not answer"
    else:
        how = "stops within seconds"
    print(f"{name} {how}; autotune resume {name} goes on.")


def delete(study: StudyArgument, storage: StorageOption = None) -> None:
    """Delete a study that has ended, with its records, trials and logs. best.yaml stays."""
    from autotune.service import cleaning

    url, name = located(study, storage)
    gone = cleaning.delete(open_storage(url, existing=True), name)
    print(f"{name} is deleted{''.join(f', with {folder}' for folder in gone)}.")


def clean(storage: StorageOption = None) -> None:
    """Remove files that are not needed any more; records stay.

    They are logs and compiled code of studies that have ended or are deleted, copies of settings
    files that no job uses, and files of trials that were killed.
    """
    from autotune.service import cleaning

    gone = cleaning.clean(open_storage(url_of(storage), existing=True), Path.cwd())
    print("\n".join(map(str, gone)) or "There is nothing to remove.")


def status(
    study: StudyArgument, storage: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Print the state of a study."""
    from autotune.service.follow import block_of
    from autotune.views.overview import describe, status_of

    url, name = located(study, storage)
    repository = open_storage(url, existing=True, reading=True)
    standing = status_of(repository, name)
    print(json.dumps(standing, indent=2) if as_json else describe(standing))
    if standing["state"] == "DONE" and not as_json:
        stored = repository.studies.named(name)
        print(f"\n{block_of(repository, stored, export_path(stored))}")


def list_(storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """List all studies in the storage."""
    from autotune.views.overview import status_of, table

    repository = open_storage(url_of(storage), existing=True, reading=True)
    rows = [status_of(repository, study.name) for study in repository.studies.all()]
    print(json.dumps(rows, indent=2) if as_json else table(rows))


def logs(
    study: StudyArgument,
    trial: Annotated[int | None, typer.Option(help="What the ranks of this trial printed.")] = None,
    storage: StorageOption = None,
) -> None:
    """Print the log of a study's daemon, or the output of a trial."""
    from autotune.views.logs import study_log, trial_log

    url, name = located(study, storage)
    repository = open_storage(url, existing=True, reading=True)
    lines = study_log(repository, name) if trial is None else trial_log(repository, name, trial)
    for line in lines:
        print(line)
