"""Which options are tried for a knob, and whether what a script did with one makes it that knob."""

import dataclasses

from autotune.standalone.flags import Trial, answers, candidates, shared
from autotune.worker.surveyed import Option, Surveyed


def seen(*options, micro_batch=8, accumulation_steps=2):
    several = tuple(Option(f"--{name}", name, value) for name, value in options)
    return Surveyed(
        steps=4, micro_batch=micro_batch, accumulation_steps=accumulation_steps, options=several
    )


def tried(found, knob):
    return [trial.option.name for trial in candidates(found).get(knob, ())]


def test_names_that_frameworks_give_them():
    found = seen(
        ("per_device_train_batch_size", 8),
        ("per_device_eval_batch_size", 8),
        ("gradient_accumulation_steps", 2),
        ("lr", 8),
        ("epochs", 2),
    )
    assert tried(found, "micro_batch") == ["per_device_train_batch_size"]
    assert tried(found, "accumulation_steps") == ["gradient_accumulation_steps"]


def test_the_one_that_says_what_is_seen_comes_first():
    found = seen(("batch_size", 64), ("micro_batch_size", 8), ("val_batch_size", 8))
    assert tried(found, "micro_batch") == ["micro_batch_size", "batch_size"]


def test_what_is_not_a_whole_number_is_not_tried():
    found = seen(("batch_size", "auto"), ("drop_last_batch", True), ("accumulate", None))
    assert candidates(found) == {}


def test_a_smaller_batch_is_tried_as_it_surely_fits():
    assert candidates(seen(("bs", 8)))["micro_batch"][0].value == 4
    assert candidates(seen(("bs", 1), micro_batch=1))["micro_batch"][0].value == 2


def test_only_what_the_script_did_counts():
    before = seen(("bs", 8))
    trial = Trial(before.options[0], 4)
    assert answers("micro_batch", trial, before, dataclasses.replace(before, micro_batch=4))
    assert not answers("micro_batch", trial, before, before)
    both = dataclasses.replace(before, micro_batch=4, accumulation_steps=4)
    assert not answers("micro_batch", trial, before, both), "it keeps a global batch by itself"
    assert shared("micro_batch", trial, dataclasses.replace(before, micro_batch=2), 2)
