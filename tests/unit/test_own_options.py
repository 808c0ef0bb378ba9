"""Which of a script's options are tried for a knob, and what another word for one has to show."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from autotune.errors import BadInput
from autotune.standalone.named_options import OtherWord, others
from autotune.standalone.own_options import OwnOptions, SearchTime, find_own_options, worth_trying
from autotune.worker.survey_result import Option, SurveyResult
from search_spaces import Facts

ON_CPU, ON_GPU = Facts("cpu", 1), Facts("cuda", 1, capability=(9, 0))


def words(*options: Option, facts: Facts = ON_CPU) -> dict[str, list[tuple[str, object]]]:
    """Knob -> the flags and words that are tried for it, in turn."""
    tried = others(options, facts, 4)
    return {knob: [(one.option.flag, one.word) for one in them] for knob, them in tried.items()}


@pytest.mark.parametrize(
    ("option", "knob", "expected"),
    [
        (Option("--amp", "amp", False, switch=True), "precision", True),
        (Option("--no-amp", "no_amp", False, switch=True), "precision", True),
        (Option("/--no-compile", "compile", True, switch=True), "compile", False),
        (Option("--torch_compile", "torch_compile", False), "compile", "True"),
        (Option("--compile=", "compile", True, sure=False), "compile", "False"),
        (Option("model.compile=", "compile", True), "compile", False),
        (Option("a.toml::compile.enable", "enable", False), "compile", True),
        (Option("--channels-last", "channels_last", 0), "channels_last", 1),
        (Option("--dtype", "dtype", "float32"), "precision", "bfloat16"),
        (Option("--dtype", "dtype", "float16"), "precision", "bfloat16"),
        (Option("--precision", "precision", "32-true"), "precision", "bf16-mixed"),
        (Option("--optim", "optim", "adamw_torch"), "optimizer_kernels", "adamw_torch_fused"),
        (Option("-j", "workers", 0), "num_workers", 2),
        (Option("--print-freq", "print_freq", 10), "log_interval", 2),
        (Option("--log-steps", "log_steps", 2), "log_interval", 20),
        (Option("--fast", "fast", 0, help="Wrap in torch.compile."), "compile", 1),
    ],
)
def test_option_named_for_a_knob_is_given_another_word(
    option: Option, knob: str, expected: object
) -> None:
    tried = words(option)
    assert list(tried) == [knob]
    assert tried[knob][0] == (option.flag, expected)


@pytest.mark.parametrize(
    "option",
    [
        Option("--lr", "lr", 0.1),
        Option("--compile-mode", "compile_mode", "default"),
        Option("--dtype", "dtype", "complex64"),
        Option("--precision", "precision", None),
        Option("--eval-workers", "eval_workers", 2),
        Option("--log-interval", "log_interval", 500),
        Option("--pin-mem", "pin_mem", False, switch=True),
    ],
)
def test_option_without_a_word_to_try_is_left_alone(option: Option) -> None:
    assert words(option) == {}


def test_only_choices_of_the_parser_are_tried() -> None:
    free = Option("--mp", "mixed_precision", "no")
    assert words(free) == {"precision": [("--mp", "bf16")]}
    some = Option("--mp", "mixed_precision", "no", choices=("no", "fp16"))
    assert words(some) == {"precision": [("--mp", "fp16")]}
    none = Option("--mp", "mixed_precision", "no", choices=("no", "O1"))
    assert words(none) == {}
    unset = Option("--mp", "mixed_precision", None, choices=("no", "fp16", "bf16"))
    assert words(unset) == {"precision": [("--mp", "bf16")]}
    half = Option("--mp", "mixed_precision", "bf16", choices=("no", "fp16", "bf16"))
    assert words(half) == {"precision": [("--mp", "no")]}


def test_what_a_value_needs_is_asked_for() -> None:
    pinned = Option("--pin-mem", "pin_mem", False, switch=True)
    assert words(pinned, facts=ON_GPU) == {"pin_memory": [("--pin-mem", True)]}


def test_names_go_before_texts_of_help_and_two_are_tried() -> None:
    several = [
        Option("--a", "a", False, switch=True, help="mixed precision"),
        Option("--amp", "amp", False, switch=True),
        Option("--bf16", "bf16", False, switch=True),
    ]
    assert words(*several) == {"precision": [("--bf16", True), ("--amp", True)]}


# What is seen


SEEN = SurveyResult(steps=4, micro_batch=8, loader=True, own={"precision": "fp32"})
"""Of a script as it is."""


def searched(option: Option, *effects: Mapping[str, Any] | None, **baseline: Any) -> OwnOptions:
    """Search a script of one option.

    Args:
        option: of the script.
        effects: what each run shows in another way; None: it fails.
        baseline: what the script as it is shows in another way.
    """
    answers = iter(effects)
    before = changed(SEEN, baseline)

    def run(_: Sequence[OtherWord]) -> SurveyResult:
        effect = next(answers)
        if effect is None:
            raise BadInput("it fails\nwith a traceback")
        return changed(before, effect)

    tried = others([option], ON_CPU, 4)
    return find_own_options(run, before, tried, lambda _: None, SearchTime(60))


def changed(seen: SurveyResult, effect: Mapping[str, Any]) -> SurveyResult:
    fields = {name: value for name, value in effect.items() if name in vars(seen)}
    own = {name: value for name, value in effect.items() if name not in fields}
    return SurveyResult(**{**vars(seen), **fields, "own": {**seen.own, **own}})


AMP = Option("--amp", "amp", False, switch=True)
COMPILED = Option("--compile", "compile", False, switch=True)


def test_switch_has_the_values_that_were_seen() -> None:
    found = searched(AMP, {"precision": "bf16"}).turned["precision"]
    assert (found.flag, found.baseline, found.values) == ("--amp", "fp32", ("fp32", "bf16"))
    assert found.words == {"fp32": False, "bf16": True}


def test_switch_that_is_on_is_the_value_of_today() -> None:
    option = Option("/--no-amp", "amp", True, switch=True)
    found = searched(option, {"precision": "fp32"}, precision="bf16").turned["precision"]
    assert (found.baseline, found.values) == ("bf16", ("fp32", "bf16"))
    assert found.words == {"bf16": True, "fp32": False}


def test_words_that_are_the_values_are_not_said() -> None:
    option = Option("--precision", "precision", "fp32")
    assert searched(option, {"precision": "bf16"}).turned["precision"].words == {}


def test_compilation_shows_in_frames_beside_those_of_today() -> None:
    found = searched(COMPILED, {"frames": 3}, frames=1).turned["compile"]
    assert (found.baseline, found.values) == ("none", ("none", "default"))
    off = Option("--no-compile", "no_compile", False, switch=True)
    found = searched(off, {"frames": 1}, frames=5).turned["compile"]
    assert (found.baseline, found.words) == ("default", {"default": False, "none": True})


def test_recomputation_is_of_every_block() -> None:
    option = Option("--ckpt", "grad_checkpointing", False)
    found = searched(option, {"activation_checkpointing": "on"}).turned["activation_checkpointing"]
    assert (found.values, found.words) == ((0, 1), {"0": "False", "1": "True"})


def test_interval_of_readings_shows_by_their_number() -> None:
    option = Option("--print-freq", "print_freq", 10)
    found = searched(option, {"reads": 4}, reads=1).turned["log_interval"]
    assert (found.flag, found.values, found.words) == ("--print-freq", (10, 100), {})
    assert searched(option, {"reads": 1}, reads=1).turned == {}


def test_workers_that_a_script_refuses_are_not_offered() -> None:
    option = Option("-j", "workers", 2)
    found = searched(option, None, {"num_workers": 3}, num_workers=2)
    assert found.turned["num_workers"].refused == (0,)
    assert found.values("num_workers", [0, 1, 2, 4]) == [1, 2, 4]


def test_workers_that_a_script_clamps_have_the_values_that_were_seen() -> None:
    found = searched(Option("-j", "workers", 8), {"num_workers": 0}, num_workers=2)
    turned = found.turned["num_workers"]
    assert (turned.baseline, turned.words) == (2, {"2": 8, "0": 0})
    assert found.values("num_workers", [0, 1, 2, 4]) == [0, 2]


def test_refused_are_values_of_the_knob_and_all_of_them() -> None:
    option = Option("--dtype", "dtype", "float32")
    tried = {
        "precision": [
            OtherWord("precision", option, "bfloat16", "float32", "bf16"),
            OtherWord("precision", option, "half", "float32", "fp16"),
            OtherWord("precision", option, "pure", "float32", "pure_bf16"),
        ]
    }

    def run(others: Sequence[OtherWord]) -> SurveyResult:
        if others[0].word != "pure":
            raise BadInput("it fails")
        return changed(SEEN, {"precision": "pure_bf16"})

    found = find_own_options(run, SEEN, tried, lambda _: None, SearchTime(60))
    assert found.turned["precision"].refused == ("bf16", "fp16")


@pytest.mark.parametrize(
    ("effect", "doubt"),
    [
        ({}, "fp32 as before"),
        ({"precision": "bf16 and fp16"}, "then there is bf16 and fp16"),
        ({"precision": "bf16", "micro_batch": 4}, "changes the batch to 4 samples"),
        (None, "--amp true fails: it fails"),
    ],
)
def test_option_without_the_effect_of_its_knob_is_a_doubt(
    effect: Mapping[str, Any] | None, doubt: str
) -> None:
    found = searched(AMP, effect)
    assert found.turned == {}
    assert doubt in found.doubts[0]


def test_number_format_without_one_to_compare_with_is_a_doubt() -> None:
    option = Option("--amp-dtype", "amp_dtype", "float16")
    found = searched(option, {"precision": "bf16"}, precision="fp16")
    assert found.turned == {}
    assert "none to compare them with" in found.doubts[0]


def test_format_that_processors_do_not_gain_by_is_left_to_devices() -> None:
    found = searched(AMP, {"precision": "fp16"})
    assert found.fitting("cuda").turned.keys() == {"precision"}
    assert found.fitting("cpu").turned == {}
    assert "--amp has fp32 and fp16" in found.fitting("cpu").doubts[-1]
    off = searched(Option("/--no-amp", "amp", True), {"precision": "fp32"}, precision="fp16")
    assert off.fitting("cpu") == off
    assert searched(AMP, {"precision": "bf16"}).fitting("cpu").turned.keys() == {"precision"}


def test_word_that_shows_another_value_than_it_says_is_a_doubt() -> None:
    found = searched(Option("--dtype", "dtype", "float32"), {"precision": "fp16"})
    assert "--dtype bfloat16 is not precision: then there is fp16" in found.doubts


def test_second_option_is_tried_where_the_first_shows_nothing() -> None:
    options = [Option("--bf16", "bf16", False, switch=True), AMP]
    answers = iter([SEEN, changed(SEEN, {"precision": "bf16"})])
    tried = others(options, ON_CPU, 4)
    found = find_own_options(lambda _: next(answers), SEEN, tried, lambda _: None, SearchTime(60))
    assert found.turned["precision"].flag == "--amp"
    assert len(found.doubts) == 1


def test_options_are_left_out_when_the_time_for_them_is_over() -> None:
    tried = others([AMP], ON_CPU, 4)
    found = find_own_options(lambda _: SEEN, SEEN, tried, lambda _: None, SearchTime(-1))
    assert found.turned == {}
    assert "--amp was not tried" in found.doubts[0]


def test_compilation_that_would_end_late_is_not_begun() -> None:
    asked: list[str] = []

    def run(given: Sequence[OtherWord]) -> SurveyResult:
        asked.extend(one.option.flag for one in given)
        return SEEN

    tried = others([AMP, Option("--compile", "compile", False, switch=True)], ON_CPU, 4)
    found = find_own_options(run, SEEN, tried, lambda _: None, SearchTime(60.0, usual=30.0))
    assert asked == ["--amp"]
    assert "compile: --compile was not tried, as init took too long" in found.doubts


def test_recomputation_is_begun_on_devices_alone_and_left_off_anywhere() -> None:
    tried = others([Option("--ckpt", "grad_checkpointing", False), AMP], ON_CPU, 4)
    recomputes = changed(SEEN, {"activation_checkpointing": "on"})
    assert worth_trying(tried, SEEN, "cpu").keys() == {"precision"}
    assert worth_trying(tried, SEEN, "cuda") == tried
    assert worth_trying(tried, recomputes, "cpu") == tried


# Several at once

FAST = Option("--channels-last", "channels_last", False, switch=True)
FREQ = Option("--print-freq", "print_freq", 10)
_EFFECTS: Mapping[str, Mapping[str, Any]] = {
    "--amp": {"precision": "bf16", "reads": 9},
    "--channels-last": {"channels_last": True},
    "--print-freq": {},
    "-j": {"num_workers": 2},
}


class Script:
    """A script of several options, and the runs that it was asked for."""

    def __init__(self, *, refuses: frozenset[str] = frozenset(), split_by: str = "") -> None:
        self.runs: list[set[str]] = []
        self._refuses = refuses
        self._split_by = split_by

    def __call__(self, others: Sequence[OtherWord]) -> SurveyResult:
        flags = {one.option.flag for one in others}
        self.runs.append(flags)
        if self._refuses and self._refuses <= flags:
            raise BadInput("it fails")
        shown: dict[str, Any] = {"micro_batch": 4} if self._split_by in flags else {}
        for flag in flags:
            shown |= _EFFECTS[flag]
        return changed(SEEN, shown)

    def searched(self, *options: Option) -> OwnOptions:
        tried = others(options, ON_CPU, 4)
        return find_own_options(self, SEEN, tried, lambda _: None, SearchTime(60))


def test_options_of_several_knobs_share_a_run() -> None:
    script = Script()
    found = script.searched(AMP, FAST, Option("-j", "workers", 0))
    assert found.turned.keys() == {"precision", "channels_last", "num_workers"}
    assert script.runs == [{"--amp", "--channels-last"}, {"-j"}]


def test_options_that_fail_together_are_tried_alone() -> None:
    script = Script(refuses=frozenset({"--amp", "--channels-last"}))
    assert script.searched(AMP, FAST).turned.keys() == {"precision", "channels_last"}
    assert script.runs[1:] == [{"--amp"}, {"--channels-last"}]


def test_option_that_changes_the_batch_is_told_from_those_beside_it() -> None:
    found = Script(split_by="--amp").searched(AMP, FAST)
    assert found.turned.keys() == {"channels_last"}
    assert "changes the batch" in found.doubts[0]


def test_readings_of_a_loss_scaler_are_not_taken_for_those_of_an_interval() -> None:
    script = Script()
    assert "log_interval" not in script.searched(AMP, FREQ).turned
    assert script.runs == [{"--amp"}, {"--print-freq"}]
