"""Knobs whose target a workload lacks are not named as answers."""

import dataclasses

from torch import nn

from autotune.analysis.findings import findings
from autotune.worker import workload
from autotune.worker.effects.apply import lacking, targets_in
from autotune.worker.rank.trace import PARTS
from autotune.workloads import BUILT_IN
from search_spaces import CATALOGUE, Facts, defaults
from search_spaces.catalogue import without_target
from tests.support.one_rank import regression

OF_TRANSFORMERS = {"activation_checkpointing", "compile_scope", "float8", "qkv_streams"}


def unusable(of: workload.Workload) -> list[str]:
    return without_target(lacking(of))


def test_every_one_of_them_is_a_knob() -> None:
    bare = dataclasses.replace(
        regression(nn.Linear(3, 3)),
        dataset=None,
        batches=lambda *_: [],
        optimizer=None,
        optimizer_step=print,
    )
    found = unusable(bare)
    assert set(found) <= set(CATALOGUE)
    assert {"num_workers", "optimizer_kernels", "channels_last", "layer_keep"} < set(found)
    assert "micro_batch" not in found


def test_what_a_model_has_is_usable() -> None:
    gpt = workload.build(BUILT_IN["gpt"], {"layers": 2, "d_model": 32, "heads": 2, "length": 8})
    assert not {*OF_TRANSFORMERS, "loss_chunks", "num_workers"} & set(unusable(gpt))
    assert {"channels_last", "cudnn_benchmark"} <= set(unusable(gpt))
    images = workload.build(BUILT_IN["convnet"], {"size": 8, "width": 4, "blocks": 2})
    assert not {"channels_last", "broadcast_buffers"} & set(unusable(images))
    assert "qkv_streams" in unusable(images)


def test_channels_last_is_for_images_and_the_search_for_kernels_for_every_convolution() -> None:
    for convolution, missing in ((nn.Conv1d, True), (nn.Conv2d, False), (nn.Conv3d, True)):
        found = unusable(regression(convolution(4, 4, 3)))
        assert ("channels_last" in found) is missing
        assert "cudnn_benchmark" not in found


def test_findings_and_first_trials_leave_them_out() -> None:
    parts = {part: [0.0, 0.0] for part in PARTS} | {"compute": [1.0, 1.0]}
    profile = {"parts": parts, "peaks": [1, 1]}
    facts = Facts("cuda", 2, (9, 0), backend="nccl")
    everything = findings(profile, defaults(), facts)[0].knobs
    some = findings({**profile, "unusable": ["channels_last", "attention"]}, defaults(), facts)[0]
    assert set(everything) - set(some.knobs) == {"channels_last", "attention"}
    targets = ["convolutions", "image convolutions", "attention"]
    lacks = findings({**profile, "lacks": targets}, defaults(), facts)[0]
    without = {"channels_last", "cudnn_benchmark", "attention"}
    assert set(everything) - set(lacks.knobs) == without


def test_script_whose_root_is_a_linear_layer_has_none_for_float8() -> None:
    assert "float8 layers" not in targets_in(nn.Linear(16, 16))
    assert "float8 layers" in targets_in(nn.Sequential(nn.Linear(16, 16)))
    assert "float8" not in unusable(regression(nn.Linear(16, 16))), "the loop can replace it"
