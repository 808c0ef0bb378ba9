"""The trials of one study, kept in Optuna's tables."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from autotune.errors import StaleLease, TrialsGone
from storage.dashboard_notes import save_note
from storage.database import Database
from storage.fence import fencing
from storage.records import Lease

SUGGESTED_BY = "suggested_by"
"""Attribute of a queued trial with the reason for it."""

Given = ParamSpec("Given")
Found = TypeVar("Found")


def _fenced(
    write: Callable[Concatenate["TrialLedger", Given], Found],
) -> Callable[Concatenate["TrialLedger", Given], Found]:
    """Return a method whose writes all prove that the ledger's daemon still has its lease."""

    @functools.wraps(write)
    def fenced(ledger: "TrialLedger", /, *arguments: Given.args, **options: Given.kwargs) -> Found:
        with fencing(ledger._lease), ledger._reporting_missing_trials():
            return write(ledger, *arguments, **options)

    return fenced


class TrialLedger:
    """Optuna's trials of a study: asks for them, tells results, writes notes.

    Telling a result twice changes nothing.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        sampler: optuna.samplers.BaseSampler | None = None,
        lease: Lease | None = None,
        launched: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Open the study of that name; create it if there is none.

        Args:
            lease: lease of the daemon that writes; once it is stale every write raises StaleLease.
                None: read only.
            launched: knobs by number of the trial, for trials that must exist.

        Raises:
            TrialsGone: the study is another one, or no longer exists.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._lease = lease
        self._name = name
        self._database = database
        self._objective: str | None = None
        if launched and not _is_of(launched, name, database.optuna()):
            raise TrialsGone(name)
        with fencing(lease):
            self._study = optuna.create_study(
                storage=database.optuna(),
                study_name=name,
                direction="maximize",
                sampler=sampler,
                load_if_exists=True,
            )

    def trials(self) -> list[FrozenTrial]:
        """Return all trials, in order.

        Raises:
            TrialsGone: the study has been renamed or deleted since it was opened.
        """
        with self._reporting_missing_trials():
            return self._study.get_trials(deepcopy=False)

    @_fenced
    def enqueue(self, params: Mapping[str, Any], reason: str) -> None:
        """Queue a configuration before the sampler is asked; again only if trials of it told nothing."""
        known = [t for t in self.trials() if t.system_attrs.get("fixed_params", t.params) == params]
        failed = bool(known) and all(map(_told_nothing, known))
        self._study.enqueue_trial(
            dict(params), user_attrs={SUGGESTED_BY: reason}, skip_if_exists=not failed
        )

    @_fenced
    def ask(self, distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
        """Return the next trial, now RUNNING.

        If the sampler fails, the trial it was asked for is FAIL. If that trial was enqueued, the
        next one is asked for.
        """
        while True:
            before = {trial.number: trial.state for trial in self.trials()}
            try:
                return self._frozen(self._study.ask(dict(distributions)))
            except StaleLease:
                raise  # the present holder of the lease finishes the trial
            except Exception:
                running = {t.number for t in self.trials() if t.state == TrialState.RUNNING}
                begun = {n for n in running if before.get(n) != TrialState.RUNNING}
                for orphan in begun:
                    self._study.tell(orphan, state=TrialState.FAIL)
                if not begun or not begun <= before.keys():
                    raise

    @_fenced
    def begin(
        self, params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution], reason: str
    ) -> FrozenTrial:
        """Return a new trial of a configuration, now RUNNING, whatever is queued."""
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=dict(params),
                distributions=dict(distributions),
                user_attrs={SUGGESTED_BY: reason},
            )
        )
        return next(trial for trial in reversed(self.trials()) if trial.params == params)

    @_fenced
    def complete_params(
        self, trial: FrozenTrial, distributions: Mapping[str, BaseDistribution]
    ) -> FrozenTrial:
        """Ask for the remaining parameters of a trial whose daemon died while it asked."""
        asked = Trial(self._study, trial._trial_id)
        for name, distribution in distributions.items():
            asked._suggest(name, distribution)
        return self._frozen(asked)

    @_fenced
    def tell(
        self,
        number: int,
        state: TrialState,
        note: str,
        *,
        value: float | None,
        attributes: Mapping[str, Any],
        constraints: Mapping[str, float],
    ) -> None:
        """Record the end of a trial with its note, exactly once.

        Args:
            value: of the objective; that of a pruned trial is its last intermediate one.
            attributes: user attributes by name.
            constraints: by name; one above 0 is violated.
        """
        trial = self._of_number(number)
        if trial._cached_frozen_trial.state.is_finished():
            return
        try:
            for name, attribute in attributes.items():
                trial.set_user_attr(name, attribute)
            for name, constraint in constraints.items():
                trial.set_constraint(name, constraint)
            save_note(self._database, self._study, note, trial)
            if state == TrialState.COMPLETE:
                self._study.tell(trial, value, skip_if_finished=True)
                return
            if value is not None:
                trial.report(value, step=0)
            self._study.tell(trial, state=state, skip_if_finished=True)
        except UpdateFinishedTrialError:
            return  # told by another daemon in the meantime, from the same record

    @_fenced
    def note(self, body: str, *, trial: int | None = None) -> None:
        """Write the dashboard's note of the study, or that of a trial, which may have ended."""
        of = None if trial is None else self._of_number(trial)
        save_note(self._database, self._study, body, of)

    @_fenced
    def set_attributes(self, wanted: Mapping[str, str]) -> None:
        """Set attributes of the study, which the dashboard shows beside the best trial.

        Args:
            wanted: texts by name. Other attributes stay; unchanged ones are not written.
        """
        known = self._study.user_attrs
        for name, text in wanted.items():
            if known.get(name) != text:
                self._study.set_user_attr(name, text)

    @property
    def objective(self) -> str:
        """Optuna's name of a trial's value; empty if it has none yet."""
        # Optuna reads it from among the notes of all trials.
        if self._objective is None:
            with self._reporting_missing_trials():
                self._objective = (self._study.metric_names or [""])[0]
        return self._objective

    def value(self, number: int) -> float | None:
        """Return the value that was told of a trial; None if there is none."""
        trial = next((trial for trial in self.trials() if trial.number == number), None)
        known = trial.values or [*trial.intermediate_values.values()] if trial else []
        return known[0] if known else None

    @_fenced
    def name_objective(self, name: str) -> None:
        """Set Optuna's name of a trial's value."""
        with warnings.catch_warnings():  # it is experimental
            warnings.simplefilter("ignore")
            self._study.set_metric_names([name])
        self._objective = name

    @contextlib.contextmanager
    def _reporting_missing_trials(self) -> Iterator[None]:
        """Raise TrialsGone for a missing study: Optuna only reports a missing number."""
        try:
            yield
        except KeyError as error:
            try:
                self._study._storage.get_study_system_attrs(self._study._study_id)
            except KeyError:
                raise TrialsGone(self._name) from error
            raise

    def _of_number(self, number: int) -> Trial:
        """Return a trial by number. Optuna has the mapping in memory: other trials are not read."""
        storage, study = self._study._storage, self._study._study_id
        return Trial(self._study, storage.get_trial_id_from_study_id_trial_number(study, number))

    def _frozen(self, trial: Trial) -> FrozenTrial:
        return self._study._storage.get_trial(trial._trial_id)


def asked_before(
    database: Database, name: str, launched: Container[int]
) -> dict[str, BaseDistribution]:
    """Return the distributions by which a study's launched trials were asked for; empty without any.

    Optuna takes no other values for a parameter of that name. A trial that was not launched may lack
    parameters: its daemon may have died while it asked.

    Args:
        launched: numbers of the trials.
    """
    try:
        study = optuna.load_study(study_name=name, storage=database.optuna())
    except KeyError:
        return {}
    found: dict[str, BaseDistribution] = {}
    for trial in study.get_trials(deepcopy=False):
        if trial.number in launched:
            found = trial.distributions | found
    return found


def _told_nothing(trial: FrozenTrial) -> bool:
    """Return whether a trial has ended without a value. A violated constraint tells as well."""
    violated = any(constraint > 0 for constraint in trial.constraints.values())
    return trial.state.is_finished() and trial.value is None and not violated


def _is_of(
    launched: Mapping[int, Mapping[str, Any]], name: str, storage: optuna.storages.RDBStorage
) -> bool:
    """Return whether Optuna's study has these trials, rather than others of the same numbers."""
    try:
        found = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
    except KeyError:
        return False
    return all(
        number < len(found)
        and all(knobs.get(knob, value) == value for knob, value in found[number].params.items())
        for number, knobs in launched.items()
    )
