"""Commands about the storage itself: check, upgrade, backup, restore."""

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.shared_options import StorageOption, missing_file, open_storage, url_of
from autotune.errors import BadInput, StorageError
from autotune.views.terminal import show as print

if TYPE_CHECKING:  # imported where it is used: SQLAlchemy and Optuna take a second
    from storage import Database, Repository

app = typer.Typer(no_args_is_help=True, help="Check, upgrade, back up or restore the storage.")
FileArgument = Annotated[Path, typer.Argument(help="SQLite file of the copy.")]

_URL = re.compile(r"(sqlite|postgres(ql)?)(\+\w+)?:")


@app.command()
def check(storage: StorageOption = None) -> None:
    """Check that the storage is sound and of this version; exit code 1 if not."""
    database = _existing(storage)
    problems = database.problems()
    with contextlib.suppress(StorageError):
        database.check_writable()
        if not problems:
            print(f"{database}: sound, and of this version.")
            return
    print("\n".join(problems) or f"{database}: sound.")
    database.check_writable()
    raise typer.Exit(1)


@app.command()
def upgrade(storage: StorageOption = None) -> None:
    """Bring the storage of an earlier version to this one. A SQLite file is copied first."""
    database = _existing(storage)
    path = Path(str(database.url.database))
    copy = path.with_name(f"{path.name}.{database.schema}") if database.folder else None
    if copy is not None and database.schema and copy.exists():
        raise BadInput(f"{copy} exists; that is where the copy would go: move it away")
    before, after = database.upgrade(copy)
    if before == after:
        print(f"{database} has schema {after} already.")
        return
    where = f" The copy: {copy}." if copy else ""
    print(f"{database}: schema {before} is now {after}.{where} Earlier versions can only read it.")


@app.command()
def backup(file: FileArgument, storage: StorageOption = None) -> None:
    """Copy all studies and trials into a new SQLite file, while studies run."""
    database = _existing(storage)
    if _URL.match(str(file)):
        raise BadInput(f"{file} is a URL; name a file, such as backup.db")
    database.back_up(file)
    print(f"{file} written; autotune storage restore {file} --storage URL reads it back.")


@app.command()
def restore(file: FileArgument, storage: StorageOption = None) -> None:
    """Copy a backup into an empty storage."""
    from storage.database import copy_of_file, write_copy

    url = url_of(storage)
    with copy_of_file(file) as backup:
        if target := missing_file(url):
            write_copy(backup, target)
            repository = open_storage(url)
        else:
            repository = open_storage(url)
            _refuse_studies(repository)
            repository.database.restore(backup)
    print(f"{len(repository.studies.all())} studies restored to {repository.database}.")


def _refuse_studies(repository: "Repository") -> None:
    """Refuse a storage with studies."""
    if count := repository.studies.count():
        raise BadInput(
            f"{repository.database} has {count} studies; restore into a new storage: --storage"
        )


def _existing(storage: str | None) -> "Database":
    """Open a storage that exists."""
    return open_storage(url_of(storage), existing=True, reading=True).database
