"""What a finalist is compared with."""

from autotune.analysis.gate import reference_knobs
from search_spaces import Facts, defaults, infeasible

ON_GPU = Facts("cuda", 2, (9, 0), backend="nccl")


def test_the_reference_is_the_baseline_in_fp32() -> None:
    baseline = {
        **defaults(),
        "precision": "bf16",
        "gradient_compression": "powersgd",
        "powersgd_rank": 4,
        "find_unused_parameters": True,
        "compile": "default",
        "loss_chunks": 4,
    }
    checked = {**baseline, "micro_batch": 4, "float8": "tensorwise", "layer_keep": 1}
    assert reference_knobs(checked, baseline) == {
        **baseline,
        "micro_batch": 4,
        "precision": "fp32",
        "gradient_compression": "none",
        "powersgd_rank": 1,
    }


def test_what_does_not_go_with_fp32_has_its_default() -> None:
    baseline = {**defaults(), "precision": "bf16", "attention": "flash"}
    reference = reference_knobs({**baseline, "compile": "default"}, baseline)
    assert (reference["precision"], reference["attention"]) == ("fp32", "auto")
    assert infeasible(reference, ON_GPU) == []


def test_what_does_not_go_with_what_is_trained_has_its_default() -> None:
    baseline = {**defaults(), "static_graph": True}
    reference = reference_knobs({**baseline, "layer_keep": 0.5}, baseline)
    assert (reference["layer_keep"], reference["static_graph"]) == (0.5, False)
