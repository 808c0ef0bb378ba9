"""Checks of this machine: needs of a study, and sources of wrong figures."""

import dataclasses
import functools
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.analysis.wording import counted
from autotune.config import StudySpec, remote_stores
from autotune.config.mistakes import LARGEST
from autotune.errors import AutotuneError, DevicesTaken, StorageError
from autotune.runs.monitors import FitMonitor
from autotune.runs.one_off import OneOffRuns, Shape, why_not
from autotune.runs.request_shapes import reporting_each_step, surveyed
from autotune.runs.study_setup import StudySetup, launcher_of
from autotune.standalone.own_options import shows
from autotune.worker.node.reverse_lookup import SOON_SECONDS, NameLookup, as_torch_asks
from autotune.worker.node.sandbox import OVERLAY
from autotune.worker.protocol import DEEPSPEED, PLAIN, PYTHON, SPAWN, BlockReport
from autotune.worker.survey_result import SurveyResult
from launchers import Launcher, Resources, section_of
from launchers.sections import PACKAGES
from search_spaces import CATALOGUE, KnobValue, infeasible
from search_spaces.batch import BATCH_KNOBS, global_batch_size, split_otherwise
from search_spaces.constraints import broken
from search_spaces.knob import written
from storage import Database
from storage.engines import explain_sqlite_error
from storage.urls import parse

MOST_SECONDS = 3.0
"""Longest wait for the lookup: beyond it, the result is the same."""
_PACKAGES = ("torch", "optuna", "sqlalchemy")
_OPTIONAL = {
    **PACKAGES,
    "optuna-dashboard": "autotune dashboard",
    "pandas": "autotune export --trials",
}
"""Package -> the only feature that needs it."""
BASELINE_RUN = "doctor"
"""Name of the run of the baseline; names of other runs begin with it."""
_HERE = section_of("local")
_LEAST_SHARED_MEMORY = 1 << 30
_THREADS = "OMP_NUM_THREADS"
_BUSY = 0.5
_COMPILED_AGAIN = 3
"""Number of last steps that all compile; after the second shape graphs are dynamic."""


def judged(address: str) -> tuple[bool, str]:
    """Return whether the lookup is fast enough, and a description with advice."""
    asking = NameLookup(address)
    asking.join(MOST_SECONDS)
    seconds = min(asking.seconds, MOST_SECONDS)
    more = " or more" if seconds >= MOST_SECONDS else ""
    text = f"the name of {address} is looked up in {seconds:.2f} s{more}"
    if seconds < SOON_SECONDS:
        return True, text
    return False, (
        f"{text}: torch asks for it as ranks meet, so that every launch of them waits for the name "
        "server; with PyTorch 2.9 or newer only agents that start do, if it never answers. "
        f"Have the line `{as_torch_asks(address)} NAME` in /etc/hosts for each node on all of them "
        "(torch asks for IPv4 addresses within IPv6, which lines without `::ffff:` do not answer), or "
        "`options timeout:1 attempts:1` in /etc/resolv.conf"
    )


class _Doubt(AutotuneError):
    """Finding that a check runs, but something is wrong with it."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check; `level` is ok, warn or fail."""

    name: str
    level: str
    text: str


def examine(spec: StudySpec | None, storage: str) -> Iterator[CheckResult]:
    """Yield the results of all checks, cheap ones first.

    Args:
        spec: of a study that is to run; None checks the machine alone.
        storage: URL to try.
    """
    yield _system()
    yield _packages()
    yield from of_machine()
    yield _storage(storage)
    yield from _security(spec)
    yield from _names(spec)
    yield from _launched(spec)


def _system() -> CheckResult:
    ok = platform.system() == "Linux" and Path("/proc/self/stat").exists()
    text = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    advice = "" if ok else "; trials need Linux with /proc"
    return CheckResult("system", "ok" if ok else "fail", text + advice)


def _packages() -> CheckResult:
    found, missing = [], []
    for name in (*_PACKAGES, *_OPTIONAL):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"; without {name}: no {_OPTIONAL.get(name, 'study')}")
    return CheckResult("packages", "ok", ", ".join(found) + "".join(missing))


def shared_memory(folder: Path) -> CheckResult:
    """Check that there is enough of what NCCL and loader workers share memory by.

    Args:
        folder: where that is, /dev/shm.
    """
    free = shutil.disk_usage(folder).free if folder.is_dir() else 0
    ok = free >= _LEAST_SHARED_MEMORY
    text = f"{folder} has {free / 2**30:.1f} GiB free" if free else f"there is no room in {folder}"
    if not ok:
        text += "; NCCL and loader workers want 1 GiB: start the container with --shm-size"
    return CheckResult("shared memory", "ok" if ok else "warn", text)


def watch_of_devices() -> CheckResult:
    """Check that ranks in this Python can read the state of NVIDIA devices."""
    try:
        importlib.import_module("pynvml")
    except ImportError:
        text = (
            "without nvidia-ml-py throttling and other processes on the GPUs are not watched: "
            "pip install nvidia-ml-py"
        )
        return CheckResult("watch of GPUs", "warn", text)
    text = "throttling and other processes are seen, where the driver tells them"
    return CheckResult("watch of GPUs", "ok", text)


def _load() -> CheckResult:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    text = f"{cores} cores, load {load:.1f}"
    if load > _BUSY * cores:
        return CheckResult("load", "warn", text + "; other work disturbs what trials measure")
    return CheckResult("load", "ok", text)


def _storage(url: str) -> CheckResult:
    return _tried("storage", lambda: _opened(url))


def _opened(url: str) -> str:
    """Open a storage; where its SQLite file is missing, make one beside it, which is removed."""
    parsed = parse(url)
    path = Path(str(parsed.database))
    if parsed.get_backend_name() != "sqlite" or path.exists():
        database = Database(url)
        database.check_writable()
        return f"{database} can be read and written"
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            Database(str(parsed.set(database=f"{folder}/{path.name}")))
    except OSError as error:
        raise StorageError(f"storage {parsed}: {explain_sqlite_error(error, path)}") from None
    return f"{parsed} is not there yet, and can be made"


def _security(spec: StudySpec | None) -> Iterator[CheckResult]:
    if spec and (found := spec.launcher.security(os.environ)):
        safe, text = found
        yield CheckResult(f"{spec.launcher.kind} security", "ok" if safe else "warn", text)


def _names(spec: StudySpec | None) -> Iterator[CheckResult]:
    if address := (spec.launcher if spec else _HERE).meeting_host:
        soon, text = judged(address)
        yield CheckResult("name server", "ok" if soon else "warn", text)


def _launched(spec: StudySpec | None) -> Iterator[CheckResult]:
    kind = (spec.launcher if spec else _HERE).kind
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            launcher_of(spec, Path(folder)) if spec else _one_rank(folder) as launcher,
        ):
            site = launcher.site
            text = f"{len(launcher.slots)} slot(s) on {site.device}: {', '.join(site.devices)}"
            yield CheckResult(f"{kind} launcher", "ok", text)
            for news in launcher.notices():
                yield CheckResult("nodes", "warn", news)
            if site.on_device:
                yield watch_of_devices()
            if spec:
                yield from (
                    CheckResult("process", "ok", text) for text in comparison(spec, launcher)
                )
                one_off = OneOffRuns(StudySetup(spec, launcher), Path(folder), Path.cwd())
                baseline = baseline_of(one_off)
                yield baseline
                yield from _protection(one_off)
                if spec.workload.may_ignore_knobs and baseline.level != "fail":
                    yield from _knobs(one_off, settles=baseline.level == "ok")
    except DevicesTaken as error:
        yield CheckResult(f"{kind} launcher", "warn", str(error))
    except AutotuneError as error:
        yield CheckResult(f"{kind} launcher", "fail", str(error))


def comparison(spec: StudySpec, launcher: Launcher) -> Iterator[str]:
    """Compare a trial's process with the job's, for one script; the full table is in docs/scripts.md.

    Yield a line for each difference or likeness; none where no launcher of scripts is followed.
    """
    launch = spec.workload.launched_by(launcher.ranks)
    if launch is None:
        return
    site, ranks = launcher.site, launcher.site.ranks_per_node
    yield f"started as by {_started(spec, launch, ranks)}, with {_threads(spec, launch, ranks)}"
    yield (
        "otherwise than in the job: forked from a python that has torch imported, seeded with "
        f"{spec.seed}, its output in the trial's log, ended after the steps that are timed"
        + ("" if launch == PYTHON else ", its ranks meeting at a store of the trial")
    )
    if launch in PLAIN and site.on_device:
        yield (
            f"sees {counted(len(site.devices), 'device')}, those of its slot: a script "
            "that takes all devices by itself (DataParallel) takes no more than these"
        )


def _started(spec: StudySpec, launch: str, ranks: int) -> str:
    if launch == PYTHON:
        given = spec.workload.interpreter_options(ranks) or ()
        options = "".join(f" {option}" for option in given)
        return f"`python{options}`: one process, no variable calls it a rank"
    if launch == SPAWN:
        return f"`python`, and each of {counted(ranks, 'rank')} as by {launch}: no variable calls it one"
    return f"{launch}: {counted(ranks, 'rank')} a node with its variables"


def _threads(spec: StudySpec, launch: str, ranks: int) -> str:
    if threads := spec.env.get(_THREADS, os.environ.get(_THREADS)):
        return f"{_THREADS}={threads} as you have it"
    if launch in (*PLAIN, DEEPSPEED) or ranks == 1:
        return "as many threads as torch takes by itself"
    return f"{_THREADS}=1 as torchrun sets it"


def _one_rank(folder: str) -> Launcher:
    wanted = Resources(workers=1, gpus_per_worker=None, cpus_per_worker=1, slots=None)
    return _HERE.open(wanted, folder)


def baseline_of(
    one_off: OneOffRuns, judge: FitMonitor | None = None, shape: Shape = reporting_each_step
) -> CheckResult:
    """Check that the baseline of a study trains.

    Args:
        judge: of the run; None: it takes a few steps.
        shape: of the run, with reports of single steps or of moments.
    """
    return _tried("baseline", lambda: _baseline(one_off, judge or FitMonitor(), shape))


def of_machine() -> Iterator[CheckResult]:
    """Check for disturbances of any study on this machine; nothing is run."""
    yield shared_memory(Path("/dev/shm"))
    yield _load()


def _baseline(one_off: OneOffRuns, judge: FitMonitor, shape: Shape) -> str:
    """Build the workload and train it for a few steps."""
    one_off.setup.check_baseline()
    result = one_off.run(BASELINE_RUN, one_off.setup.baseline, judge, shape)
    if problem := why_not(result):
        raise AutotuneError(problem)
    if compiled := _compiled_again([seen.block for seen in judge.seen]):
        raise _Doubt(compiled)
    size = f"{result.peak_bytes / 2**20:,.0f} MiB"
    return f"built and trained in {result.wall_seconds:.1f} s, at most {size} per rank"


def _protection(one_off: OneOffRuns) -> Iterator[CheckResult]:
    """Yield how the user's files were protected from the baseline."""
    workload = one_off.setup.spec.workload
    if text := remote_stores.warning(remote_stores.named_by(one_off.setup.spec)):
        yield CheckResult("remote files", "warn", text)
    if not (workload.discards_writes or workload.may_write):
        text = (
            "what the workload writes is really written; scripts and commands alone are protected"
        )
        yield CheckResult("files", "ok", text)
        return
    if workload.may_write:
        yield CheckResult("files", "warn", "trials may change them: `workload.may_write` is true")
        return
    record = one_off.files(BASELINE_RUN).protection()
    if not record.is_file():
        return
    protection = json.loads(record.read_text())
    if protection["how"] == OVERLAY:
        text = "what trials write is discarded: they run under an overlay of all file systems"
        yield CheckResult("files", "ok", text)
        return
    yield CheckResult(
        "files",
        "ok",
        "what trials write in Python goes to copies, which are discarded; other programs and libraries "
        f"are refused to write (no overlay: {protection['why']})",
    )


def _compiled_again(blocks: Sequence[BlockReport]) -> str:
    """Return a warning if every one of the last steps compiles; empty if not.

    Args:
        blocks: of single steps.
    """
    last = [block.observed.get("compilations", 0) for block in blocks[-_COMPILED_AGAIN:]]
    if len(last) < _COMPILED_AGAIN or not all(last):
        return ""
    return (
        f"torch.compile has compiled anew in each of the last {len(last)} steps ({sum(last)} graphs): "
        "something changes from step to step that graphs hold fast, such as a shape or a number of "
        "Python; TORCH_LOGS=recompiles says what"
    )


def _knobs(one_off: OneOffRuns, *, settles: bool) -> Iterator[CheckResult]:
    """Check that each knob of the search takes effect in the script, by one value of each."""
    setup = one_off.setup
    # Alone, accumulation or a micro-batch cannot hold the global batch.
    free = dataclasses.replace(setup.facts, global_batch_size=None)
    for name, values in setup.spec.values().items():
        others = [value for value in values if value not in (setup.baseline[name], LARGEST)]
        variants = {value: _variant(setup, name, value) for value in others}
        refused = {value: infeasible(knobs, free) for value, knobs in variants.items()}
        other = next((value for value in others if not refused[value]), None)
        if other is not None:
            takes = functools.partial(_takes, one_off, name, variants[other], settles=settles)
            yield _tried(f"knob {name}", takes)
        elif LARGEST in values:
            yield CheckResult(
                f"knob {name}", "ok", "not tried: max is looked for as the study starts"
            )
        elif others:
            rule = next(broken(variants[others[0]], free), None)
            why = (
                f"`{rule.text}` allows no other value of it alone"
                if rule
                else refused[others[0]][0]
            )
            yield CheckResult(f"knob {name}", "ok", f"not tried: {why}")


def _variant(setup: StudySetup, name: str, value: KnobValue) -> dict[str, Any]:
    """Return the baseline with one knob changed, and what the script derives from it."""
    alone = {**setup.baseline, name: value}
    if name in BATCH_KNOBS and setup.spec.workload.keeps_global_batch:
        return split_otherwise(setup.baseline, name, value) or alone
    return alone


def _takes(one_off: OneOffRuns, name: str, knobs: dict[str, Any], *, settles: bool) -> str:
    """Run the script for a few steps with one knob at another value.

    Raises:
        AutotuneError: it does not take effect, or fails.
        _Doubt: it makes the script compile at every step.
    """
    value = knobs[name]
    judge = FitMonitor()
    result = one_off.run(f"doctor-{name}", knobs, judge, reporting_each_step)
    if why_not(result):
        if split := _held(one_off.setup, name, value):
            return _takes_together(one_off, name, split)
        raise AutotuneError(f"{written(value)}: {result.cause or result.state}")
    if settles and (compiled := _compiled_again([seen.block for seen in judge.seen])):
        raise _Doubt(f"{written(value)}: {compiled}")
    workload = one_off.setup.spec.workload
    setting = workload.passed_by(name, one_off.setup.spec.flags)
    if setting is None:
        return f"{written(value)} takes effect, from outside"
    shown = name in BATCH_KNOBS and workload.observable
    if shown and workload.keeps_global_batch:
        return _takes_together(one_off, name, knobs)
    counted = shown and not workload.samples  # its samples were counted in this run
    if counted or (workload.observable and _is_seen(one_off, name, knobs)):
        return f"{written(value)} takes effect, by {setting}"
    return _unseen(one_off, name, value)


def _unseen(one_off: OneOffRuns, name: str, value: KnobValue) -> str:
    spec = one_off.setup.spec
    by, noun = spec.workload.passed_by(name, spec.flags), spec.workload.noun
    return f"{written(value)} runs, by {by}; whether the {noun} heeds it is not seen"


def _held(setup: StudySetup, name: str, value: KnobValue) -> dict[str, Any] | None:
    """Return the baseline's global batch split otherwise, if a study holds it and maps both parts.

    A script may refuse one of the parts alone (DeepSpeed).
    """
    mapped = name in BATCH_KNOBS and {*BATCH_KNOBS} <= setup.spec.flags.keys()
    if not mapped or setup.facts.global_batch_size is None:
        return None
    return split_otherwise(setup.baseline, name, value)


def _takes_together(one_off: OneOffRuns, name: str, knobs: dict[str, Any]) -> str:
    """Survey the script with its global batch split otherwise.

    Raises:
        AutotuneError: it trains with other numbers, or fails.
    """
    run = f"doctor-{name}-together"
    if why := why_not(result := one_off.run(run, knobs, FitMonitor(), surveyed)):
        raise AutotuneError(f"{written(knobs[name])}: {result.cause or why}")
    seen = _surveyed(one_off, run)
    if seen is None:
        return _unseen(one_off, name, knobs[name])
    micro_batch, steps = (knobs[name] for name in BATCH_KNOBS)
    if (seen.micro_batch, seen.accumulation_steps) != (micro_batch, steps):
        raise AutotuneError(
            f"{written(knobs[name])}: seen were {seen.micro_batch} samples a micro-batch and "
            f"{seen.accumulation_steps} micro-batches a step, not {micro_batch} and {steps}"
        )
    return (
        f"{written(knobs[name])} takes effect, as {micro_batch} x {steps} of the same global batch"
    )


def _is_seen(one_off: OneOffRuns, name: str, knobs: dict[str, Any]) -> bool:
    """Return whether a survey shows the value of a knob.

    The micro-batch and the accumulation show in the samples of a step; a script with the sequence
    first has them in the columns.
    """
    if name not in BATCH_KNOBS and (name not in CATALOGUE or CATALOGUE[name].named is None):
        return False  # nothing would show it
    run = f"doctor-{name}-seen"
    if why_not(one_off.run(run, knobs, FitMonitor(), surveyed)):
        return False
    seen = _surveyed(one_off, run)
    if seen is None:
        return False
    if name not in BATCH_KNOBS:
        return shows(seen, name, knobs[name])
    wanted = global_batch_size(knobs, 1)
    return wanted in (seen.samples, seen.columns * seen.accumulation_steps)


def _surveyed(one_off: OneOffRuns, run: str) -> SurveyResult | None:
    """Return the survey of a run; None if it is on a node that shares no folder with this one."""
    file = one_off.files(run).survey(0)
    return SurveyResult.from_text(file.read_text()) if file.is_file() else None


def _tried(name: str, action: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, "ok", action())
    except _Doubt as doubt:
        return CheckResult(name, "warn", str(doubt))
    except AutotuneError as error:
        return CheckResult(name, "fail", str(error))
