"""What `init` leaves out of a study, as it would train something else."""

import yaml

from autotune.standalone import init_script
from autotune.standalone.batch_settings import BatchSettings
from autotune.standalone.launch_command import Launched
from autotune.standalone.survey import Findings
from autotune.worker.survey_result import SurveyResult
from search_spaces import Facts

COMMAND = Launched("train.py", is_module=False, args=("--batch-size", "8"), workers=2)


def study(flags: dict[str, str], **seen: object) -> str:
    usual = {"steps": 4, "micro_batch": 8, "loader": True, "ddp": True, "optimizer": "SGD"}
    shown, batch = SurveyResult(**{**usual, **seen}), BatchSettings(flags=flags)
    found = Findings(shown, 2, "cpu", COMMAND, Facts("cpu", 2), batch)
    return init_script.study(["torchrun", "train.py"], COMMAND, found, cpus=2, name="train")


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
