"""How many of a study's slots can work, and what keeps the others from it: told when that changes."""

import contextlib
import json
import time

from autotune.errors import StorageUnreachable
from autotune.study.context import StudyContext
from storage import MessageKind


class Alive:
    """What `status` says of a study's slots."""

    def __init__(self, context: StudyContext) -> None:
        self._context = context
        self._since: dict[str, float] = {}
        """When what is away has gone, in seconds since the epoch."""
        self._told = ""

    def tell(self) -> None:
        """Say it, unless it has been said."""
        launcher, now = self._context.plan.launcher, time.time()
        for news in launcher.notices():
            self._context.say(news)
        working, away = 0, dict[str, float]()
        for slot in list(launcher.slots):
            why = slot.unreachable()
            working += slot.usable and not why
            away |= {text: self._since.get(text, now) for text in why}
        self._since = away
        planned = max(launcher.planned, working)
        told = json.dumps(
            {"alive": working, "planned": planned, "away": away if working < planned else {}}
        )
        if told == self._told:
            return
        context = self._context
        with contextlib.suppress(StorageUnreachable):  # what runs does not need it
            kind = MessageKind.SLOTS
            context.repository.messages.set_status(context.lease, context.study.id, told, kind=kind)
            self._told = told
