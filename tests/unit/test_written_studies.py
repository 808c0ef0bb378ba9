"""What `init` leaves out of a study, as it would train something else."""

import re
from pathlib import Path

import yaml

from autotune.config import StudySpec
from autotune.config.scripts import ScriptWorkload
from autotune.standalone import init_script
from autotune.standalone.batch_settings import BatchSettings
from autotune.standalone.launched import Launched
from autotune.standalone.outside import Outside, candidates
from autotune.standalone.survey import Findings
from autotune.worker.survey_result import SurveyResult
from search_spaces import Facts

COMMAND = Launched("train.py", is_module=False, args=("--batch-size", "8"), workers=2)


def study(flags: dict[str, str], **seen: object) -> str:
    usual = {"steps": 4, "micro_batch": 8, "loader": True, "ddp": True, "optimizer": "SGD"}
    shown, batch = SurveyResult(**{**usual, **seen}), BatchSettings(flags=flags)
    found = Findings(shown, 2, "cpu", COMMAND, Facts("cpu", 2), batch)
    return init_script.study(["torchrun", "train.py"], found, cpus=2, name="train")


def test_a_search_for_unused_parameters_is_not_taken_from_a_script() -> None:
    text = study({}, own={"find_unused_parameters": True, "precision": "fp32"})
    assert "find_unused_parameters" not in yaml.safe_load(text)["search_space"]
    assert "# Not here: find_unused_parameters" in text


def test_another_split_is_not_offered_under_batch_normalisation() -> None:
    flags = {"micro_batch": "--batch-size", "accumulation_steps": "--accumulate"}
    assert "micro_batch" in yaml.safe_load(study(flags))["search_space"]
    text = study(flags, batch_dependent="BatchNorm")
    space = yaml.safe_load(text)["search_space"]
    assert not {"micro_batch", "accumulation_steps"} & space.keys()
    assert "# Not here: micro_batch: the model has BatchNorm" in text


def test_the_example_of_the_page_about_scripts_is_what_init_writes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text()
    [shown] = re.findall(r"^```yaml\n(name: train\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    told = StudySpec.model_validate(yaml.safe_load(shown))
    workload = told.workload
    assert isinstance(workload, ScriptWorkload)
    baseline = told.full_baseline()
    seen = SurveyResult(
        steps=4,
        micro_batch=baseline["micro_batch"],
        accumulation_steps=baseline["accumulation_steps"],
        loader=True,
        ddp=True,
        optimizer="AdamW",
        own={"precision": "fp32", "num_workers": baseline["num_workers"]},
    )
    launched = Launched(
        workload.script or "",
        is_module=False,
        args=workload.arguments,
        workers=8,
        launch=workload.launch,
    )
    facts = Facts("cuda", 8, capability=(9, 0), backend="nccl")
    batch, outside = BatchSettings(flags=workload.flags), Outside(candidates(seen, facts))
    found = Findings(seen, 8, "cuda", launched, facts, batch, outside=outside)
    written = init_script.study(["torchrun"], found, cpus=64, name="train")
    assert yaml.safe_load(shown) == yaml.safe_load(written)
    assert all(not seen.samples % size for size in told.values()["micro_batch"])
