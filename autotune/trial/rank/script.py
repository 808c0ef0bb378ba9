"""A training script that nobody has changed, as one rank runs it: started as torchrun would, seen step
by step, and left when enough of its blocks are done."""

import math
import multiprocessing
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

from torch import nn
from torch.distributed import Store  # type: ignore[attr-defined]

from autotune.trial.inject.changes import Changes
from autotune.trial.inject.sight import Sight
from autotune.trial.protocol import BlockReport, Outcome, Script, TrialRequest
from autotune.trial.rank.blocks import run_blocks
from autotune.trial.rank.context import RankContext
from autotune.trial.rank.gathering import over_store
from autotune.trial.rank.training import Training
from autotune.trial.rank.trajectory import run_trajectory, square

Leave = Callable[[Outcome | None, str], NoReturn]
"""Ends the rank, with what it has come to and why. The script is asked no more."""


class ScriptTraining(Training):
    """What a script's training shows of itself."""

    log_interval = 1

    def __init__(
        self, request: TrialRequest, context: RankContext, store: Store, sight: Sight
    ) -> None:
        super().__init__(request, context, over_store(store, context.rank, context.world_size))
        self._sight = sight
        self._world_size = context.world_size
        self._tokens_at_start = 0
        self._samples_at_start = 0
        self.model = sight.model or nn.Identity()
        self.samples_done = float(sight.samples * context.world_size)

    def begin_block(self) -> None:
        """Count and time from here on."""
        self._samples_at_start, self._tokens_at_start = self._sight.samples, self._sight.tokens
        self._sight.wait_seconds = 0.0
        super().begin_block()

    def taken(self) -> None:
        """The script has taken an optimizer step."""
        self.steps_done += 1
        self.samples_done = float(self._sight.samples * self._world_size)
        self.loss = self._sight.loss
        self.clock.wait_seconds = self._sight.wait_seconds

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the optimizer updates whose steps are those of the training."""
        assert self._sight.leader is not None
        return (p for group in self._sight.leader.param_groups for p in group["params"])

    def tokens(self, samples: int) -> int:
        """Of the block."""
        return (self._sight.tokens - self._tokens_at_start) * self._world_size


class _LeaderNorms:
    """Of the gradient that the first optimizer sees, clipped if the script clips it."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._square = math.nan

    def clear(self) -> None:
        self._square = math.nan

    def look(self) -> None:
        """Just before a step."""
        assert self._sight.leader is not None
        self._square = square(self._sight.leader)

    def of_step(self) -> float:
        return math.sqrt(self._square)


class ScriptRun:
    """Drives a timed run from the hooks in a script's training."""

    def __init__(
        self,
        request: TrialRequest,
        script: Script,
        context: RankContext,
        store: Store,
        *,
        progressed: Callable[[], None],
        report: Callable[[BlockReport], None],
        leave: Leave,
    ) -> None:
        self._request = request
        self._script = script
        self._context = context
        self._store = store
        self._progressed = progressed
        self._report = report
        self._leave = leave
        self._sight = Sight()
        self._norms = _LeaderNorms(self._sight)
        self._changes = Changes(request.knobs, script.changes, script.kept)
        self._training: ScriptTraining | None = None
        self._steps: Iterator[None] = iter(())
        self._steps_seen = 0

    def run(self) -> NoReturn:
        """Run the script for as long as its steps are wanted."""
        self._changes.begin()
        self._sight.watch(
            went_on=self._progressed, before=self._before_step, after=self._after_step
        )
        ended = execute(self._script)
        taken = self._training.steps_done if self._training else 0
        self._leave(
            Outcome.ERROR,
            f"the script ended {ended}after {taken} measured optimizer steps, before enough was seen; "
            "have it train for longer",
        )

    def _before_step(self) -> None:
        if self._request.trajectory:
            self._norms.look()

    def _after_step(self) -> None:
        # Whatever goes wrong here is no business of the script, which may catch what is raised in it.
        try:
            self._advance()
        except BaseException as error:
            self._leave(Outcome.ERROR, f"{type(error).__name__}: {error}")

    def _advance(self) -> None:
        self._steps_seen += 1
        self._check_samples()
        if self._training is None:
            self._begin()
        else:
            self._training.taken()
        if next(self._steps, _END) is _END:
            self._leave(None, "finished")

    def _contrary(self) -> Iterator[str]:
        """What the training has by itself, where the configuration says something else of what it is."""
        for name, own in sorted(self._sight.own.items()):
            wanted = self._request.knobs[name]
            alike = own == wanted or (own, wanted) == (
                "fp32",
                "tf32",
            )  # which autocast does not tell
            if name in self._script.kept and not alike:
                yield f"{name} {own}"

    def _begin(self) -> None:
        """After the first step, which shows what there is to see."""
        if idle := self._changes.idle():
            self._leave(
                Outcome.ERROR, f"{', '.join(idle)}: has found nothing to act on in the script"
            )
        if contrary := [*self._changes.contrary, *self._contrary()]:
            self._leave(
                Outcome.ERROR,
                f"{', '.join(contrary)}: is what the script has by itself, and not what the "
                "configuration says; say so under `baseline`",
            )
        if not self._sight.samples:
            self._leave(
                Outcome.ERROR,
                "no sample was seen: the script draws none from a DataLoader; say in study.yaml how "
                "many a step has (workload.samples)",
            )
        if self._sight.loss is None:
            self._leave(
                Outcome.ERROR, "no loss was seen: Tensor.backward was never called on a scalar"
            )
        self._training = ScriptTraining(self._request, self._context, self._store, self._sight)
        self._training.loss = self._sight.loss
        where = (self._request, self._context, self._report)
        if self._request.trajectory:
            self._steps = run_trajectory(self._training, self._norms, *where)
        else:
            self._steps = run_blocks(self._training, *where)

    def _check_samples(self) -> None:
        """A step must have the samples that the configuration says. A loader may run ahead of the steps,
        and end an epoch with a smaller batch."""
        wanted, steps = self._script.samples, self._steps_seen
        if not wanted:
            return
        if self._script.told:
            self._sight.samples = wanted * steps
            return
        if not self._sight.saw_loader:
            # Nobody sees whether the arguments reach the training: the user must say it.
            self._sight.samples = wanted * steps if self._script.draws_none else 0
            return
        seen = self._sight.samples
        if abs(seen - wanted * steps) > wanted * (1 + _TOLERANCE * steps):
            self._leave(
                Outcome.ERROR,
                f"{seen} samples per rank in {steps} steps of the script, {seen / steps:.4g} a step, "
                f"are not the {wanted} that the configuration says: its arguments do not reach the "
                "training",
            )


_END = object()
_TOLERANCE = 0.1
"""Of samples per step, in the long run."""


def execute(script: Script) -> str:
    """Run it as python does, to its end; how it ended, in words that a sentence takes."""
    sys.argv = [script.path, *script.args]
    # As in a process that python has started: this one has taken over that of its fork server.
    multiprocessing.set_start_method("fork", force=True)
    try:
        if script.is_module:
            # `python -m` looks in the working directory first.
            sys.path[0:0] = [str(Path.cwd())]
            runpy.run_module(script.path, run_name="__main__", alter_sys=True)
        else:
            sys.path[0:0] = [str(Path(script.path).resolve().parent)]
            runpy.run_path(script.path, run_name="__main__")
    except SystemExit as left:
        if isinstance(left.code, str):
            return f"({left.code}) "
        if left.code:
            return f"with exit status {left.code} "
    return ""
