"""Commands about the order of studies: queue, move, hold, release, quota."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from autotune.cli.shared_options import (
    MOST_ROWS,
    AllOption,
    JsonOption,
    StorageOption,
    StudyArgument,
    open_storage,
    open_study,
    tell_of_more,
    url_of,
)
from autotune.errors import BadInput
from autotune.views.terminal import show as print


def queue(
    storage: StorageOption = None, as_json: JsonOption = False, everything: AllOption = False
) -> None:
    """List what runs and waits, in order: owner, age, reason, and an estimate of when it starts."""
    from autotune.views.waiting_line import queue_of, table

    repository = open_storage(url_of(storage), existing=True, reading=True)
    order = repository.studies.order()
    rows = queue_of(repository, order if everything else order[:MOST_ROWS])
    print(json.dumps(rows, indent=2) if as_json else table(rows))
    tell_of_more(len(order) - len(rows), "later studies")


def quota(
    owner: Annotated[
        str | None, typer.Argument(help="An account, or '*': each without a quota of its own.")
    ] = None,
    studies: Annotated[int | None, typer.Option(min=0, help="Studies at a time.")] = None,
    device_hours: Annotated[
        float | None, typer.Option(min=0.0, help="Device hours in so many --days.")
    ] = None,
    days: Annotated[float, typer.Option(min=0.01, help="Days that --device-hours is for.")] = 1.0,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the quota.")] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List quotas, or set that of an owner: its studies wait while more would exceed it."""
    from autotune.views.waiting_line import quota_table
    from storage import Quota

    given = Quota(owner or "", studies, device_hours, days)
    if owner is None and (given.limits or remove):
        raise BadInput("say whose quota it is: autotune quota OWNER --studies 2")
    if owner is not None and given.limits == remove:
        raise BadInput("say one of --studies and --device-hours, or --remove")
    repository = open_storage(url_of(storage), existing=True, reading=owner is None)
    if owner is not None:
        repository.quotas.set(given)
    quotas = repository.quotas.all()
    print(json.dumps([asdict(one) for one in quotas], indent=2) if as_json else quota_table(quotas))


def move(
    study: StudyArgument,
    priority: Annotated[
        int | None, typer.Option(help="Studies of a higher one come first; 0 at the beginning.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(help="A study; it and all of its priority come later.")
    ] = None,
    storage: StorageOption = None,
) -> None:
    """Give a study another place in its queue. What runs already runs on."""
    if (priority is None) == (before is None):
        raise BadInput("say one of --priority NUMBER and --before STUDY")
    repository, name = open_study(study, storage)
    studies = repository.studies
    if priority is None:
        assert before is not None
        priority = studies.named(before).priority + 1
    moved = studies.arrange(name, priority=priority)
    print(f"{name} has priority {moved.priority}.")


def hold(study: StudyArgument, storage: StorageOption = None) -> None:
    """Keep a waiting study from being begun, until it is released."""
    repository, name = open_study(study, storage)
    repository.studies.arrange(name, held=True)
    print(f"{name} is held; autotune release {name}.")


def release(study: StudyArgument, storage: StorageOption = None) -> None:
    """Let a held study be begun when its turn comes."""
    repository, name = open_study(study, storage)
    released = repository.studies.arrange(name, held=False)
    served = repository.leases.serving(released)
    starts = "" if served else f" No daemon serves its queue: autotune resume {name} starts one."
    print(f"{name} is {released.state}.{starts}")
