"""Queue and daemon, for Prometheus and for probes: /metrics and /healthz, on loopback only."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from autotune.config import secrets_withheld
from autotune.errors import OtherVersion, StorageError, StudyNotFound
from autotune.runs.study_setup import longest_silence
from autotune.service.metrics import LOOPBACK
from autotune.service.queues import is_of_job
from autotune.views.admission import App, ThisMachine
from autotune.views.overview import status_of
from storage import Repository, StoredStudy, StudyState

SILENT_SECONDS = 60.0
"""Silence of a daemon after which it is not healthy: it beats every two seconds."""
_HEALTH = "/healthz"
_TEXT = [("Content-Type", "text/plain; charset=utf-8")]
_STATES = ("RUNNING", "QUEUED", "HELD")
_RECENT_SECONDS = 86_400.0
"""Time for which a study that has failed is told."""


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
        failed = _of_study("failed", "1: it has failed within a day, and was not begun again.")
        for name in studies.failed_within(_RECENT_SECONDS):
            failed.add_metric([name], 1.0)
        yield failed
        yield self._without_daemon(found)
        silence = self._silence()
        yield GaugeMetricFamily(
            "autotune_daemon_silence_seconds", "Since its last sign of life.", value=silence
        )
        yield from self._of_running([one for one in found if one.state == StudyState.RUNNING])

    def _without_daemon(self, studies: Sequence[StoredStudy]) -> GaugeMetricFamily:
        """Return the ages of the studies that are to run, and that nothing serves.

        A study that waits for a batch job is left out: the scheduler begins that.
        """
        ages = _of_study("without_daemon_seconds", "Age of a study that no daemon serves.")
        serving, now = self._repository.leases.serving_all(studies), self._repository.now()
        for study in studies:
            for_job = study.state == StudyState.QUEUED and is_of_job(study)
            if not (study.held or for_job or study.id in serving):
                ages.add_metric([study.name], max(0.0, now - study.created))
        return ages

    def _of_running(self, studies: Iterable[StoredStudy]) -> Iterator[GaugeMetricFamily]:
        slots = GaugeMetricFamily("autotune_slots", "Slots of a study.", labels=["study", "kind"])
        progress = _of_study("progress_seconds", "Since something last came of it.")
        longest = _of_study("longest_silence_seconds", "Longest time for which nothing may come.")
        waits = _of_study("waiting", "1: it waits.")
        for study in studies:
            name = study.name
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
            with contextlib.suppress(OtherVersion):
                longest.add_metric([name], longest_silence(secrets_withheld.as_stored(study.spec)))
        yield from (slots, progress, longest, waits)

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


def _of_study(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"autotune_{name}", text, labels=["study"])
