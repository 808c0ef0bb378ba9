"""A study of a queue from claim to verdict: launcher, environment, tuner, export."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.analysis.provenance import measured_in
from autotune.analysis.verdict import Verdict
from autotune.analysis.wording import counted, duration
from autotune.config import StudySpec, remote_stores, secrets_withheld
from autotune.errors import LauncherError, StorageError, UnfitNodes
from autotune.export import publish, writing
from autotune.runs.study_setup import OpenLauncher, StudySetup
from autotune.service.cleaning import signature
from autotune.study.context import BASELINE, StudyContext
from autotune.study.executor import check_there
from autotune.study.largest_batch import LargestBatch
from autotune.study.tuner import Signals, Tuner
from autotune.views.verdict_text import text_of
from launchers import NO_HOLDER, DeviceHolder, Launcher, Tenant
from launchers.layout import visible_devices
from launchers.node_compat import device_kind, from_agent, other_devices
from storage import Lease, MessageKind, Purpose, Repository, StoredStudy
from storage.disk import full, lacks_room, make
from storage.host import started, this_host

_ROOM_POLL_SECONDS = 0.5
_SAME = ("device", "world_size", "capability")
"""Facts on which all figures of a study depend."""
_MAY_WRITE = " Trials may change your files: `workload.may_write` is true."


class StudyRun:
    """A study from claim to verdict: launcher, environment, tuner, export."""

    def __init__(
        self, study: StoredStudy, lease: Lease, repository: Repository, signals: Signals
    ) -> None:
        self._study = study
        self._lease = lease
        self._repository = repository
        self._signals = signals
        self._waits_for: DeviceHolder | None = None
        file = Path(study.file) if study.file else None
        self._spec = secrets_withheld.restored(study.spec, file, os.environ)

    def run(
        self, open_launcher: OpenLauncher, begins: Callable[[], None], later: contextlib.ExitStack
    ) -> Verdict:
        """Run the study; return its verdict, exported and noted.

        Args:
            begins: called once neither room nor the storage is waited for any more.
            later: closes resources after the result has been written.
        """
        study = self._study
        paths = study.paths
        check_there(paths.workdir)
        self._wait_for_room()
        begins()
        make(paths.folder)
        # Without the mark `clean` only removes less.
        with contextlib.suppress(OSError, StorageError):
            paths.sign(signature(self._repository.database))
        weight = self._repository.quotas.weight_of(study.owner)
        tenant = Tenant(study.owner, study.name, weight)
        try:
            launcher = open_launcher(self._pinned(), paths.folder, self._is_to_be_ignored, tenant)
        except UnfitNodes as error:
            if study.facts is None or not self._repository.attempts.count_measured(self._study.id):
                raise
            raise LauncherError(f"its figures are of {_ranks_on(study.facts)}: {error}") from None
        with contextlib.ExitStack() as now:
            (later if launcher.is_remote else now).callback(launcher.close)
            later.callback(self._signals.waiting.set)  # closing time does not count
            self._signals.waiting.clear()
            return self._tune(StudySetup(self._spec, launcher))

    def _pinned(self) -> StudySpec:
        """Return the settings, pinned to the kind of device on which the study began.

        A cluster may have devices of several kinds. A machine that shows no GPU is taken for one of the
        CPU where the study has figures of the CPU.
        """
        spec, where = self._spec, self._bound_to()
        if where is None:
            return spec
        device = (self._study.facts or {}).get("device")
        if not spec.launcher.is_shared and device == "cpu" and not visible_devices():
            resources = spec.resources.model_copy(update={"gpus_per_worker": 0})
            return spec.model_copy(update={"resources": resources})
        if not spec.launcher.is_shared or spec.resources.device:
            return spec
        kind = device_kind(from_agent(where), on_gpu=device == "cuda") or None
        resources = spec.resources.model_copy(update={"device": kind})
        return spec.model_copy(update={"resources": resources})

    def _wait_for_room(self) -> None:
        """Wait until the study's folder can be written. That time does not count."""
        workdir = Path(self._study.workdir)
        if lacks_room(workdir):
            self._say_waiting(f"{full(workdir)}; the study goes on once there is some.")
        while lacks_room(workdir):
            self._signals.check()
            time.sleep(_ROOM_POLL_SECONDS)

    def _is_to_be_ignored(self, rival: DeviceHolder) -> bool:
        """Return True for the daemon that this one has replaced, which may be suspended there.

        Wait for every other process.
        """
        if rival.pid == self._lease.predecessor and self._is_predecessor(rival):
            return True
        self._signals.check()
        if rival == NO_HOLDER:
            return False
        if rival != self._waits_for:
            self._say_waiting(f"{rival.text}{self._whose(rival)}.")
        self._waits_for = rival
        return False

    def _whose(self, rival: DeviceHolder) -> str:
        """Return the study and owner of another process, and how long it may take; empty if unknown."""
        other = self._repository.studies.run_by(this_host(), rival.pid) if rival.pid else None
        if other is None:
            return ""
        limit = other.spec.get("budget", {}).get("wall_time")
        left = "" if limit is None else f", at most {duration(limit - other.elapsed)} more"
        return f": study {other.name} of {other.owner or 'an unknown owner'}{left}"

    def _is_predecessor(self, rival: DeviceHolder) -> bool:
        """Return whether it is the same process, and not a later one of that number."""
        since = self._lease.predecessor_started
        return since is None or started(this_host(), rival.pid) == since

    def _say_waiting(self, text: str) -> None:
        self._say(text, MessageKind.WAITING)

    def _say(self, text: str, kind: MessageKind = MessageKind.SAID) -> None:
        self._repository.messages.say(self._lease, self._study.id, text, kind=kind)

    def _tune(self, setup: StudySetup) -> Verdict:
        self._signals.check()
        facts = dataclasses.asdict(setup.facts)
        self._check_same(facts)
        self._check_devices(setup.launcher)
        self._say_where(setup.launcher)
        self._repository.claims.record_facts(self._lease, self._study.id, facts)
        job = StudyContext(
            self._study,
            setup,
            self._lease,
            self._repository,
            self._repository.environments.record(self._lease, setup.launcher.site.environment),
        )
        resolved = LargestBatch(job, self._signals.check).resolved()
        # Its time has advanced; its settings stay those of the setup, and new ones apply later.
        elapsed = self._repository.studies.named(self._study.name).elapsed
        study = dataclasses.replace(self._study, elapsed=elapsed)
        context = dataclasses.replace(job, setup=setup.with_settings(resolved), study=study)
        tuner = Tuner(context, self._signals)
        verdict = tuner.run()
        tuner.dashboard.show(verdict)
        context.record_standing()
        if verdict.trial is not None:
            self._export(verdict, setup.launcher)
        return verdict

    def _check_same(self, facts: Mapping[str, Any]) -> None:
        """Check that a study which has figures goes on with such ranks as it had."""
        stored = self._study.facts or {}
        known = {name: stored[name] for name in _SAME if stored.get(name) is not None}
        before = {**facts, **known}
        if _ranks_on(before) == _ranks_on(facts):
            return
        if self._repository.attempts.count_measured(self._study.id):
            raise LauncherError(
                f"its figures are of {_ranks_on(before)}, and here are {_ranks_on(facts)}: it goes on "
                "where it has the same"
            )

    def _check_devices(self, launcher: Launcher) -> None:
        """Check that a study of one machine goes on with such CUDA devices as it has begun on.

        On a cluster it is pinned to them.
        """
        before = self._bound_to()
        if self._spec.launcher.is_shared or not launcher.site.on_device or not before:
            return
        if others := other_devices(before, launcher.site.environment):
            raise LauncherError(
                f"its figures are of {others}: it goes on where it has the same; to measure here, give "
                "it another name"
            )

    def _bound_to(self) -> dict[str, Any] | None:
        """Return the environment that the study is bound to; None before it has run.

        That is the one of its measurements, or before these of its runs for `micro_batch: max`.
        """
        attempts = self._repository.attempts.of(self._study.id)
        fits = [one for one in attempts if one.purpose == Purpose.FIT and one.recorded]
        last = self._repository.environments.of_attempt(fits[-1].id) if fits else None
        return self._measured_in() or last

    def _say_where(self, launcher: Launcher) -> None:
        site = launcher.site
        what = site.devices[0] if site.on_device else site.environment["cpu"]
        may_write = _MAY_WRITE if self._spec.workload.may_write else ""
        self._say(
            f"{counted(launcher.ranks, 'rank')} on {what}, {counted(len(launcher.slots), 'trial')} at a "
            f"time ({self._spec.launcher.kind}).{may_write}"
        )
        if remote := remote_stores.warning(remote_stores.named_by(self._spec)):
            self._say(f"Note: {remote}.")

    def _export(self, verdict: Verdict, launcher: Launcher) -> None:
        content = publish.content_of(
            verdict,
            self._study,
            self._spec,
            text=text_of(verdict),
            world_size=launcher.ranks,
            environment=self._measured_in() or launcher.site.environment,
        )
        assert verdict.trial is not None
        self._repository.recommendations.record(self._lease, self._study.id, verdict.trial, content)
        target = Path(self._study.workdir) / self._spec.export
        if verdict.trial == BASELINE and writing.is_of_another(target, self._study.name):
            self._not_written(
                target, "it belongs to another study, and this one recommends no change"
            )
            return
        if writing.not_ours(target):
            self._not_written(target, "autotune has not written what is there now")
            return
        try:
            writing.write(target, content)
        except OSError as error:
            self._not_written(target, str(error.strerror))

    def _measured_in(self) -> dict[str, Any] | None:
        """Return the environment of the measurements.

        By now the launcher may have agents elsewhere.
        """
        attempts = self._repository.attempts.of(self._study.id)
        return measured_in(attempts, self._repository.environments.of_attempt)

    def _not_written(self, target: Path, why: str) -> None:
        elsewhere = f"`autotune export {self._study.name} --output FILE` writes it elsewhere"
        self._say(f"{target} is not written ({why}); {elsewhere}.")


def _ranks_on(facts: Mapping[str, Any]) -> str:
    """Return '2 ranks on cuda 9.0'."""
    capability = ".".join(map(str, facts.get("capability") or ()))
    return f"{counted(facts['world_size'], 'rank')} on {facts['device']} {capability}".rstrip()
