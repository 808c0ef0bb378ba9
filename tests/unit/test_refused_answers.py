"""No answer, final or provisional, names a trial that a check refuses."""

from typing import Any

from autotune.analysis.conclusion import VerdictInputs, build_verdict
from autotune.analysis.provenance import Records
from autotune.config import StudySpec
from storage import AttemptResult, Attempts, AttemptState, Purpose, StoredAttempt, StoredBlock

LOADED = {"num_workers": 2}
HALF = {"precision": "bf16"}
ROWS = {"rows": 48, "contents": "a", "indices": "", "order": "o", "counted": 48, "copies": 0}
SEEN = {"unused_parameters": 0, "batch_dependent": "", "consumed": ROWS}
TWICE = {**SEEN, "consumed": {**ROWS, "copies": 24}}
SPEC: dict[str, Any] = {
    "name": "a",
    "workload": {"script": "train.py", "samples": 2},
    "resources": {"workers": 1},
    "baseline": {"micro_batch": 2, "num_workers": 0},
    "search_space": {"num_workers": [0, 2], "precision": ["fp32", "bf16"]},
}


class Recorded:
    """Records of a study of these attempts, in which trials with loader workers read rows twice."""

    def __init__(self, **settings: Any) -> None:
        self.spec = StudySpec.model_validate({**SPEC, **settings})
        self._attempts: list[StoredAttempt] = []

    def add(
        self,
        trial: int,
        purpose: Purpose,
        rate: float | None = None,
        environment: int = 1,
        state: AttemptState = AttemptState.COMPLETE,
        **changes: Any,
    ) -> None:
        number = len(self._attempts) + 1
        width = None if rate is None else 0.01
        result = AttemptResult(
            state, throughput=rate, half_width=width, block_half_width=width, sigma_run=0.01
        )
        knobs, at = {**self.spec.full_baseline(), **changes}, 10.0 * number
        self._attempts.append(
            StoredAttempt(number, trial, purpose, 0, 1, knobs, at, at + 9, result, environment)
        )

    def verdict(self, inputs: VerdictInputs) -> Any:
        baseline = self.spec.full_baseline()
        attempts = Attempts(self._attempts, baseline, self.spec.harmless)
        loaded = {one.id for one in attempts if one.knobs["num_workers"]}
        records = Records(attempts, lambda number: [block(number in loaded)], lambda _: {}, None)
        return build_verdict(records, self.spec, inputs)


def block(twice: bool) -> StoredBlock:
    observed = TWICE if twice else SEEN
    return StoredBlock(0, 6, 12, 0, 1.0, [1.0], 0.0, 1.0, 0, True, observed=observed)


UNDER_WAY = VerdictInputs("a", ended=False)


def test_trial_that_was_slower_than_a_lucky_baseline_is_refused_in_a_provisional_answer() -> None:
    study = Recorded()
    study.add(0, Purpose.SEARCH, 110.0)
    study.add(1, Purpose.SEARCH, 109.0, **LOADED)
    for _ in range(4):
        study.add(0, Purpose.CALIBRATE, 80.0)
    assert study.verdict(UNDER_WAY).trial == 0


def test_trial_of_a_slower_node_is_refused_in_a_provisional_answer() -> None:
    study = Recorded()
    study.add(0, Purpose.SEARCH, 100.0)
    study.add(0, Purpose.CALIBRATE, 100.0)
    for _ in range(2):
        study.add(0, Purpose.CALIBRATE, 50.0, environment=2)
    study.add(1, Purpose.SEARCH, 90.0, environment=2, **LOADED)
    assert study.verdict(UNDER_WAY).trial == 0


def test_trial_that_its_check_refused_is_not_the_best_of_a_search_without_a_proof() -> None:
    study = Recorded(budget={"wall_time": "100s"})
    study.add(0, Purpose.SEARCH, 100.0)
    study.add(1, Purpose.SEARCH, 200.0, **HALF)
    study.add(1, Purpose.REFERENCE)
    study.add(1, Purpose.NUMERICS, state=AttemptState.REFUSED, **HALF)
    found = study.verdict(VerdictInputs("a", ended=True, left=-1.0))
    assert found.search_best.knobs["precision"] == "fp32"
