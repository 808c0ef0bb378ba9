"""Commands about order and shares of studies: queue, move, hold, quota and so on; and `submit`."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.shared_options import (
    MOST_PRIORITY,
    MOST_ROWS,
    AllOption,
    JsonOption,
    PriorityOption,
    StorageOption,
    StudyArgument,
    finite,
    located,
    open_storage,
    open_study,
    tell_of_more,
    url_of,
)
from autotune.errors import BadInput
from autotune.views.terminal import show as print

if TYPE_CHECKING:  # imported where it is used: SQLAlchemy takes a second
    from autotune.config import StudySpec
    from storage import StoredStudy
    from storage.order import Quotas

_MOST_STUDIES = 10_000
"""Largest quota of studies: as many at a time as no cluster runs."""
_MOST_DEVICE_HOURS = 1e8
"""Largest quota of device hours: ten thousand devices for a year."""
_MOST_DAYS = 3650.0
_LEAST_WEIGHT = 0.001
"""Smallest weight, and the inverse of the largest: no cluster has so many slots to share."""
_MOST_OWNER = 255
"""Length of an owner's name in the storage, in characters."""
_DeviceHours = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=_MOST_DEVICE_HOURS, callback=finite, help="Device hours in so many --days."
    ),
]
_Days = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=_MOST_DAYS,
        callback=finite,
        help="Days that --device-hours is for; 1 at the beginning.",
    ),
]


def queue(
    storage: StorageOption = None, as_json: JsonOption = False, everything: AllOption = False
) -> None:
    """List what runs and waits, in order: owner, age, reason, and an estimate of when it starts."""
    from autotune.views.queue_table import queue_of, table

    repository = open_storage(url_of(storage), existing=True, reading=True)
    order = repository.studies.order()
    rows = queue_of(repository, order if everything else order[:MOST_ROWS])
    print(json.dumps(rows, indent=2) if as_json else table(rows, repository.now()))
    tell_of_more(len(order) - len(rows), "later studies")


def quota(
    owner: Annotated[
        str | None, typer.Argument(help="An account, or '*': each whose own is not set.")
    ] = None,
    studies: Annotated[
        int | None, typer.Option(min=0, max=_MOST_STUDIES, help="Studies at a time.")
    ] = None,
    device_hours: _DeviceHours = None,
    days: _Days = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the quota.")] = False,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """List quotas, or that of an owner, or set it: its studies wait while more would exceed it."""
    limits = {"studies": studies, "device_hours": device_hours, "days": days}
    given = {name: value for name, value in limits.items() if value is not None}
    _check_quota(owner, changes=bool(given), remove=remove)
    reading = not (given or remove)
    quotas = open_storage(url_of(storage), existing=True, reading=reading).quotas
    if owner is not None and remove:
        quotas.remove(owner)
    elif owner is not None and given:
        quotas.change(owner, given)
    _show_quotas(quotas, owner, as_json=as_json)


def weight(
    owner: Annotated[str, typer.Argument(help="An account, or '*': each whose own is not set.")],
    number: Annotated[
        float,
        typer.Argument(
            min=_LEAST_WEIGHT,
            max=1 / _LEAST_WEIGHT,
            callback=finite,
            help="Relative to those of other owners, which have 1 unless theirs is set.",
        ),
    ],
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the weight of an owner's share of a Ray cluster; `quota` shows and removes it."""
    _check_quota(owner, changes=True, remove=False)
    quotas = open_storage(url_of(storage), existing=True).quotas
    quotas.change(owner, {"weight": number})
    _show_quotas(quotas, owner, as_json=as_json)


def _show_quotas(quotas: "Quotas", owner: str | None, *, as_json: bool) -> None:
    """Print what applies to an owner, or to all that have a quota; as JSON, what is set for them."""
    from autotune.views.queue_table import quota_table

    found = [one for one in quotas.all() if owner in (None, one.owner)]
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    named = [one.owner for one in found] if owner is None else [owner]
    print(quota_table([one for one in map(quotas.in_force, named) if one.is_set]))


def _check_quota(owner: str | None, *, changes: bool, remove: bool) -> None:
    """Refuse a quota of no account, and one that is to be set and removed."""
    if owner is None and (changes or remove):
        raise BadInput("say whose quota it is: autotune quota OWNER --studies 2")
    if changes and remove:
        raise BadInput("--remove removes all limits of an owner; leave it out, or the limits")
    if owner is not None and not (
        owner.strip() and owner.isprintable() and len(owner) <= _MOST_OWNER
    ):
        raise BadInput(f"{owner!r} is no name of an account: autotune quota OWNER --studies 2")


def move(
    study: StudyArgument,
    priority: PriorityOption = None,
    before: Annotated[
        str | None,
        typer.Option(help="A study, or its study.yaml; it and all of its priority come later."),
    ] = None,
    storage: StorageOption = None,
) -> None:
    """Give a study another place in its queue. What runs already runs on."""
    if (priority is None) == (before is None):
        raise BadInput("say one of --priority NUMBER and --before STUDY")
    repository, name = open_study(study, storage)
    studies = repository.studies
    if before is not None:
        other = _in_same_storage(before, located(study, storage)[0], storage)
        priority = _priority_before(studies.named(name), studies.named(other))
    moved = studies.arrange(name, priority=priority)
    print(f"{name} has priority {moved.priority}.")


def _in_same_storage(other: str, url: str, storage: str | None) -> str:
    """Return the name of a study, given by name or file, that has to be in the storage at a URL."""
    from storage.urls import parse

    named, name = located(other, storage)
    if name != other and parse(named) != parse(url):
        raise BadInput(f"{other} names another storage than that of the study: say --storage URL")
    return name


def _priority_before(study: "StoredStudy", other: "StoredStudy") -> int:
    """Return the priority by which a study comes before another one."""
    why = ""
    if study.name == other.name:
        why = "it is the same study"
    elif other.state.ended:
        why = f"that is {other.state}, and has no place in a queue"
    elif study.queue != other.queue:
        why = "that is in another queue, and neither waits for the other"
    elif other.priority >= MOST_PRIORITY:
        why = f"that has the highest priority; autotune move {other.name} --priority 0"
    if why:
        raise BadInput(f"{study.name} cannot come before {other.name}: {why}")
    return other.priority + 1


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


def submit(
    words: Annotated[
        list[str],
        typer.Argument(metavar="STUDY.yaml [-- OPTIONS]", help="The study, and options of sbatch."),
    ],
    show: Annotated[
        bool, typer.Option("--print", help="Print the script; submit nothing.")
    ] = False,
    kubernetes: Annotated[
        str | None, typer.Option(help="Print a manifest instead: job or rayjob.", metavar="KIND")
    ] = None,
) -> None:
    """Submit a study to Slurm, as a job that is requeued until it is done."""
    from autotune.config import load
    from autotune.service.batch import (
        MANIFESTS,
        outside_of_image,
        sbatch_environment,
        sbatch_script,
    )

    study, options = Path(words[0]), words[1:]
    spec, folder = load(study), Path.cwd()
    if kubernetes is not None:
        if kubernetes not in MANIFESTS:
            raise BadInput(f"--kubernetes takes {' or '.join(MANIFESTS)}, got {kubernetes}")
        if options:
            raise BadInput(f"{' '.join(options)}: options of sbatch say nothing to Kubernetes")
        print(MANIFESTS[kubernetes](spec, study, folder))
        return
    script = sbatch_script(spec, study, folder, options)
    _check_storage_of_job(url_of(spec.storage))
    problem = outside_of_image(os.environ, options)
    if show:
        print(script)
        if problem:
            print(problem, file=sys.stderr)
        return
    if problem:
        raise BadInput(problem)
    if shutil.which("sbatch") is None:
        raise BadInput("there is no sbatch here; --print shows the script")
    done = subprocess.run(
        ["sbatch", *options],
        input=script,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=sbatch_environment(os.environ),
    )
    print(done.stdout.strip())
    if done.returncode == 0:
        _tell_of_held_jobs(spec)
    sys.exit(done.returncode)


def _tell_of_held_jobs(spec: "StudySpec") -> None:
    """Tell of earlier jobs of the study that are held: the new one waits for them."""
    from autotune.service.batch import held_jobs, job_name

    query = ["squeue", "--noheader", "--me", "--states=PD", f"--name={job_name(spec)}"]
    with contextlib.suppress(OSError):
        told = subprocess.run(
            [*query, "--format=%i %r"], capture_output=True, text=True, check=False
        ).stdout
        for job in held_jobs(told):
            print(
                f"job {job} of this study is held, and this one waits for it: scontrol release {job}, "
                f"or scancel {job}",
                file=sys.stderr,
            )


def _check_storage_of_job(url: str) -> None:
    """Refuse a storage that the job would refuse, and tell that a file is not found everywhere."""
    from storage.urls import parse

    storage = parse(url)
    if storage.get_backend_name() == "sqlite":  # on a file system of this machine alone
        print(
            f"storage {storage.database} is a file of this machine: a job that Slurm begins, or "
            "requeues, on another node does not find it; postgresql://... is for several",
            file=sys.stderr,
        )
