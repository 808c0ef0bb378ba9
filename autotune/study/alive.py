"""How many of a study's slots can work, and what keeps the others from it: told when that changes."""

import contextlib
import time

from autotune.errors import StorageUnreachable
from autotune.study.job import Job
from storage import SlotHealth


class Alive:
    """What `status` says of a study's slots."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._since: dict[str, float] = {}
        """When what is away has gone, in seconds since the epoch."""
        self._told: SlotHealth | None = None

    def tell(self) -> None:
        """Say it, unless it has been said."""
        launcher, now = self._job.plan.launcher, time.time()
        for news in launcher.notices():
            self._job.say(news)
        working, away = 0, dict[str, float]()
        for slot in list(launcher.slots):
            why = slot.unreachable()
            working += slot.usable and not why
            away |= {text: self._since.get(text, now) for text in why}
        self._since = away
        planned = max(launcher.planned, working)
        told = SlotHealth(working, planned, away if working < planned else {})
        if told == self._told:
            return
        job = self._job
        with contextlib.suppress(StorageUnreachable):  # what runs does not need it
            job.repository.studies.record_slots(job.lease, job.study.id, told)
            self._told = told
