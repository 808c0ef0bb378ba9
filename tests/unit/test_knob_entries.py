"""What every entry of the catalogue says, and that the effects beside a script say the same."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from autotune.export.formats import FORMATS
from autotune.worker.effects import apply, parallel
from autotune.worker.effects.feeding import OF_LOADER
from autotune.worker.inject import changes
from search_spaces import CATALOGUE, defaults
from search_spaces.catalogue import not_from_outside, without_target
from search_spaces.constraints import CONFLICTS, conflicts_of, why_not_taken_over
from search_spaces.knob import (
    ANY_WORKLOAD,
    DATA,
    DATASET,
    DDP,
    GRAPH,
    LOADER,
    MODEL,
    NUMBERS,
    ON_OR_OFF,
    OPTIMIZER,
    PROCESS,
    ROOT,
    SETTINGS,
    SHARDING,
    STATISTICS,
    STEP,
    VARIABLES,
    WRAPPER,
    Choice,
    Knob,
    NotWith,
    Via,
    field,
)
from search_spaces.needs import SHARDED, WITH_WORKERS
from tests.support.recommendations import of_workload

NOT_LEFT_OPEN = (
    *("domain", "default", "changes", "acts_on", "target", "inject"),
    *("only_with", "conflicts", "exports", "applied", "source", "parts"),
)
INJECTED = {
    VARIABLES: changes.VARIABLES,
    SETTINGS: changes.SETTINGS,
    DDP: changes.DDP,
    SHARDING: changes.SHARDING,
    ROOT: changes.ROOT,
    LOADER: changes.LOADER,
    OPTIMIZER: changes.OPTIMIZER,
}
EVERY_KNOB = pytest.mark.parametrize("knob", CATALOGUE.values(), ids=CATALOGUE)


@pytest.mark.parametrize("name", NOT_LEFT_OPEN)
def test_entry_without_a_field_is_refused(name: str) -> None:
    knob = CATALOGUE["prefetch_factor"]
    said = {field.name: getattr(knob, field.name) for field in dataclasses.fields(Knob)}
    del said[name]
    with pytest.raises(TypeError, match=name):
        Knob(**said)


@EVERY_KNOB
def test_entry_says_what_it_changes_of_the_training(knob: Knob) -> None:
    assert isinstance(knob.changes, frozenset)
    assert knob.changes <= {NUMBERS, DATA, GRAPH, STATISTICS}
    assert knob.changes or not knob.schedule
    assert STATISTICS in knob.changes or not knob.same_statistics
    assert knob.numerics or not knob.number_format


@EVERY_KNOB
def test_relations_name_knobs_and_their_values(knob: Knob) -> None:
    named = [(only.other, only.values) for only in knob.only_with]
    for told in knob.conflicts:
        given = [(name, (value,)) for name, value in told.given]
        named += [(knob.name, told.values), (told.other, told.of_other), *given]
    for name, values in [*named, *((name, ()) for name in knob.made_for)]:
        assert not [value for value in values if CATALOGUE[name].domain.problem(value)], name
    others = [*(only.other for only in knob.only_with), *(c.other for c in knob.conflicts)]
    assert knob.name not in {*others, *knob.made_for}


@EVERY_KNOB
def test_values_that_are_told_apart_are_values_of_the_knob(knob: Knob) -> None:
    told = [*knob.lasting, *(knob.stateful or ()), *itertools.chain(*knob.same_statistics)]
    if knob.inject:
        told += knob.inject.values
        told += [] if knob.inject.baseline is None else [knob.inject.baseline]
    assert not [value for value in told if knob.domain.problem(value)]
    assert knob.default not in (*knob.lasting, *(knob.stateful or ()))


@EVERY_KNOB
def test_entry_says_where_it_acts_and_so_what_a_warm_worker_can_swap(knob: Knob) -> None:
    assert knob.acts_on in (PROCESS, MODEL, WRAPPER, STEP)
    assert knob.acts_on == STEP or knob.reversible or not knob.lasting, "it takes new processes"
    assert knob.acts_on == MODEL or not knob.reversible
    others = [CATALOGUE[name] for name in knob.made_for]
    assert all(other.acts_on == STEP or other.reversible for other in others)


def test_knobs_that_a_warm_worker_undoes_on_the_model_are_those_that_it_looks_at() -> None:
    assert {*apply.ON_FORWARD} == {name for name, knob in CATALOGUE.items() if knob.reversible}


def test_conflicts_of_the_catalogue_are_those_of_its_entries() -> None:
    told = sum(len(knob.only_with) + len(knob.conflicts) for knob in CATALOGUE.values())
    assert len(CONFLICTS) == told
    assert not [conflict for conflict in CONFLICTS if conflict.holds(defaults())]


@EVERY_KNOB
def test_words_of_an_entry_are_those_of_a_format_with_words(knob: Knob) -> None:
    assert knob.exports.keys() <= {
        "hf-trainer",
        "accelerate",
        "lightning",
        "deepspeed",
        "torchtitan",
    }


def test_new_entry_is_all_that_the_derived_tables_need(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Knob(
        name="in_order",
        domain=ON_OR_OFF,
        default=True,
        summary="batches come in the order of the sampler",
        changes=frozenset({DATA}),
        acts_on=STEP,
        target=DATASET,
        inject=Via(LOADER, values=(False,)),
        applied="DataLoader(in_order=...)",
        source="PyTorch torch.utils.data.DataLoader",
        parts=("loader",),
        only_with=(WITH_WORKERS,),
        conflicts=(NotWith("persistent_workers", "a test"),),
        exports={"torchtitan": field("dataloader.in_order")},
    )
    monkeypatch.setitem(CATALOGUE, toy.name, toy)
    alone = {**defaults(), toy.name: False}
    beside = {**alone, "num_workers": 2}
    conflicts = [*conflicts_of([toy])]
    assert [one.second for one in conflicts if one.holds(alone)] == ["num_workers"]
    assert not [one for one in conflicts if one.holds(beside)]
    both = {**beside, "persistent_workers": True}
    assert [one.second for one in conflicts if one.holds(both)] == ["persistent_workers"]
    assert not not_from_outside(toy.name, [False], True)
    assert not_from_outside(toy.name, [True], False)
    assert toy.name in without_target([DATASET])
    assert why_not_taken_over(alone, defaults()) == ""
    assert "--dataloader.no_in_order" in FORMATS["torchtitan"](of_workload(alone)).text
    assert FORMATS["hf-trainer"](of_workload(alone)).unsaid[toy.name] is False


# What runs beside a script imports nothing of the catalogue: it declares what it does


@EVERY_KNOB
def test_knob_is_injected_where_its_entry_says(knob: Knob) -> None:
    there = {through for through, names in INJECTED.items() if knob.name in names}
    assert there == ({knob.inject.through} if knob.inject else set())


@EVERY_KNOB
def test_target_of_a_knob_is_looked_for_by_a_rank(knob: Knob) -> None:
    assert knob.target in {ANY_WORKLOAD, apply.ATTENTION, *apply.TARGETS}


def test_every_target_is_that_of_a_knob() -> None:
    targets = {knob.target for knob in CATALOGUE.values()}
    assert targets >= {apply.ATTENTION, *apply.TARGETS}


@pytest.mark.parametrize("name", OF_LOADER)
def test_argument_of_the_loader_is_the_one_that_the_entry_names(name: str) -> None:
    assert CATALOGUE[name].applied == f"DataLoader({name}=...)"


@pytest.mark.parametrize("name", parallel.DDP_ARGUMENTS)
def test_argument_of_ddp_is_the_one_that_the_entry_names(name: str) -> None:
    assert CATALOGUE[name].applied == f"DistributedDataParallel({name}=...)"


def test_sharded_values_are_the_same_on_both_sides() -> None:
    assert parallel.SHARDING == SHARDED
    domain = CATALOGUE["parallelism"].domain
    assert isinstance(domain, Choice) and {*SHARDED} < {*domain.values}


@pytest.mark.parametrize("name", [name for name, knob in CATALOGUE.items() if knob.inject])
def test_knob_that_acts_from_outside_is_documented(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text("utf-8")
    of_nccl = name.startswith("nccl_") or name == "expandable_segments"
    assert ("NCCL and allocator settings" if of_nccl else name) in text
