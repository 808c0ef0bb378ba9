"""Arguments of commands, and the storage and the study that they name."""

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.errors import BadInput

if TYPE_CHECKING:  # imported where they are used: SQLAlchemy and Optuna take a second
    from storage import Repository, StoredStudy

DEFAULT_STORAGE = "sqlite:///autotune.db"

StudyArgument = Annotated[str, typer.Argument(help="Name of a study, or its study.yaml.")]
StorageOption = Annotated[
    str | None,
    typer.Option(
        help="Storage URL; else that of study.yaml, $AUTOTUNE_STORAGE, sqlite:///autotune.db."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MOST_PRIORITY = 1000
PriorityOption = Annotated[
    int | None,
    typer.Option(
        min=-MOST_PRIORITY,
        max=MOST_PRIORITY,
        help="Studies of a higher one come first; 0 at the beginning.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Even if it is another owner's.")]
AllOption = Annotated[
    bool,
    typer.Option("--all", help="All, not only the newest hundred; of a queue the first hundred."),
]
MOST_ROWS = 100
"""Studies that are listed unless all are asked for: each costs some reads."""


def finite(value: float | None) -> float | None:
    """Return a number of the command line; typer's bounds let NaN pass.

    Raises:
        typer.BadParameter: it is infinite or NaN.
    """
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


def open_storage(url: str, *, existing: bool = False, reading: bool = False) -> "Repository":
    """Return the repository behind a URL.

    Args:
        existing: whether a SQLite file that is missing, or is no storage, is an error.
        reading: whether nothing is to be written, nor followed: any schema will do.

    Raises:
        BadInput: the file is missing, or is of another program.
        StorageError: it was written by another version of autotune.
    """
    from storage import Database, Repository

    if existing and (missing := missing_file(url)):
        raise BadInput(
            f"there is no {missing}; go to the folder where the study was started, or "
            "give its study.yaml or --storage"
        )
    database = Database(url, existing=existing)
    if not reading:
        database.check_writable()
    return Repository(database, next(iter(sys.argv[1:]), ""))  # the command, for the history


def missing_file(url: str) -> Path | None:
    """Return the path of a SQLite file that does not exist; None if it does, and for a server."""
    from storage.urls import parse

    parsed = parse(url)
    path = Path(str(parsed.database))
    return path if parsed.get_backend_name() == "sqlite" and not path.exists() else None


def url_of(*given: str | None) -> str:
    """Return the first URL that is given, else that of the environment, else a file here."""
    named = (url for url in given if url is not None)
    return next(named, os.environ.get("AUTOTUNE_STORAGE") or DEFAULT_STORAGE)


def located(study: str, storage: str | None) -> tuple[str, str]:
    """Return (storage URL, study name) for a name or a study.yaml."""
    if study.endswith((".yaml", ".yml")):
        from autotune.config import identified

        name, named = identified(Path(study))
        return url_of(storage, named), name
    return url_of(storage), study


def open_study(
    study: str, storage: str | None, *, reading: bool = False
) -> "tuple[Repository, str]":
    """Return the storage of a study that exists, and the name of the study.

    Args:
        study: name of the study, or its study.yaml.
        storage: URL of the command line; None: there is none.
        reading: whether nothing is to be written, nor followed: any schema will do.
    """
    url, name = located(study, storage)
    return open_storage(url, existing=True, reading=reading), name


def export_path(study: "StoredStudy") -> Path:
    """Return the path of a study's best.yaml."""
    return Path(study.workdir, study.spec["export"])


def written_best(study: "StoredStudy") -> str:
    """Return the path of a study's best.yaml as its file names it; empty where it is not written."""
    from autotune.export.writing import is_of

    return str(study.spec["export"]) if is_of(export_path(study), study.name) else ""


def seconds(option: str, text: str | None) -> float | None:
    """Parse a time of the command line: `90`, `90.5`, `90s`, `20m`.

    Raises:
        BadInput: it is none.
    """
    if text is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from autotune.config.sections import Seconds

    try:
        is_number = text.replace(".", "", 1).isdecimal()
        return TypeAdapter(Seconds).validate_python(float(text) if is_number else text)
    except ValidationError:
        raise BadInput(
            f"{option} must be seconds, or a number with a unit such as 90s, 30m, 2h, got {text}"
        ) from None


def tell_of_more(count: int, what: str) -> None:
    """Print, apart from the output, how many rows were left out."""
    if count > 0:
        print(f"{count} {what} are not shown; --all shows them", file=sys.stderr)
