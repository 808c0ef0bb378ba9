"""Arguments of frameworks' classes as settings of scripts that construct their objects in code."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.config import fields
from autotune.standalone import flags
from autotune.standalone.batch_settings import find_batch_settings
from autotune.standalone.named_options import OtherWord, others
from autotune.standalone.own_options import SearchTime, find_own_options
from autotune.worker.inject import job_order
from autotune.worker.protocol import PYTHON, Script
from autotune.worker.survey_result import SurveyResult
from search_spaces import Facts
from search_spaces.knob import KnobValue
from tests.contract.scripts.bench import SCRIPTS, Bench
from tests.support.seeing import look

# They share what was seen.
pytestmark = pytest.mark.xdist_group("classes of frameworks")

KINDS = SCRIPTS / "kinds"
LIBRARIES = {
    "trainer": "transformers",
    "accelerated": "accelerate",
    "lit": "lightning",
    "fabric": "lightning.fabric",
}
IMPORTED = {
    "trainer": ("transformers.trainer", "transformers.models.vit.modeling_vit"),
    "accelerated": ("accelerate",),
    "lit": ("lightning",),
    "fabric": ("lightning",),
}
"""Modules that take longest of what a script imports."""
PRECISION = {
    "trainer": ("TrainingArguments(bf16)", {"fp32": False, "bf16": True}),
    "accelerated": ("Accelerator(mixed_precision)", {"fp32": "no", "bf16": "bf16"}),
    "lit": ("Trainer(precision)", {"fp32": "32-true", "bf16": "bf16-mixed"}),
    "fabric": ("Fabric(precision)", {"fp32": "32-true", "bf16": "bf16-mixed"}),
}


@functools.cache
def seen(kind: str, replaced: tuple[str, str] = ("", ""), **constructed: KnobValue) -> SurveyResult:
    """Survey a script that has constants in the place of its options, and a part replaced."""
    pytest.importorskip(LIBRARIES[kind])
    text = (KINDS / f"{kind}.py").read_text().replace("tiny.arguments()", "CONSTANTS")
    if replaced[0]:
        text = text.replace("args.", "CONSTANTS.").replace(*replaced)
    start = (
        f"import sys, types\nsys.path.insert(0, {str(KINDS)!r})\nsys.argv = ['train.py']\n"
        "CONSTANTS = types.SimpleNamespace(batch_size=8, steps=1000)\n"
    )
    imported = replaced[1:] if replaced[0] == LIBRARIES[kind] else IMPORTED[kind]
    found = look(start + text, steps=4, constructed=constructed, imported=imported).seen
    return dataclasses.replace(found, options=flags.settings_of(found, (), {}))


def format_turned(kind: str, replaced: tuple[str, str] = ("", "")) -> tuple[object, ...]:
    """Return the setting that was found to turn the number format, its present value and its words."""
    before = seen(kind, replaced)
    tried = others(before.options, Facts("cpu", 1), 1)

    def given(words: Sequence[OtherWord]) -> SurveyResult:
        return seen(kind, replaced, **{one.option.flag: one.word for one in words})

    wanted = {"precision": tried["precision"]}
    found = find_own_options(given, before, wanted, print, SearchTime(600)).turned["precision"]
    return found.flag, found.baseline, found.words


@pytest.mark.long
@pytest.mark.parametrize("kind", PRECISION)
def test_number_format_is_turned_through_the_class_of_a_framework(kind: str) -> None:
    setting, words = PRECISION[kind]
    assert format_turned(kind) == (setting, "fp32", words)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "package"), [("lit", "pytorch_lightning"), ("fabric", "lightning_fabric")]
)
def test_number_format_is_turned_in_the_older_packages_of_lightning(
    kind: str, package: str
) -> None:
    pytest.importorskip(package)
    setting, words = PRECISION[kind]
    assert format_turned(kind, (LIBRARIES[kind], package)) == (setting, "fp32", words)


@pytest.mark.long
def test_compilation_is_turned_through_the_accelerator() -> None:
    before = seen("accelerated")
    tried = others(before.options, Facts("cpu", 1), 1)["compile"][0]
    assert (tried.option.flag, tried.word) == ("Accelerator(dynamo_backend)", "inductor")
    # A back end that generates no code shows as many compiled frames.
    assert seen("accelerated", **{tried.option.flag: "eager"}).frames > before.frames == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "size", "accumulation"),
    [
        (
            "trainer",
            "TrainingArguments(per_device_train_batch_size)",
            "TrainingArguments(gradient_accumulation_steps)",
        ),
        ("lit", "DataLoader(batch_size=8)", "Trainer(accumulate_grad_batches)"),
    ],
)
def test_batch_is_turned_through_the_classes_of_a_framework_that_counts_steps(
    kind: str, size: str, accumulation: str
) -> None:
    found = find_batch_settings(lambda given: seen(kind, **given), seen(kind), 1, print)
    assert found.flags == {"micro_batch": size, "accumulation_steps": accumulation}


@pytest.mark.long
def test_loader_whose_length_the_script_asks_for_is_no_setting() -> None:
    asking = "tiny.loader(CONSTANTS.batch_size)", "[len(b) and b for b in [tiny.loader(8)]][0]"
    found = seen("lit", asking).options
    assert not [one for one in found if one.flag.startswith("DataLoader")]


@pytest.mark.long
def test_accumulation_of_a_loop_of_the_script_is_no_setting() -> None:
    assert not [one for one in seen("accelerated").options if "accumulation" in one.flag]


@pytest.mark.long
def test_option_of_the_script_is_preferred_to_the_class() -> None:
    one = seen("trainer")
    own = dataclasses.replace(one.options[0], flag="--half", name="amp", value=False)
    several = others((*one.options, own), Facts("cpu", 1), 1)["precision"]
    assert [word.option.flag for word in several] == ["--half", "TrainingArguments(bf16)"]


@pytest.mark.long
def test_argument_of_a_class_that_is_never_constructed_ends_the_trial(slot, tmp_path: Path) -> None:
    bench = Bench(slot, tmp_path)
    for script in KINDS.glob("*.py"):
        (tmp_path / script.name).write_text(script.read_text())
    told = {"launch": PYTHON, "constructed": {"Fabric(precision)": "bf16-mixed"}}
    report = bench.run("plain.py", told=told)
    assert "Fabric(precision): the script has constructed no object of that class" in report.cause


def test_class_that_is_not_known_is_refused() -> None:
    assert fields.of_flag("Optimizer(lr)")
    assert not fields.of_flag("Trainer(precision)")


def test_order_of_a_job_keeps_arguments_of_classes() -> None:
    order = job_order.Order(Script("train.py", constructed={"Trainer(precision)": "x"}), {})
    assert job_order.Order.from_text(order.to_text()) == order
