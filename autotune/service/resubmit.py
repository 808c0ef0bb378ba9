"""A stored study submitted again under another name."""

import datetime
from pathlib import Path

from autotune.config import StudySpec
from autotune.service.submission import DaemonSupervisor, submit
from storage import Database, Repository

_LONGEST_NAME = 80


def queue(url: str, study: str) -> str:
    """Queue a stored study's settings as a new study; return its name.

    A daemon is started if none runs.

    Args:
        url: URL of the storage.
        study: name of the stored study.

    Raises:
        AutotuneError: the study does not exist, or cannot run here.
    """
    repository = Repository(Database(url))
    stored = repository.studies.named(study)
    now = datetime.datetime.now(datetime.UTC)
    name = f"{study[:_LONGEST_NAME]}-{now:%Y%m%d-%H%M%S}"
    spec = StudySpec.model_validate({**stored.spec, "name": name})
    file = Path(stored.file) if stored.file else None
    submitted = submit(repository, spec, Path(stored.workdir), file)
    DaemonSupervisor(
        repository, submitted, repository.database.url.render_as_string(hide_password=False)
    )()
    return name
