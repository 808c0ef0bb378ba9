"""Queue and daemon, for Prometheus and for probes: /metrics and /healthz, on loopback only."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from autotune.errors import StorageError, StudyNotFound
from autotune.service.metrics import LOOPBACK
from autotune.views.admission import App, ThisMachine
from autotune.views.overview import status_of
from storage import Repository, StoredStudy, StudyState
from storage.leases import key_of

SILENT_SECONDS = 60.0
"""Silence of a daemon after which it is not healthy: it beats every two seconds."""
_HEALTH = "/healthz"
_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_STATES = ("RUNNING", "QUEUED", "HELD")


class QueueMetrics(Collector):
    """Metrics of all studies that run or wait, read from the storage at each request."""

    def __init__(self, repository: Repository, silence: Callable[[], float]) -> None:
        """Prepare to serve.

        Args:
            silence: returns the seconds since the daemon's last sign of life.
        """
        self._repository = repository
        self._silence = silence

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics as they are now."""
        studies = self._repository.studies
        found = studies.of_ids(studies.order())
        states = ["HELD" if study.held else study.state.value for study in found]
        count = GaugeMetricFamily("autotune_studies", "Studies by state.", labels=["state"])
        for state in _STATES:
            count.add_metric([state], states.count(state))
        yield count
        waiting = self._without_daemon(found)
        oldest = max(0.0, self._repository.now() - min(waiting)) if waiting else 0.0
        yield _gauge(
            "oldest_wait_seconds", "Age of the oldest study that no daemon serves.", oldest
        )
        yield _gauge("daemon_silence_seconds", "Since its last sign of life.", self._silence())
        running = [study.name for study in found if study.state == StudyState.RUNNING]
        yield from self._of_running(running)

    def _without_daemon(self, studies: Iterable[StoredStudy]) -> list[float]:
        """Return when the studies were submitted that no daemon runs or is there for."""
        holder = functools.cache(self._repository.leases.holder)

        def served(study: StoredStudy) -> bool:
            waits = study.state == StudyState.QUEUED
            return holder(study.queue if waits else key_of(study.id)) is not None

        return [one.created for one in studies if not one.held and not served(one)]

    def _of_running(self, names: Iterable[str]) -> Iterator[GaugeMetricFamily]:
        slots = GaugeMetricFamily("autotune_slots", "Slots of a study.", labels=["study", "kind"])
        progress = GaugeMetricFamily(
            "autotune_progress_seconds", "Since something last came of it.", labels=["study"]
        )
        waits = GaugeMetricFamily("autotune_waiting", "1: it waits.", labels=["study"])
        for name in names:
            try:
                found = status_of(self._repository, name)
            except StudyNotFound:
                continue  # it was deleted meanwhile
            waits.add_metric([name], float(bool(found["waiting"])))
            for kind in ("alive", "planned"):
                if found["slots"]:
                    slots.add_metric([name, kind], found["slots"][kind])
            if found["progress_seconds"] is not None:
                progress.add_metric([name], found["progress_seconds"])
        yield from (slots, progress, waits)

    def serve(self, port: int) -> int:
        """Serve on this port (0: a free one); return the port.

        Any local user may read it.

        Raises:
            OSError: the port is taken.
        """
        registry = CollectorRegistry()
        server, _ = start_http_server(port, addr=LOOPBACK, registry=registry)
        registry.register(self)
        metrics: App = make_wsgi_app(registry)

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            if environ.get("PATH_INFO") == _HEALTH:
                problem = self.problem()
            else:
                try:
                    return metrics(environ, start)
                except StorageError as error:
                    problem = str(error)
            start("503 Service Unavailable" if problem else "200 OK", list(_TEXT))
            return [(problem or "ok").encode()]

        server.set_app(ThisMachine(answer))
        return int(server.server_port)

    def problem(self) -> str:
        """Return why the daemon is not healthy; empty if it is."""
        if (silence := self._silence()) > SILENT_SECONDS:
            return f"the daemon has given no sign of life for {silence:.0f} s"
        try:
            self._repository.studies.count()
        except StorageError as error:
            return str(error)
        return ""


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"autotune_{name}", text, value=value)
