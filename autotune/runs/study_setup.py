"""Requests, limits and facts that follow from a study's settings."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.config import StudySpec
from autotune.config.workload_kinds import FactoryWorkload
from autotune.errors import BadInput
from autotune.measurement.measure import Measure, PowerLimit
from autotune.measurement.policy import MEASUREMENT
from autotune.measurement.step_series import OnsetBound
from autotune.measurement.stop_rule import Limits
from autotune.paths import compiled
from autotune.runs.policy import RUNS
from autotune.search.space import Space
from autotune.worker import interpreter
from autotune.worker.files import COMPILER_CACHES
from autotune.worker.protocol import BlockPlan, Timeouts, TrialRequest
from launchers import Busy, Launcher, Resources, Site, Slot, Tenant, refuse
from search_spaces import Facts, infeasible
from search_spaces.constraints import has_tf32, runs_slowly

_INDUCTOR_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_TF32_VARIABLE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
_NOTHING_SEEN = OnsetBound()

OpenLauncher = Callable[[StudySpec, Path, Busy, Tenant], Launcher]
"""Function that opens the launcher of a study, whose agents print into the folder."""


def launcher_of(
    spec: StudySpec, folder: Path, busy: Busy = refuse, tenant: Tenant | None = None
) -> Launcher:
    """Return the opened launcher of a study.

    Its agents print into the folder, and compiled code is kept there for later trials.

    Raises:
        LauncherError: the resources are not available.
    """
    env = {**_caches(spec, folder), **spec.env}
    options = spec.workload.interpreter_options(spec.resources.known_workers)
    if options is not None:
        env |= interpreter.agent_variables(options)
    return spec.launcher.open(resources(spec), str(folder), busy, env, tenant)


def _caches(spec: StudySpec, folder: Path) -> dict[str, str]:
    """Name the folders of compiled code. Where trials may write, the user's own ones serve as well."""
    ours = {name: str(compiled(folder) / below) for name, below in COMPILER_CACHES.items()}
    if spec.workload.discards_writes:
        return ours
    return {_INDUCTOR_CACHE: os.environ.get(_INDUCTOR_CACHE, ours[_INDUCTOR_CACHE])}


def resources(spec: StudySpec) -> Resources:
    """Return the resources of one trial of a study."""
    wanted = spec.resources
    return Resources(
        workers=spec.workload.ranks(wanted.known_workers),
        gpus_per_worker=wanted.gpus_per_worker,
        cpus_per_worker=wanted.cpus_per_worker,
        slots=wanted.max_concurrent_trials,
        device=wanted.device,
        nodes=wanted.nodes,
        shares_cpus=spec.workload.shares_cpus and "cpus_per_worker" not in wanted.model_fields_set,
        reads_energy=spec.objective.reads_energy,
    )


class StudySetup:
    """A study on a launcher: what may be tried there, and how each run is requested.

    Attributes:
        facts: facts for the constraints, by the devices of the first slot.
    """

    def __init__(self, spec: StudySpec, launcher: Launcher) -> None:
        self.spec = spec
        self.launcher = launcher
        self.facts = dataclasses.replace(
            facts_of(launcher.site),
            global_batch_size=spec.global_batch_size(launcher.ranks),
            rules=spec.rules,
            slow_pairs=runs_slowly(spec.full_baseline()),
            own_ll128=spec.full_baseline()["nccl_proto"] == "LL128",
        )

    @property
    def baseline(self) -> dict[str, Any]:
        """The baseline, a value for every knob."""
        return self.spec.full_baseline()

    def with_settings(self, spec: StudySpec) -> "StudySetup":
        """Return this setup with other settings."""
        return StudySetup(spec, self.launcher)

    def space(self) -> Space:
        """Return the space of configurations that may be tried.

        Raises:
            BadInput: a value must be found first.
        """
        if self.spec.asks_for_largest:
            raise BadInput(
                "search_space.micro_batch: only `autotune start` finds max; give numbers here"
            )
        return Space(self.spec.values(), self.baseline, self.facts, self.launcher.refusal)

    def check_energy(self) -> None:
        """Check that the energy of trials can be read, where the objective needs it.

        Raises:
            BadInput: it cannot; the message has the reason.
        """
        field, launcher = self.spec.objective.energy_setting, self.launcher
        if not field:
            return
        problem = launcher.site.energy_unreadable
        if not problem and not launcher.site.on_device and len(launcher.slots) > 1:
            problem = (
                f"{len(launcher.slots)} trials at a time share the processors, whose energy is that of "
                "all; say `resources: {max_concurrent_trials: 1}`"
            )
        if problem:
            raise BadInput(
                f"objective.{field} needs the energy of each block, and on "
                f"{launcher.site.environment['host']} {problem}; or take metric: samples_per_second "
                "without power_limit"
            )

    def check_baseline(self) -> None:
        """Check that the baseline can run here, and be measured.

        Raises:
            BadInput: it cannot; the message has the reasons.
        """
        self.check_energy()
        refusals = (self.launcher.refusal(self.baseline), self._relaxation())
        problems = [*infeasible(self.baseline, self.facts), *filter(None, refusals)]
        if problems:
            raise BadInput(
                "the baseline cannot run here: " + "; ".join(problems) + "; change `baseline`"
            )

    @property
    def _is_strict(self) -> bool:
        """Return whether the user's own settings may not let fp32 products run in TF32."""
        return self.baseline["precision"] == "fp32" and has_tf32(self.facts)

    def _relaxation(self) -> str:
        """Return why a factory's fp32 products run in TF32 today; empty if they do not."""
        given = {**os.environ, **self.spec.env}.get(_TF32_VARIABLE)
        built = isinstance(self.spec.workload, FactoryWorkload)
        if not (built and self._is_strict and given == "1"):
            return ""
        return (
            f"{_TF32_VARIABLE}=1, as images of NVIDIA set it, lets fp32 products run in TF32, and "
            "precision is fp32: say `baseline: {precision: tf32}`, or switch it off by "
            f'`env: {{{_TF32_VARIABLE}: "0"}}`'
        )

    def memory_of_rank(self) -> float | None:
        """Return the bytes that a rank has for itself; None on the CPU.

        On the CPU the limit counts what a rank has requested, and its peak what it has touched.
        """
        site = self.launcher.site
        if not site.on_device:
            return None
        own = site.bytes_of_rank
        return min(own, self.spec.resources.memory_per_worker or own)

    def request(
        self, slot: Slot, knobs: dict[str, Any], *, name: str, workdir: Path, log_dir: Path
    ) -> TrialRequest:
        """Return a timed trial of this configuration, ready to launch on this slot.

        Args:
            name: unique among all trials of the launcher.
            workdir: folder in which the ranks run, and from which they import.
        """
        spec = self.spec
        asked = TrialRequest(
            trial=name,
            factory="",
            args={},
            knobs=knobs,
            world_size=self.launcher.ranks,
            seed=spec.seed,
            device=slot.device,
            devices_per_rank=slot.devices_per_rank,
            cpus_per_rank=spec.resources.cpus_per_worker,
            memory_per_rank=spec.resources.memory_per_worker,
            blocks=self._blocks(),
            timeouts=_timeouts(spec, knobs),
            workdir=str(workdir),
            import_paths=tuple(dict.fromkeys([str(workdir), spec.folder or str(workdir)])),
            env=spec.env,
            log_dir=str(log_dir),
            may_write=not spec.workload.discards_writes,
            alone=len(self.launcher.slots) == 1,
            strict_fp32=self._is_strict,
        )
        return spec.workload.request(asked, spec.study_knobs)

    def _blocks(self) -> BlockPlan:
        """Return the blocks as configured, if that leaves enough of them for warm-up and timing."""
        wanted = self.spec.measurement
        wished, fewest, given = wanted.block_seconds, wanted.min_steps, wanted.model_fields_set
        if self._on_device and "block_seconds" not in given:
            energy = self.spec.objective.of_energy
            wished = RUNS.energy_block if energy else RUNS.block_on_device
        if self._on_device and "min_steps" not in given:
            fewest = RUNS.steps_on_device
        seconds = min(wished, wanted.max_measure_time / MEASUREMENT.fewest_blocks)
        several = min(wanted.warmup, wanted.max_measure_time) / MEASUREMENT.steady_blocks
        longest = max(RUNS.longest_block * seconds, several)
        by_energy = self.spec.objective.of_energy or self.spec.objective.power_limit is not None
        return BlockPlan(seconds, fewest, longest=longest, leads_in=not by_energy)

    @property
    def least_timed(self) -> float:
        """Return the seconds of training that the shortest timed run takes."""
        return (MEASUREMENT.steady_blocks + MEASUREMENT.fewest_blocks) * self._blocks().seconds

    @property
    def longest_timed(self) -> float:
        """Return the seconds of training that the longest timed run takes."""
        return self.spec.measurement.warmup + self.spec.measurement.max_measure_time

    @property
    def _is_quick(self) -> bool:
        """Return whether the warm-up takes no more blocks than show that it is over.

        It does if the study sets no length: a process that starts within seconds is measured for
        about two.
        """
        return self._on_device and "warmup" not in self.spec.measurement.model_fields_set

    @property
    def _on_device(self) -> bool:
        """True if trials run on CUDA devices."""
        return self.launcher.site.on_device

    def search_limits(
        self,
        *,
        incumbent_low: float = 0.0,
        sigma_run: float = 0.0,
        run_df: float = math.inf,
        settling: OnsetBound = _NOTHING_SEEN,
    ) -> Limits:
        """Return the limits of a trial of the search.

        Args:
            incumbent_low: lower bound of the best rate so far; 0 switches racing off.
            sigma_run: relative standard deviation between runs, as far as known.
            run_df: degrees of freedom of `sigma_run`.
            settling: bound on later steps from the first ones.
        """
        limits = self._limits(self.spec.measurement.search_ci_half_width, incumbent_low, sigma_run)
        return dataclasses.replace(limits, settling=settling, run_df=run_df)

    @property
    def power_limit(self) -> PowerLimit | None:
        """Limit of the power of the devices of a trial; None: there is none."""
        limit, site = self.spec.objective.power_limit, self.launcher.site
        devices = site.ranks * site.devices_per_rank if site.on_device else site.nodes
        return None if limit is None else PowerLimit(limit, devices)

    @property
    def interleaved_block_seconds(self) -> float:
        """Seconds of a block of interleaved runs: as long as energy takes to be told, if it counts."""
        if self.spec.objective.of_energy and self._on_device:
            return RUNS.energy_block
        return RUNS.interleaved_block

    def confirm_limits(self, *, sigma_run: float) -> Limits:
        """Return the limits of a run in a round of comparison."""
        limits = self._limits(self.spec.measurement.confirm_ci_half_width, 0.0, sigma_run)
        return dataclasses.replace(limits, fewest=RUNS.blocks_for_proof, proves=True)

    def _limits(self, precision: float, incumbent_low: float, sigma_run: float) -> Limits:
        return Limits(
            warmup=self.spec.measurement.warmup,
            longest=self.spec.measurement.max_measure_time,
            precision=precision,
            measure=Measure.of(self.spec),
            incumbent_low=incumbent_low,
            sigma_run=sigma_run,
            warm_blocks=MEASUREMENT.steady_blocks if self._is_quick else math.inf,
            long_step=self._blocks().longest / self._blocks().min_steps,
            of_reports=not self.spec.workload.observable,
        )


def longest_silence(spec: StudySpec) -> float:
    """Return the seconds for which nothing may come of a run that is well.

    That is its start, or a block of steps and the step after it.
    """
    modes = {spec.full_baseline()["compile"], *spec.values().get("compile", ())}
    timeouts = [_timeouts(spec, {"compile": mode}) for mode in modes]
    longest = spec.measurement.max_measure_time
    return max(max(one.startup, longest + one.step) for one in timeouts)


def _timeouts(spec: StudySpec, knobs: Mapping[str, Any]) -> Timeouts:
    """Return the timeouts of the first step and of later ones.

    They are longer for a trial that compiles, but a small part of the study's time. Later steps
    compile, too: those with a shorter last batch, for one.
    """
    asked = spec.measurement
    longest = RUNS.hang_share * (spec.budget.wall_time or math.inf)
    startup, step = (
        max(usual, min(usual * _compilation(knobs), longest))
        for usual in (asked.startup_timeout, asked.step_timeout)
    )
    return Timeouts(startup, step)


def _compilation(knobs: Mapping[str, Any]) -> float:
    """Return the factor by which compilation may lengthen a trial's start, or a step."""
    mode = str(knobs["compile"])
    if mode == "none":
        return 1.0
    if mode.startswith("max-autotune"):
        return RUNS.startup_autotuning
    return RUNS.startup_compiling


def facts_of(site: Site) -> Facts:
    """Return the facts for the constraints that follow from where trials run."""
    return Facts(
        device=site.device,
        world_size=site.ranks,
        backend=site.backend,
        capability=site.capability,
        nodes=site.nodes,
    )
