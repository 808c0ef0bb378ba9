"""Which settings are tried for a knob, and whether what a script did with one makes it that knob."""

import dataclasses

from autotune.standalone import flags
from autotune.standalone.flags import answers, candidates, keeps
from autotune.worker.survey_result import Option, SurveyResult
from search_spaces.batch import ACCUMULATION, MICRO_BATCH


def seen(*options, micro_batch=8, accumulation_steps=2, **more):
    several = tuple(Option(f"--{name}", name, value) for name, value in options)
    return SurveyResult(
        steps=4,
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        options=several,
        **more,
    )


def typed(command, variables=None, fields=(), **found):
    """What was seen of a script whose parser is its own."""
    bare = seen(**found)
    options = flags.settings_of(bare, command.split(), variables or {}, fields)
    return dataclasses.replace(bare, options=options)


def tried(found, knob, workers=1):
    return [other.option.flag for other in candidates(found, workers).get(knob, ())]


def test_option_of_one_letter_is_tried_as_it_is_typed():
    assert tried(typed("train.py -b8 -vv"), MICRO_BATCH) == ["-b"]


def test_setting_that_no_study_file_can_name_is_not_tried():
    of_file = [*flags.fields("a.yaml", "Batch Size: 8\ntrain: {batch: 8}\n", [], {})]
    of_parser = seen(("batch_size", 8))
    odd = Option("+b", "batch", 8)
    options = flags.settings_of(
        dataclasses.replace(of_parser, options=(*of_parser.options, odd)), [], {}, of_file
    )
    assert [option.flag for option in options] == ["--batch_size", "a.yaml::train.batch"]


def test_names_of_frameworks_are_tried_first():
    found = seen(
        ("lr", 8),
        ("per_device_eval_batch_size", 8),
        ("per_device_train_batch_size", 8),
        ("epochs", 2),
        ("gradient_accumulation_steps", 2),
    )
    assert tried(found, MICRO_BATCH)[0] == "--per_device_train_batch_size"
    assert tried(found, ACCUMULATION) == ["--gradient_accumulation_steps", "--epochs"]


def test_setting_of_another_value_than_was_seen_is_no_candidate():
    found = seen(("batch_size", 64), ("micro_batch_size", 8), ("max_batch_tokens", 4096))
    assert tried(found, MICRO_BATCH) == ["--micro_batch_size"]


def test_value_that_is_no_whole_number_is_not_tried():
    found = seen(("batch_size", "auto"), ("drop_last_batch", True), ("accumulate", None))
    assert candidates(found) == {}


def test_value_of_one_is_tried_only_where_the_name_fits():
    found = seen(("nodes", 1), ("accumulate", 1), accumulation_steps=1)
    assert tried(found, ACCUMULATION) == ["--accumulate"]
    layers = seen(("layers", 2), ("accumulate", 1), accumulation_steps=1)
    assert tried(layers, ACCUMULATION, workers=2) == ["--accumulate"]


def test_words_of_the_command_are_candidates_whatever_parses_them():
    assert tried(typed("--trainer.batch_size=8"), MICRO_BATCH) == ["--trainer.batch_size="]
    assert tried(typed("mode=train batch=8 epochs=9"), MICRO_BATCH) == ["batch="]
    assert tried(typed("-v -b 8 x"), MICRO_BATCH) == ["-b"]
    assert tried(typed("--n-at-a-time 8"), MICRO_BATCH) == ["--n-at-a-time"]
    lightning = typed("--data.batch_size=8 --trainer.accumulate_grad_batches=2 --trainer.devices=2")
    assert tried(lightning, ACCUMULATION)[0] == "--trainer.accumulate_grad_batches="


def test_option_that_a_parser_knows_is_tried_once():
    parsed = seen(("batch_size", 8))
    options = flags.settings_of(parsed, ["--batch_size=8"], {})
    assert [option.flag for option in options] == ["--batch_size"]


def test_variables_that_the_command_sets_come_before_guesses():
    guess = Option("--BATCH=", "BATCH", 8, sure=False)
    bare = dataclasses.replace(seen(), options=(guess,))
    options = flags.settings_of(bare, [], {"BATCH_SIZE": "8", "OMP_NUM_THREADS": "4"})
    found = dataclasses.replace(bare, options=options)
    assert tried(found, MICRO_BATCH) == ["$BATCH_SIZE", "--BATCH="]


def test_at_most_three_settings_are_tried_for_a_knob():
    found = seen(*((f"size_{number}", 8) for number in range(9)))
    assert len(candidates(found)[MICRO_BATCH]) == 3


def test_setting_that_counts_all_ranks_is_given_their_sum():
    (other,) = candidates(seen(("batch_size", 16)), workers=2)[MICRO_BATCH]
    assert (other.value, other.given) == (4, 8)


def test_other_split_has_as_many_samples_and_a_smaller_batch():
    assert flags.another_split(seen()) == (4, 4)
    assert flags.another_split(seen(micro_batch=6, accumulation_steps=1)) == (3, 2)
    assert flags.another_split(seen(micro_batch=1, accumulation_steps=1)) == (2, 2)
    assert flags.another_split(seen(micro_batch=1, accumulation_steps=8)) == (2, 4)


def test_only_what_the_script_did_counts():
    before = seen(("bs", 8))
    (other,) = candidates(before)[MICRO_BATCH]
    after = dataclasses.replace(before, micro_batch=other.value)
    assert answers(MICRO_BATCH, other, before, after)
    assert not answers(MICRO_BATCH, other, before, before)
    assert not answers(ACCUMULATION, dataclasses.replace(other, value=2), before, before)


def test_script_that_accumulates_more_keeps_its_global_batch():
    before = seen(("device_batch_size", 8))
    (other,) = candidates(before)[MICRO_BATCH]
    after = dataclasses.replace(before, micro_batch=4, accumulation_steps=4)
    assert keeps(MICRO_BATCH, other, before, after)
    assert not answers(MICRO_BATCH, other, before, after)
    assert not keeps(MICRO_BATCH, other, before, dataclasses.replace(after, accumulation_steps=3))


def test_variable_that_was_divided_by_the_ranks_is_tried_over_all_of_them():
    guess = Option("--steps=", "steps", 2, sure=False)
    other = flags.OtherValue(guess, 4)
    halved = seen(accumulation_steps=2)
    together = flags.shared(ACCUMULATION, other, halved, 2)
    assert together is not None
    assert together.given == 8
    sure = dataclasses.replace(guess, sure=True)
    assert flags.shared(ACCUMULATION, flags.OtherValue(sure, 4), halved, 2) is None


def test_settings_that_sum_up_to_the_batch_may_make_it_up_together():
    found = seen(("labeled_bs", 4), ("unlabeled_bs", 12), ("epochs", 9), micro_batch=16)
    (both,) = flags.parts(found)
    assert both == {"--labeled_bs": 4, "--unlabeled_bs": 12}
    assert flags.other_whole(16, both) == 8
    assert flags.other_whole(4, {"--labeled_bs": 1, "--unlabeled_bs": 3}) == 8
    alone = seen(("batch_size", 4), ("mu", 3), micro_batch=16)
    assert flags.parts(alone) == ({"--batch_size": 4},)
