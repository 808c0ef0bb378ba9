"""Survey of a launch command: the parts of its script, and the settings for its knobs."""

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.analysis.first_updates import grows_with_gradient
from autotune.analysis.wording import counted
from autotune.config import StudySpec, remote_stores
from autotune.errors import BadInput
from autotune.runs.one_off import OneOffRuns
from autotune.runs.study_setup import StudySetup, facts_of, launcher_of
from autotune.standalone import doctor, flags, interpreters, named_options, outside
from autotune.standalone.batch_settings import BatchSettings, find_batch_settings
from autotune.standalone.lasting import LastingMonitor, in_moments, too_short
from autotune.standalone.launched import COMMAND_FIELD, Launched
from autotune.standalone.outside import Outside
from autotune.standalone.own_options import (
    OwnOptions,
    SearchTime,
    find_own_options,
    worth_trying,
)
from autotune.standalone.script_runs import TAIL_BYTES, ScriptRuns, reported, slower_start
from autotune.worker.cgroup import usable_cpus
from autotune.worker.protocol import PYTHON, SPAWN
from autotune.worker.survey_result import Option, SurveyResult
from search_spaces import Facts
from search_spaces.batch import MICRO_BATCH

_LINES_SHOWN = 20
_LEAST_FOR_OPTIONS, _SHARE_FOR_OPTIONS = 60.0, 2.0
"""Seconds that runs with knobs may take, and as a multiple of those before them."""


@dataclass(frozen=True)
class Findings:
    """Result of a survey.

    Attributes:
        seen: training of the unchanged command.
        workers: ranks that ran it.
        device: 'cpu' or 'cuda'.
        launched: parsed command, with the ranks that its script starts.
        facts: of this machine, for constraints.
        batch: settings of its micro-batch and accumulation.
        own: its options that turn other knobs.
        outside: knobs that act on its root module without an option.
    """

    seen: SurveyResult
    workers: int
    device: str
    launched: Launched
    facts: Facts
    batch: BatchSettings = field(default_factory=BatchSettings)
    own: OwnOptions = field(default_factory=OwnOptions)
    outside: Outside = field(default_factory=Outside)

    @property
    def flags(self) -> dict[str, str]:
        """Return knob -> setting that was seen to change it."""
        return self.batch.settings_by_knob

    @property
    def grows_with_accumulation(self) -> bool:
        """Return whether updates grow with the accumulation steps, as the script sums its losses."""
        return self.batch.sums and grows_with_gradient(self.seen.optimizer)


@dataclass(frozen=True)
class Allowed:
    """Limits of a script's runs.

    Attributes:
        startup: seconds that a start may take; None: as for any study.
        may_write: whether they may change files.
    """

    startup: float | None = None
    may_write: bool = False


def survey(
    launched: Launched,
    workdir: Path,
    say: Callable[[str], None],
    write: Callable[[Findings], StudySpec],
    allowed: Allowed,
) -> StudySpec:
    """Run a script for a few steps, and again for each setting that may change a knob.

    Then run the baseline of the study that is written of it, as `start` would.

    Args:
        launched: parsed command.
        workdir: its working directory.
        say: called with progress messages, as a script may take minutes to start.
        write: returns a study of the findings; writes nothing to disk.
        allowed: limits of the runs.

    Raises:
        BadInput: it cannot be run, no training was seen, or the study could not start.
        LauncherError: there is no place for it.
    """
    if not launched.is_module and not (workdir / launched.target).exists():
        raise BadInput(f"{launched.target}: no such file in {workdir}")
    interpreters.check(launched)
    spec = _spec(launched, allowed)
    if remote := remote_stores.warning(remote_stores.named_by(spec)):
        say(f"Note: {remote}.")
    with (
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
        launcher_of(spec, Path(folder)) as launcher,
    ):
        own = one_device(launched.launch, launcher.site.device, len(launcher.slots))
        for notice in [*launcher.notices(), *own]:
            say(f"Note: {notice}")
        runner = ScriptRuns(
            OneOffRuns(StudySetup(spec, launcher), Path(folder), workdir), launched, workdir, say
        )
        seen = runner.at({})
        if not seen.spawns:
            return _study_of(seen, runner, write)
    say(f"{launched.target} starts {counted(seen.spawns, 'rank')} by {SPAWN}.")
    return survey(
        dataclasses.replace(launched, launch=SPAWN, workers=seen.spawns),
        workdir,
        say,
        write,
        allowed,
    )


def one_device(launch: str, device: str, slots: int) -> list[str]:
    """Return a notice if a script that takes all devices by itself would be looked at on one.

    Args:
        launch: how its ranks are started.
        device: 'cpu' or 'cuda'.
        slots: trials of one rank that run at a time.
    """
    if launch != PYTHON or device != "cuda" or slots < 2:
        return []
    return [
        f"this machine has {slots} CUDA devices, and each trial gets one of them; for a script that "
        "takes all by itself (DataParallel, Lightning's devices: auto, a process for each) that is "
        f"another job. Start it by `torchrun --nproc-per-node {slots}` to tune it on all."
    ]


def _study_of(
    seen: SurveyResult, runner: ScriptRuns, write: Callable[[Findings], StudySpec]
) -> StudySpec:
    """Return the study of a script that was seen to train, once its baseline has run."""
    launched, one_off, began = runner.launched, runner.one_off, time.monotonic()
    launcher = one_off.setup.launcher
    seen = _with_settings(seen, launched, runner.workdir)
    _check(seen, runner)
    found = find_batch_settings(runner.at, seen, launcher.ranks, runner.say)
    seen, found = without_guess(seen, found)
    facts = facts_of(launcher.site)
    taken = time.monotonic() - began + runner.usual
    searching = SearchTime(_seconds_for_trying(taken), runner.usual)
    own = _own_options(runner, seen, facts, _besides(found, seen), searching)
    acting = _outside(runner, seen, facts, own, searching)
    if found.columns:
        seen = dataclasses.replace(seen, micro_batch=seen.columns)
    seen = of_all_nodes(seen, found, launched.nodes)
    workers, device = launcher.ranks * launched.nodes, launcher.site.device
    study = write(Findings(seen, workers, device, launched, facts, found, own, acting))
    if launched.nodes == 1:
        _check_start(one_off.of(study), launched, seen, runner.say)
    return study


def without_guess(seen: SurveyResult, found: BatchSettings) -> tuple[SurveyResult, BatchSettings]:
    """Drop samples that were counted by what a model returns, unless a setting was seen to turn them."""
    if not seen.returned or MICRO_BATCH in found.settings_by_knob or found.keeps_global_batch:
        return seen, found
    return dataclasses.replace(seen, micro_batch=0), BatchSettings(doubts=found.doubts)


def _own_options(
    runner: ScriptRuns,
    seen: SurveyResult,
    facts: Facts,
    options: Sequence[Option],
    searching: SearchTime,
) -> OwnOptions:
    """Try the options that are named for a knob, within this time."""
    cpus = cpus_of_rank(runner.one_off.setup.launcher.ranks)
    tried = worth_trying(named_options.others(options, facts, cpus), seen, facts.device)
    found = find_own_options(runner.given, seen, tried, runner.say, searching)
    return found.fitting(facts.device)


def _outside(
    runner: ScriptRuns, seen: SurveyResult, facts: Facts, own: OwnOptions, searching: SearchTime
) -> Outside:
    """Try knobs that no option turns from outside, within this time."""
    wanted = outside.candidates(seen, facts)
    wanted = {knob: values for knob, values in wanted.items() if knob not in own.turned}
    return outside.find_outside(runner.under, wanted, searching)


def _seconds_for_trying(taken: float) -> float:
    """Return the seconds that further runs may take, after so many seconds."""
    return max(_LEAST_FOR_OPTIONS, _SHARE_FOR_OPTIONS * taken)


def _besides(found: BatchSettings, seen: SurveyResult) -> list[Option]:
    """Return the settings of a script that do not make up its batch."""
    batch = {*found.flags.values(), *(s for parts in found.in_proportion.values() for s in parts)}
    return [option for option in seen.options if option.flag not in batch]


def cpus_of_rank(workers: int) -> int:
    """Return the processors of this machine for each of its ranks."""
    return usable_cpus() // max(1, workers)


def _check_start(
    one_off: OneOffRuns, launched: Launched, seen: SurveyResult, say: Callable[[str], None]
) -> None:
    """Run the baseline of a study for as long as the shortest trial takes.

    Raises:
        BadInput: the study could not start.
    """
    say(f"Running {launched.target} once more, as the study will ...")
    with reported(say, lambda: one_off.files(doctor.BASELINE_RUN).tail(0, TAIL_BYTES)):
        judge = LastingMonitor(one_off.setup.least_timed)
        check = doctor.baseline_of(one_off, judge, in_moments)
    if check.level == "fail" and (taken := judge.ended_after):
        per_step, longest = judge.seconds_of_step(taken), one_off.setup.longest_timed
        raise BadInput(too_short(launched.target, taken, per_step, longest, seen.options))
    if check.level == "fail":
        raise BadInput(
            f"{launched.target} was seen to train, but a study of it could not start, so none is "
            f"written: {check.text}"
        )
    for finding in (check, *doctor.of_machine()):
        if finding.level == "warn":
            say(f"Note: {finding.name}: {finding.text}")


def _spec(launched: Launched, allowed: Allowed) -> StudySpec:
    startup = allowed.startup
    workload = {
        "module" if launched.is_module else "script": launched.target,
        "args": list(launched.args),
        "launch": launched.launch,
        "python_options": list(launched.options),
        "may_write": allowed.may_write,
    }
    ranks = launched.workers_per_node  # a survey of one node stands for all
    return StudySpec.model_validate(
        {
            "name": "survey",
            "workload": workload,
            "resources": {} if ranks is None else {"workers": ranks},
            "search_space": {"cpu_threads": [0]},
            "env": launched.env,
            "measurement": {} if startup is None else {"startup_timeout": startup},
        }
    )


def of_all_nodes(seen: SurveyResult, found: BatchSettings, nodes: int) -> SurveyResult:
    """Return the survey of one rank of the whole job, from ranks of one node.

    Args:
        seen: training of the ranks of one node.
        found: settings of its batch.
        nodes: of the job.

    Raises:
        BadInput: what the ranks share is not the same for each of them there.
    """
    parts = {}
    for knob in found.shared_by_ranks:
        parts[knob], rest = divmod(getattr(seen, knob), nodes)
        if rest:
            raise BadInput(
                f"{knob} is {getattr(seen, knob)} for the ranks of one node, and what makes it up is "
                f"divided by the ranks of all {nodes}: give a number that leaves no remainder there"
            )
    return dataclasses.replace(seen, **parts)


def _with_settings(seen: SurveyResult, launched: Launched, workdir: Path) -> SurveyResult:
    """Return a survey with all settings that may give the script a number among its options."""
    found: list[Option] = []
    for file in seen.settings:
        try:
            text = (workdir / file).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        found += flags.fields(file, text, launched.args, launched.env)
    options = flags.settings_of(seen, launched.args, launched.env, found)
    return dataclasses.replace(seen, options=options)


def _check(seen: SurveyResult, runner: ScriptRuns) -> None:
    """See that a script trains, and for long enough.

    Raises:
        BadInput: it does not, with the reason.
    """
    launched, output = runner.launched, runner.output()
    if seen.failed:
        taken = counted(seen.steps, "optimizer step")
        raise BadInput(
            f"{launched.target} does not train here: {seen.ended} after {taken}. See that the command "
            f"runs by itself.{_printed(output)}"
        )
    if not seen.steps:
        longer = "" if seen.ended_by_itself else slower_start(runner.startup)
        raise BadInput(_without_step(seen, launched, output) + longer)
    if seen.ended_by_itself:
        longest = runner.one_off.setup.longest_timed
        raise BadInput(too_short(launched.target, seen.steps, None, longest, seen.options))


def _without_step(seen: SurveyResult, launched: Launched, output: str) -> str:
    how = seen.ended or "it never came to one"
    if seen.children and not seen.backwards:
        running = counted(seen.children, "process")
        return (
            f"{launched.target}: no optimizer step was seen ({how}), while {running} ran that it had "
            "started by multiprocessing. What trains there is not seen: have torchrun or "
            "torch.multiprocessing.spawn start its ranks, or tune its options as a command: write "
            f"study.yaml with {COMMAND_FIELD}."
        )
    idle = seen.ended_by_itself and not seen.backwards
    return (
        f"{launched.target}: no optimizer step of torch.optim was seen ({how}), and these are what is "
        "measured. A script that updates its parameters by itself can step an optimizer of torch.optim "
        "instead, such as SGD, or be tuned by its options alone, as a command: write study.yaml with "
        f"{COMMAND_FIELD}.{_printed(output) if idle else ''}"
    )


def _printed(output: str) -> str:
    lines = output.rstrip().splitlines()[-_LINES_SHOWN:]
    if not any(map(str.strip, lines)):
        return " Rank 0 has printed nothing."
    return "\n".join([" Rank 0 has printed last:", *lines])
