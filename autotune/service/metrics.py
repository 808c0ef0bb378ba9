"""Speed of a job beside its promise, for Prometheus: on loopback only."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Info,
    make_wsgi_app,
    start_http_server,
)

from autotune.measurement.drift import Promise
from autotune.views.admission import ThisMachine
from autotune.worker.inject.speed_report import SpeedReport

LOOPBACK = "127.0.0.1"


class Metrics:
    """Exposed metrics, all of them named autotune_job_* or autotune_promised_*."""

    def __init__(self, promise: Promise, unit: str, study: str) -> None:
        """Create the metrics.

        Args:
            promise: promised speed by best.yaml.
            unit: 'samples/s', 'tokens/s' or 'steps/s'.
            study: name of the study that made the promise.
        """
        self._registry = registry = CollectorRegistry()
        what = unit.partition("/")[0]

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        promised = gauge(
            f"autotune_promised_{what}_per_second",
            "Promised by best.yaml, over all ranks.",
            ("bound",),
        )
        bounds = {"value": promise.value, "low": promise.low, "high": promise.high}
        for bound, value in {**bounds, "next_run_low": promise.bound}.items():
            promised.labels(bound).set(value)
        Info("autotune_job", "The study of the watched job.", registry=registry).info(
            {"study": study}
        )
        self._rate = gauge(
            f"autotune_job_{what}_per_second", "Median over the last minute, over all ranks."
        )
        self._rate.set(float("nan"))
        self._drifted = gauge("autotune_job_drifted", "1: slower than promised; see docs.")
        self._step = gauge(
            "autotune_job_step_seconds",
            "Seconds of an optimizer step in the last block.",
            ("rank",),
        )
        self._steps = Counter(
            "autotune_job_steps", "Optimizer steps so far.", ("rank",), registry=registry
        )
        self._samples = Counter(
            "autotune_job_samples", "Samples trained on so far.", ("rank",), registry=registry
        )

    def serve(self, port: int) -> int:
        """Serve the metrics on this port (0: a free one); return the port.

        Any local user may read them.

        Raises:
            OSError: the port is taken.
        """
        server, _ = start_http_server(port, addr=LOOPBACK, registry=self._registry)
        server.set_app(ThisMachine(make_wsgi_app(self._registry)))  # and not from web pages
        return int(server.server_port)

    def block(self, report: SpeedReport) -> None:
        """Take in a rank's report of a block."""
        rank = str(report.rank)
        self._step.labels(rank).set(report.seconds / report.steps)
        self._steps.labels(rank).inc(report.steps)
        self._samples.labels(rank).inc(report.samples)

    def check(self, rate: float, drifted: bool) -> None:
        """Take in the result of a check.

        Args:
            rate: rate of the job, units per second.
            drifted: True if the job is slower than promised at present.
        """
        self._rate.set(rate)
        self._drifted.set(drifted)
