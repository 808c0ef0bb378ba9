"""Commands about existing studies: stop, delete, status, list, history and logs."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.shared_options import (
    MOST_ROWS,
    AllOption,
    ForceOption,
    JsonOption,
    StorageOption,
    StudyArgument,
    export_path,
    located,
    open_storage,
    open_study,
    seconds,
    tell_of_more,
    url_of,
)
from autotune.views.terminal import show as print  # output may hold control characters of trials

_MOST_NAMED = 5
"""Folders that a message names."""
_MOST_EVENTS = 10**9
"""More than a storage has, and a number that each database takes."""


def stop(study: StudyArgument, storage: StorageOption = None, force: ForceOption = False) -> None:
    """Stop a study; its running trial is abandoned, all records stay."""
    repository, name = open_study(study, storage)
    stored = repository.studies.named(name)
    if stored.state.ended:
        print(f"{name} is not running ({stored.state}).")
        return
    from autotune.service.queues import refuse_others
    from autotune.views.overview import status_of

    refuse_others(stored, force=force)

    repository.studies.request_stop(name)
    standing = status_of(repository, name)
    if repository.studies.named(name).state.ended:
        how = "is stopped"
    elif standing["running"]:
        how = "stops within seconds, or two minutes where a node or a process does not answer"
    else:
        how = "stops within seconds"
    print(f"{name} {how}; autotune resume {name} goes on.")


def delete(study: StudyArgument, storage: StorageOption = None, force: ForceOption = False) -> None:
    """Delete a study that has ended, with its records, trials, logs and traces. best.yaml stays."""
    from autotune.service import cleaning
    from autotune.service.queues import refuse_others

    repository, name = open_study(study, storage)
    stored = repository.studies.named(name)
    refuse_others(stored, force=force)
    left = cleaning.signed_by_others(repository.database, [stored])
    gone = cleaning.delete(repository, name)
    print(f"{name} is deleted{''.join(f', with {folder}' for folder in gone)}.")
    _tell_of_others(left)


def clean(
    storage: StorageOption = None,
    older_than: Annotated[
        str | None,
        typer.Option(help="Only of studies whose folder has not changed for so long, e.g. 30d."),
    ] = None,
) -> None:
    """Remove files that are not needed any more; records stay.

    They are logs and compiled code of studies that are done or deleted, copies of settings files that
    no job uses, and files of trials that were killed. A study that was stopped or has failed keeps its
    folder, as it can go on; `delete` removes it.
    """
    from autotune.service import cleaning

    age = seconds("--older-than", older_than) or 0.0
    repository = open_storage(url_of(storage), existing=True)
    gone = cleaning.clean(repository, Path.cwd(), age)
    print("\n".join(map(str, gone)) or "There is nothing to remove.")
    done = [one for one in repository.studies.all() if one.state == "DONE"]
    _tell_of_others(cleaning.signed_by_others(repository.database, done))
    if problem := cleaning.problem(repository.database):
        told = "Folders of studies that were deleted stay, as the storage does not tell which one it is"
        print(f"{told}: {problem}", file=sys.stderr)
    if left := cleaning.undecided(repository, Path.cwd()):
        print(
            "An earlier version made these, of studies that this storage does not know; they may be "
            f"another storage's, so they stay: {_shortened(left)}",
            file=sys.stderr,
        )


def _tell_of_others(folders: Mapping[Path, str]) -> None:
    """Tell of folders that stay, as another storage has signed them."""
    if folders:
        named = [f"{folder} (signed by {signer or '?'})" for folder, signer in folders.items()]
        print(
            "Signed by another storage, or by this one when its machine or file had another name, and "
            f"so left, to be removed by hand if nothing needs it: {_shortened(named)}",
            file=sys.stderr,
        )


def _shortened(folders: Sequence[object]) -> str:
    """Return the first of the folders, and how many more there are."""
    more = f" and {len(folders) - _MOST_NAMED} more" if len(folders) > _MOST_NAMED else ""
    return ", ".join(map(str, folders[:_MOST_NAMED])) + more


def status(
    study: StudyArgument, storage: StorageOption = None, as_json: JsonOption = False
) -> None:
    """Print the state of a study."""
    from autotune.service.follow import block_of
    from autotune.views.overview import describe, status_of

    repository, name = open_study(study, storage, reading=True)
    standing = status_of(repository, name)
    print(json.dumps(standing, indent=2) if as_json else describe(standing))
    if standing["state"] == "DONE" and not as_json:
        stored = repository.studies.named(name)
        print(f"\n{block_of(repository, stored, export_path(stored))}")


def list_(
    storage: StorageOption = None, as_json: JsonOption = False, everything: AllOption = False
) -> None:
    """List the studies in the storage, the newest last; older ones than the newest hundred by --all."""
    from autotune.views.overview import list_of, table

    repository = open_storage(url_of(storage), existing=True, reading=True)
    rows = list_of(repository, None if everything else MOST_ROWS)
    print(json.dumps(rows, indent=2) if as_json else table(rows, repository.now()))
    tell_of_more(repository.studies.count() - len(rows), "older studies")


def history(
    study: Annotated[str | None, typer.Argument(help="Name of a study, or its study.yaml.")] = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
    last: Annotated[
        int, typer.Option(min=1, max=_MOST_EVENTS, help="Number of the newest events to show.")
    ] = 100,
) -> None:
    """List what was done with a study, or with all: when, by which account, host and command."""
    from autotune.views.logs import history_table

    url, name = located(study, storage) if study else (url_of(storage), None)
    repository = open_storage(url, existing=True, reading=True)
    events = repository.events.of(name, last)
    if name is not None and not events:  # a deleted study has some
        repository.studies.named(name)  # fails unless it exists
    rows = [asdict(event) for event in events]
    print(json.dumps(rows, indent=2) if as_json else history_table(events))


def logs(
    study: StudyArgument,
    trial: Annotated[int | None, typer.Option(help="What the ranks of this trial printed.")] = None,
    storage: StorageOption = None,
) -> None:
    """Print what has happened in a study, event by event, or the output of a trial.

    What its daemon itself says is in .autotune/daemon.log, in the folder where it was started.
    """
    from autotune.views.logs import study_log, trial_log

    repository, name = open_study(study, storage, reading=True)
    lines = study_log(repository, name) if trial is None else trial_log(repository, name, trial)
    for line in lines:
        print(line)
