"""Commands about the order of studies: queue, move, hold, release."""

import json
from typing import Annotated

import typer

from autotune.cli.shared_options import (
    JsonOption,
    StorageOption,
    StudyArgument,
    located,
    open_storage,
    url_of,
)
from autotune.errors import BadInput
from autotune.views.terminal import show as print


def queue(storage: StorageOption = None, as_json: JsonOption = False) -> None:
    """List what runs and waits, in order: owner, reason, and an estimate of when it starts."""
    from autotune.views.waiting_line import queue_of, table

    rows = queue_of(open_storage(url_of(storage), existing=True, reading=True))
    print(json.dumps(rows, indent=2) if as_json else table(rows))


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
    url, name = located(study, storage)
    studies = open_storage(url, existing=True).studies
    if priority is None:
        assert before is not None
        priority = studies.named(before).priority + 1
    moved = studies.arrange(name, priority=priority)
    print(f"{name} has priority {moved.priority}.")


def hold(study: StudyArgument, storage: StorageOption = None) -> None:
    """Keep a waiting study from being begun, until it is released."""
    url, name = located(study, storage)
    open_storage(url, existing=True).studies.arrange(name, held=True)
    print(f"{name} is held; autotune release {name}.")


def release(study: StudyArgument, storage: StorageOption = None) -> None:
    """Let a held study be begun when its turn comes."""
    url, name = located(study, storage)
    repository = open_storage(url, existing=True)
    released = repository.studies.arrange(name, held=False)
    served = repository.leases.serving(released)
    starts = "" if served else f" No daemon serves its queue: autotune resume {name} starts one."
    print(f"{name} is {released.state}.{starts}")
