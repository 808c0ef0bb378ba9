"""The search for what turns a batch, over scripts that are functions: which runs it makes, and what it
makes of their answers."""

from collections.abc import Callable, Mapping

import pytest

from autotune.errors import BadInput
from autotune.standalone.batch_settings import BatchSettings, find_batch_settings
from autotune.standalone.survey import of_all_nodes, without_guess
from autotune.worker.survey_result import Option, SurveyResult

Script = Callable[[dict[str, int]], tuple[int, int]]
"""Settings -> micro-batch and accumulation of one rank."""


def searched(
    script: Script, baseline: dict[str, int], workers: int = 1, *, loader: bool = True
) -> tuple[BatchSettings, list[set[str]]]:
    """What is found of a script, and which settings each run changed."""
    runs: list[set[str]] = []

    def look(settings: Mapping[str, int]) -> SurveyResult:
        runs.append(set(settings))
        micro_batch, steps = script({**baseline, **settings})
        return SurveyResult(
            steps=4, micro_batch=micro_batch, accumulation_steps=steps, loader=loader
        )

    micro_batch, steps = script(baseline)
    options = tuple(Option(flag, flag.lstrip("-"), value) for flag, value in baseline.items())
    seen = SurveyResult(
        steps=4, micro_batch=micro_batch, accumulation_steps=steps, loader=loader, options=options
    )
    return find_batch_settings(look, seen, workers, lambda _: None), runs


def test_each_setting_is_tried_once_until_one_turns_the_knob() -> None:
    found, runs = searched(
        lambda s: (s["--batch"], s["--accumulate"]), {"--batch": 8, "--accumulate": 2, "--width": 8}
    )
    assert found.flags == {"micro_batch": "--batch", "accumulation_steps": "--accumulate"}
    assert runs == [{"--batch"}, {"--accumulate"}]


def test_setting_of_the_micro_batch_alone_ends_the_search_where_the_global_batch_is_kept() -> None:
    found, runs = searched(
        lambda s: (s["--device-batch-size"], 32 // s["--device-batch-size"]),
        {"--device-batch-size": 8, "--accumulate": 4},
    )
    assert found.flags == {"micro_batch": "--device-batch-size"}
    assert found.keeps_global_batch
    assert len(runs) == 1


def test_script_that_divides_its_batch_by_its_accumulation_is_told_that() -> None:
    found, _ = searched(lambda s: (32 // s["--accum"], s["--accum"]), {"--accum": 2, "--size": 16})
    assert found.flags == {"accumulation_steps": "--accum"}
    assert found.keeps_global_batch


def test_setting_over_all_ranks_is_found_in_one_run() -> None:
    found, runs = searched(lambda s: (s["--batch-size"] // 2, 3), {"--batch-size": 16}, workers=2)
    assert found.flags == {"micro_batch": "--batch-size"}
    assert found.global_flags == ("micro_batch",)
    assert len(runs) == 1


def tied(settings: dict[str, int]) -> tuple[int, int]:
    micro_batch, steps = settings["--micro-batch"], settings["--gas"]
    if micro_batch * steps != 16:
        raise BadInput("train_batch_size is not the product")
    return micro_batch, steps


def test_setting_that_is_refused_alone_is_tried_with_the_accumulation() -> None:
    found, runs = searched(tied, {"--micro-batch": 8, "--gas": 2})
    assert found.flags == {"micro_batch": "--micro-batch", "accumulation_steps": "--gas"}
    assert found.doubts == ()
    assert runs == [{"--micro-batch"}, {"--micro-batch", "--gas"}]


def test_settings_that_a_script_says_twice_are_changed_together() -> None:
    def script(settings: dict[str, int]) -> tuple[int, int]:
        if settings["--batch-size"] != settings["--micro-batch"]:
            raise BadInput("mismatch")
        return tied(settings)

    baseline = {"--batch-size": 8, "--micro-batch": 8, "--gas": 2}
    found, runs = searched(script, baseline)
    assert found.in_proportion == {
        "micro_batch": {"--batch-size": 8, "--micro-batch": 8},
        "accumulation_steps": {"--gas": 2},
    }
    assert len(runs) <= 4


def test_settings_of_two_loaders_are_changed_in_proportion() -> None:
    found, _ = searched(lambda s: (s["--a-bs"] + s["--b-bs"], 1), {"--a-bs": 4, "--b-bs": 12})
    assert found.in_proportion == {"micro_batch": {"--a-bs": 4, "--b-bs": 12}}


def test_what_is_named_for_the_batch_is_tried_before_what_has_its_value_by_chance() -> None:
    found, runs = searched(
        lambda s: (s["--batch-size"] // 8, 1), {"--layers": 2, "--batch-size": 16}, loader=False
    )
    assert found.in_proportion == {"micro_batch": {"--batch-size": 16}}
    assert runs == [{"--batch-size"}]


def test_setting_of_another_batch_than_a_model_is_given_is_tried_all_the_same() -> None:
    found, runs = searched(lambda _: (5, 1), {"--layers": 5, "--batch-size": 16}, loader=False)
    assert runs == [{"--batch-size"}, {"--layers"}]
    assert not found.settings_by_knob
    assert found.doubts[0] == (
        "--batch-size does not make up micro_batch: with 32 there were 5 samples a micro-batch, "
        "1 micro-batch a step"
    )


def test_batch_that_a_loader_tells_is_no_part_of_a_setting() -> None:
    found, runs = searched(lambda _: (5, 1), {"--batch-size": 16})
    assert not runs
    assert not found.doubts


def test_samples_that_a_model_returns_count_once_a_setting_has_turned_them() -> None:
    seen = SurveyResult(steps=4, micro_batch=8, returned=True)
    turned = BatchSettings({"micro_batch": "--batch-size"})
    assert without_guess(seen, turned) == (seen, turned)
    other, found = without_guess(seen, BatchSettings({"accumulation_steps": "--a"}, doubts=("x",)))
    assert other.counts_steps
    assert found == BatchSettings(doubts=("x",))


def test_setting_that_does_nothing_is_a_doubt() -> None:
    found, _ = searched(lambda _: (8, 1), {"--batch-size": 8})
    assert found.flags == {}
    assert len(found.doubts) == 1


def test_micro_batch_that_the_script_cannot_have_smaller_is_tried_larger() -> None:
    def script(settings: dict[str, int]) -> tuple[int, int]:
        if settings["--batch-size"] < 2:
            raise BadInput("expected more than 1 value per channel")
        return settings["--batch-size"], 1

    found, runs = searched(script, {"--batch-size": 2})
    assert found.flags == {"micro_batch": "--batch-size"}
    assert not found.doubts
    assert len(runs) == 2


def test_micro_batch_of_one_sample_that_tells_nothing_is_tried_larger() -> None:
    found, _ = searched(lambda s: (max(2, s["-b"]), 1), {"-b": 2})
    assert found.flags == {"micro_batch": "-b"}


def of_gradients(
    script: Script, baseline: dict[str, int], gradient: Callable[[int, int], float]
) -> BatchSettings:
    """Search a script whose first gradient depends on its micro-batch and accumulation."""

    def look(settings: Mapping[str, int]) -> SurveyResult:
        size, steps = script({**baseline, **settings})
        return SurveyResult(
            steps=4,
            micro_batch=size,
            accumulation_steps=steps,
            loader=True,
            first_gradient=gradient(size, steps),
            options=tuple(
                Option(flag, flag.lstrip("-"), value) for flag, value in baseline.items()
            ),
        )

    return find_batch_settings(look, look({}), 1, lambda _: None)


def test_gradient_in_proportion_to_the_accumulation_steps_is_that_of_summed_losses() -> None:
    baseline = {"--batch": 8, "--accumulate": 2}

    def both(settings: dict[str, int]) -> tuple[int, int]:
        return settings["--batch"], settings["--accumulate"]

    assert of_gradients(both, baseline, lambda _, steps: 1.1 * steps).sums
    assert not of_gradients(both, baseline, lambda size, steps: 3 / (size * steps) ** 0.5).sums
    assert not of_gradients(both, baseline, lambda *_: 0.0).sums, "not known"
    assert not of_gradients(both, baseline, lambda size, steps: size * steps).sums, "of all rows"
    assert of_gradients(
        lambda s: (32 // s["--accum"], s["--accum"]),
        {"--accum": 2, "--size": 16},
        lambda _, steps: 0.2 * steps,
    ).sums


OF_ALL = ("accumulation_steps",)
BOTH = {"micro_batch": "--b", "accumulation_steps": "--a"}
DERIVED = BatchSettings({"micro_batch": "--b"}, keeps_global_batch=True)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (BatchSettings(BOTH), (6, 10)),
        (BatchSettings(BOTH, global_flags=OF_ALL), (6, 5)),
        (BatchSettings(BOTH, global_flags=("micro_batch",)), (3, 10)),
        (DERIVED, (6, 5)),
        (BatchSettings(in_proportion={"micro_batch": {"--b": 6}}, keeps_global_batch=True), (6, 5)),
        (BatchSettings({"accumulation_steps": "--a"}, keeps_global_batch=True), (3, 10)),
    ],
)
def test_ranks_of_more_nodes_share_what_counts_all_of_them(
    found: BatchSettings, expected: tuple[int, int]
) -> None:
    seen = of_all_nodes(SurveyResult(micro_batch=6, accumulation_steps=10), found, 2)
    assert (seen.micro_batch, seen.accumulation_steps) == expected


@pytest.mark.parametrize("found", [DERIVED, BatchSettings(BOTH, global_flags=OF_ALL)])
def test_what_more_nodes_cannot_share_evenly_is_refused(found: BatchSettings) -> None:
    with pytest.raises(BadInput, match=r"accumulation_steps is 5 .* of all 2: give a number"):
        of_all_nodes(SurveyResult(micro_batch=6, accumulation_steps=5), found, 2)
