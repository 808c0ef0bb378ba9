"""A look at the user's own launch command: what their script is made of, and what turns its knobs."""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import BadInput
from autotune.runs.judging import FitRun
from autotune.runs.plan import Plan, launcher_of
from autotune.runs.probe import Probe, Shape, why_not
from autotune.spec import StudySpec, arguments
from autotune.standalone import flags
from autotune.standalone.command import Launched
from autotune.trial.protocol import TrialRequest
from autotune.trial.surveyed import Surveyed

_STEPS = 4


@dataclass(frozen=True)
class Findings:
    """Of a script.

    Attributes:
        seen: as the command has it.
        workers: ranks that ran it.
        device: 'cpu' or 'cuda'.
        flags: knob -> the option that was seen to turn it.
        doubts: why other options are no knobs, a line each.
    """

    seen: Surveyed
    workers: int
    device: str
    flags: dict[str, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


def survey(launched: Launched, workdir: Path) -> Findings:
    """Run the script for a few steps, and again for each option that may turn a knob.

    Args:
        launched: the command.
        workdir: where it runs.

    Raises:
        BadInput: it cannot be run, or no training was seen; with what it printed.
        LauncherError: there is no place for it.
    """
    spec = _spec(launched)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
        launcher_of(spec, Path(folder)) as launcher,
    ):
        look = _Look(Probe(Plan(spec, launcher), Path(folder), workdir), launched)
        seen = look.at({})
        _check(seen, launched)
        found, doubts = _turned(look, seen, launcher.workers)
        return Findings(seen, launcher.workers, launcher.slots[0].device, found, tuple(doubts))


def _spec(launched: Launched) -> StudySpec:
    workload = {
        "module" if launched.is_module else "script": launched.target,
        "args": list(launched.args),
    }
    return StudySpec.model_validate(
        {
            "name": "survey",
            "workload": workload,
            "resources": {} if launched.workers is None else {"workers": launched.workers},
            "search_space": {"cpu_threads": [0]},
            "env": launched.env,
        }
    )


class _Look:
    """Runs the script with some options changed."""

    def __init__(self, probe: Probe, launched: Launched) -> None:
        self._probe = probe
        self._launched = launched
        self._runs = 0

    def at(self, options: Mapping[str, int]) -> Surveyed:
        """What rank 0 has seen.

        Args:
            options: flag -> its value; others are as the command has them.

        Raises:
            BadInput: the script fails.
        """
        self._runs += 1
        name = f"survey-{self._runs}"
        own = {flag: flag for flag in options}
        args = arguments.changed(self._launched.args, own, options)
        result = self._probe.run(name, self._probe.plan.baseline, FitRun(), _surveying(args))
        path = self._probe.files(name).survey(0)
        if why := why_not(result):
            raise BadInput(f"{self._launched.target} does not run here: {why}")
        return Surveyed.from_text(path.read_text())


def _surveying(args: tuple[str, ...]) -> Shape:
    def shape(asked: TrialRequest) -> TrialRequest:
        assert asked.script is not None
        script = dataclasses.replace(asked.script, args=args, survey=_STEPS)
        return dataclasses.replace(asked, script=script)

    return shape


def _check(seen: Surveyed, launched: Launched) -> None:
    if not seen.steps:
        how = seen.ended or "it never came to one"
        raise BadInput(
            f"{launched.target}: no optimizer step of torch.optim was seen ({how}); only training "
            "scripts can be tuned"
        )
    if not seen.micro_batch:
        raise BadInput(
            f"{launched.target}: no batch was seen on its way into a model; write study.yaml by hand, "
            "with workload.samples (docs/scripts.md)"
        )


def _turned(look: _Look, seen: Surveyed, workers: int) -> tuple[dict[str, str], list[str]]:
    """The options that turn knobs, each of them seen to do so."""
    found: dict[str, str] = {}
    doubts: list[str] = []
    for knob, trials in flags.candidates(seen).items():
        for trial in trials:
            flag = trial.option.flag
            if flag in found.values():
                continue
            try:
                after = look.at({flag: trial.value})
            except BadInput as error:
                doubts.append(f"{flag} {trial.value} fails: {str(error).splitlines()[0]}")
                continue
            if flags.answers(knob, trial, seen, after):
                found[knob] = flag
                break
            doubts += _why_not(knob, trial, after, workers)
    return found, doubts


def _why_not(knob: str, trial: flags.Trial, after: Surveyed, workers: int) -> Iterator[str]:
    flag = trial.option.flag
    if flags.scaled(knob, trial, after, workers):
        yield f"{flag} counts for all {workers} ranks together; {knob} counts for one"
    elif trial.option.sure:  # else it was a guess
        yield (
            f"{flag} is not {knob}: with {trial.value} there were {after.micro_batch} samples a pass, "
            f"{after.accumulation_steps} passes a step"
        )
