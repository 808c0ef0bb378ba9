"""A look at the user's own launch command: what their script is made of, and what turns its knobs."""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.analysis.wording import counted
from autotune.config import StudySpec, fields
from autotune.errors import BadInput
from autotune.runs.monitors import FitMonitor
from autotune.runs.plan import Plan, launcher_of
from autotune.runs.probe import Probe, Shape, why_not
from autotune.standalone import flags, interpreters
from autotune.standalone.command import Launched
from autotune.worker.protocol import TrialRequest
from autotune.worker.surveyed import Option, Surveyed

_STEPS = 4


@dataclass(frozen=True)
class Findings:
    """Of a script.

    Attributes:
        seen: as the command has it.
        workers: ranks that ran it.
        device: 'cpu' or 'cuda'.
        flags: knob -> the option that was seen to turn it.
        over_all_ranks: those of them that are told what all ranks have together.
        doubts: why other options are no knobs, a line each.
    """

    seen: Surveyed
    workers: int
    device: str
    flags: dict[str, str] = field(default_factory=dict)
    over_all_ranks: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def survey(launched: Launched, workdir: Path, say: Callable[[str], None]) -> Findings:
    """Run the script for a few steps, and again for each option that may turn a knob.

    Args:
        launched: the command.
        workdir: where it runs.
        say: told what is being done, as a script may take minutes to start.

    Raises:
        BadInput: it cannot be run, or no training was seen; with what it printed.
        LauncherError: there is no place for it.
    """
    if not launched.is_module and not (workdir / launched.target).exists():
        raise BadInput(f"{launched.target}: no such file in {workdir}")
    interpreters.check(launched)
    spec = _spec(launched)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
        launcher_of(spec, Path(folder)) as launcher,
    ):
        look = _Look(Probe(Plan(spec, launcher), Path(folder), workdir), launched, workdir, say)
        seen = look.at({})
        _check(seen, launched)
        seen = _with_fields(seen, launched, workdir)
        turned = _Flags(look, seen, launcher.workers)
        return Findings(
            _of_all_nodes(turned, launched),
            launcher.workers * launched.nodes,
            launcher.slots[0].device,
            turned.found,
            tuple(turned.over_all_ranks),
            tuple(turned.doubts),
        )


def _spec(launched: Launched) -> StudySpec:
    workload = {
        "module" if launched.is_module else "script": launched.target,
        "args": list(launched.args),
        "launch": launched.launch,
        "python_options": list(launched.options),
    }
    ranks = launched.workers_per_node  # a look at one of the nodes tells what all do
    return StudySpec.model_validate(
        {
            "name": "survey",
            "workload": workload,
            "resources": {} if ranks is None else {"workers": ranks},
            "search_space": {"cpu_threads": [0]},
            "env": launched.env,
        }
    )


def _of_all_nodes(turned: "_Flags", launched: Launched) -> Surveyed:
    """Return what one rank of the whole job has, where ranks of one node were looked at."""
    if "micro_batch" not in turned.over_all_ranks:
        return turned.seen
    micro_batch = turned.seen.micro_batch // launched.nodes
    return dataclasses.replace(turned.seen, micro_batch=micro_batch)


class _Look:
    """Runs the script with some options changed."""

    def __init__(
        self, probe: Probe, launched: Launched, workdir: Path, say: Callable[[str], None]
    ) -> None:
        self._probe = probe
        self._workdir = workdir
        self._say = say
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
        changed = ", ".join(f"{flag} {value}" for flag, value in options.items())
        self._say(f"Looking at {self._launched.target}{changed and f' with {changed}'} ...")
        given = fields.given(
            self._launched.args,
            own,
            options,
            variables=self._launched.env,
            workdir=self._workdir,
            folder=self._probe.files(name).copies(),
        )
        result = self._probe.run(name, self._probe.plan.baseline, FitMonitor(), _with(given))
        path = self._probe.files(name).survey(0)
        if why := why_not(result):
            raise BadInput(f"{self._launched.target} does not run here: {why}")
        return Surveyed.from_text(path.read_text())


def surveying(asked: TrialRequest) -> TrialRequest:
    """The same trial of a script, looked at instead of timed."""
    assert asked.script is not None
    return dataclasses.replace(asked, script=dataclasses.replace(asked.script, survey=_STEPS))


def _with(given: fields.Given) -> Shape:
    def shape(asked: TrialRequest) -> TrialRequest:
        assert asked.script is not None
        changed = dataclasses.replace(asked.script, args=given.arguments)
        env = {**asked.env, **given.variables}
        return surveying(dataclasses.replace(asked, script=changed, env=env, copies=given.copies))

    return shape


def _with_fields(seen: Surveyed, launched: Launched, workdir: Path) -> Surveyed:
    """The same, the settings that it reads from files among its options."""
    found: list[Option] = []
    for file in seen.settings:
        try:
            text = (workdir / file).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        found += flags.fields(file, text, launched.args, launched.env)
    # Where a parser knows none, variables of the script are but guesses.
    sure = [option for option in seen.options if option.sure]
    guessed = [option for option in seen.options if not option.sure]
    return dataclasses.replace(seen, options=(*sure, *found, *guessed))


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


class _Flags:
    """The options that turn knobs, each of them seen to do so."""

    def __init__(self, look: _Look, seen: Surveyed, workers: int) -> None:
        self.found: dict[str, str] = {}
        self.over_all_ranks: list[str] = []
        self.doubts: list[str] = []
        self._look = look
        self.seen = self._seen = seen
        self._workers = workers
        for knob, trials in flags.candidates(seen).items():
            others = (t for t in trials if t.option.flag not in self.found.values())
            if turning := next((t for t in others if self._turns(knob, t)), None):
                self.found[knob] = turning.option.flag

    def _turns(self, knob: str, trial: flags.Trial) -> bool:
        flag = trial.option.flag
        try:
            after = self._look.at({flag: trial.value})
            if flags.answers(knob, trial, self._seen, after):
                return True
            if flags.shared(knob, trial, after, self._workers):
                together = self._look.at({flag: trial.value * self._workers})
                if flags.answers(knob, trial, self._seen, together):
                    self.over_all_ranks.append(knob)
                    return True
            if knob == "micro_batch" and flags.turned_round(trial, self._seen, after):
                self.seen = dataclasses.replace(self._seen, micro_batch=self._seen.columns)
                return True
        except BadInput as error:
            self.doubts.append(f"{flag} {trial.value} fails: {str(error).splitlines()[0]}")
            return False
        if trial.option.sure:  # else it was a guess
            self.doubts.append(
                f"{flag} is not {knob}: with {trial.value} there were "
                f"{counted(after.micro_batch, 'sample')} a micro-batch, "
                f"{counted(after.accumulation_steps, 'micro-batch')} a step"
            )
        return False
