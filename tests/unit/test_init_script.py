"""The study that is written for a script, by what was seen of it."""

import pytest
import yaml

from autotune.config import StudySpec
from autotune.standalone import init_script
from autotune.standalone.batch_settings import BatchSettings, find_batch_settings
from autotune.standalone.launched import Launched
from autotune.standalone.outside import Outside
from autotune.standalone.own_options import OwnOptions, Turned
from autotune.standalone.survey import Findings
from autotune.worker.survey_result import Option, SurveyResult
from launchers.slurm_allocation import JOB
from search_spaces import Facts

_SEEN = SurveyResult(
    steps=4,
    micro_batch=8,
    accumulation_steps=2,
    loader=True,
    ddp=True,
    own={"num_workers": 0},
    options=(Option("--batch-size", "batch_size", 8),),
)


def written(
    env: dict[str, str] | None = None,
    own: OwnOptions | None = None,
    outside: Outside | None = None,
    batch: BatchSettings | None = None,
    nodes: int = 1,
    **seen: object,
) -> tuple[str, StudySpec]:
    """The text of the study, and what it says."""
    launched = Launched(
        "train.py",
        is_module=False,
        args=(),
        workers=2,
        launch="torchrun",
        env=env or {},
        nodes=nodes,
    )
    shown = SurveyResult(**{**vars(_SEEN), **seen})
    found = Findings(
        shown,
        2,
        "cpu",
        launched,
        Facts("cpu", 2),
        own=own or OwnOptions(),
        outside=outside or Outside(),
        batch=batch or BatchSettings(),
    )
    text = init_script.study(["torchrun", "train.py"], found, 4, name="train")
    return text, StudySpec.model_validate(yaml.safe_load(text))


def test_knob_of_a_variable_that_the_command_sets_is_left_out() -> None:
    _, spec = written(threads=1)
    assert "cpu_threads" in spec.values()
    text, spec = written({"OMP_NUM_THREADS": "1"}, threads=1)
    assert "cpu_threads" not in spec.values()
    assert "# Not here: cpu_threads: the command sets OMP_NUM_THREADS" in text


def test_batches_that_vary_have_steps_as_their_unit() -> None:
    text, spec = written(varies=True)
    assert spec.unit == "steps/s"
    assert not {"micro_batch", "accumulation_steps"} & {*spec.baseline, *spec.values()}
    assert "varying numbers of samples" in text


def test_batch_that_several_steps_train_on_has_steps_as_its_unit() -> None:
    text, spec = written(reuses=True)
    assert spec.unit == "steps/s"
    assert not {"micro_batch", "accumulation_steps"} & {*spec.baseline, *spec.values()}
    assert "a batch trained on by several optimizer steps" in text


def test_accumulation_that_varies_is_no_knob_and_samples_compare() -> None:
    text, spec = written(accumulation_varies=True)
    assert spec.unit == "samples/s"
    assert not {"micro_batch", "accumulation_steps"} & {*spec.baseline, *spec.values()}
    assert "its accumulation varies" in text


@pytest.mark.parametrize("why", ["varies", "reuses", "accumulation_varies"])
def test_uneven_steps_have_no_option_for_their_samples(why: str) -> None:
    def look(_: object) -> SurveyResult:
        raise AssertionError("the script is run once more")

    varied = SurveyResult(**{**vars(_SEEN), why: True})
    assert find_batch_settings(look, varied, 2, print).settings_by_knob == {}


def test_batch_that_counts_as_one_sample_is_said_to_be_one() -> None:
    text, _ = written(micro_batch=1, rows=128)
    assert "1 batch of 128 rows a micro-batch" in text
    assert "1 sample a micro-batch" in written(micro_batch=1)[0]


def test_guess_by_tensors_is_marked() -> None:
    text, spec = written(guessed=True)
    assert spec.baseline["micro_batch"] == 8
    assert "micro_batch is a guess by the shapes of tensors" in text
    for found in (text, written(loader=False)[0]):
        assert "8 samples a micro-batch (a guess by the rows of tensors), " in found
    assert "guess" not in written()[0]


def test_samples_that_a_setting_is_seen_to_turn_are_no_guess() -> None:
    text, _ = written(loader=False, batch=BatchSettings(flags={"micro_batch": "--batch-size"}))
    assert "samples: 16   # of a rank per step; no DataLoader shows them: as set above" in text
    assert "a guess by the rows that the model is given" in written(loader=False)[0]


@pytest.mark.parametrize(
    ("workload", "batch", "counts"),
    [
        ({"script": "train.py"}, "fixed", "samples"),
        ({"script": "train.py"}, "free", "tokens"),
        ({"name": "gpt"}, "fixed", "tokens"),
    ],
)
def test_tokens_of_a_script_compare_only_under_a_free_global_batch(
    workload: dict[str, str], batch: str, counts: str
) -> None:
    spec = StudySpec.model_validate(
        {
            "name": "a",
            "workload": workload,
            "search_space": {"bucket_cap_mb": [5, 25]},
            "objective": {"metric": "tokens_per_second", "global_batch_size": batch},
        }
    )
    assert spec.counts == counts


def test_knobs_that_act_from_outside_are_in_the_study_with_its_reasons_for_others() -> None:
    acting = Outside(
        {"compile": ["none", "default"]}, ("precision: it has found nothing to act on",)
    )
    text, spec = written(outside=acting, ddp=False)
    assert list(spec.values()["compile"]) == ["none", "default"]
    assert spec.full_baseline()["compile"] == "none"
    assert "# Not here: precision: it has found nothing to act on" in text


def test_options_of_the_script_are_written_with_their_words() -> None:
    own = OwnOptions(
        {
            "precision": Turned("--dtype=", "fp32", ("fp32", "bf16"), {"bf16": "bfloat16"}),
            "compile": Turned(
                "--compile/--no-compile",
                "default",
                ("none", "default"),
                {"none": False, "default": True},
            ),
            "channels_last": Turned(
                "model.last=", False, (False, True), {"false": "False", "true": "True"}
            ),
            "num_workers": Turned("-j", 0, (0, 2), refused=(0,)),
        },
        ("--fused true is not optimizer_kernels: default as before",),
    )
    text, spec = written(own=own, optimizer="SGD")
    assert spec.workload.flags["compile"] == "--compile/--no-compile"
    assert spec.workload.words == {
        "precision": {"bf16": "bfloat16"},
        "compile": {"none": False, "default": True},
        "channels_last": {"false": "False", "true": "True"},
    }
    space = spec.values()
    assert space["compile"] == ["none", "default"]
    assert space["channels_last"] == [False, True]
    assert 0 not in space["num_workers"]
    baseline = spec.full_baseline()
    assert (baseline["compile"], baseline["precision"]) == ("default", "fp32")
    assert "# Not here: --fused true is not optimizer_kernels" in text
    assert "# Not here: precision" not in text


def test_option_that_is_clamped_has_words_for_every_value_of_the_study() -> None:
    own = OwnOptions({"num_workers": Turned("-j", 2, (0, 2), {"2": 8, "0": 0})})
    _, spec = written(own=own)
    assert spec.values()["num_workers"] == [0, 2]
    assert spec.full_baseline()["num_workers"] == 2


def test_fused_update_is_not_offered_to_a_model_with_sparse_gradients() -> None:
    _, spec = written(optimizer="SGD")
    assert spec.values()["optimizer_kernels"] == ["default", "fused"]
    text, spec = written(optimizer="SGD", sparse=True)
    assert "optimizer_kernels" not in spec.values()
    assert "optimizer_kernels: fused updates take no sparse gradients" in text


@pytest.mark.parametrize(("optimizer", "offered"), [("SGD", False), ("AdamW", True)])
def test_batch_of_a_script_that_sums_its_losses_is_left_out_unless_the_optimizer_scales_them_back(
    optimizer: str, offered: bool
) -> None:
    flags = {"micro_batch": "--batch-size", "accumulation_steps": "--accumulate"}
    batch = BatchSettings(flags=flags, sums=True)
    text, spec = written(batch=batch, optimizer=optimizer)
    assert ("micro_batch" in spec.values()) is offered
    assert ("does not divide its loss" in text) is not offered


def test_several_nodes_are_those_of_the_allocation_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(JOB, raising=False)
    _, spec = written(nodes=2)
    assert spec.launcher.kind == "ray"
    monkeypatch.setenv(JOB, "17")
    _, spec = written(nodes=2)
    assert spec.launcher.kind == "slurm"


def test_limit_of_time_is_there_to_be_uncommented() -> None:
    text, spec = written()
    assert (spec.budget.trials, spec.budget.wall_time) == (20, None)
    limited = StudySpec.model_validate(yaml.safe_load(text.replace("# wall_time", "wall_time")))
    assert limited.budget.wall_time == 1800.0
