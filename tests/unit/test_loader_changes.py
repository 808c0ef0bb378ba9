"""Loaders of a script under knobs of DataLoader: those of its training and of its evaluation."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from autotune.worker.inject.changes import Changes
from tests.support.apart import run_apart
from tests.support.trials import knobs

_ROWS = torch.ones(4, 1)


def _changes(baseline: dict[str, Any], **wanted: Any) -> Changes:
    changes = Changes(knobs(**wanted), tuple(wanted), baseline)
    changes.begin()
    return changes


def _workers(loader: DataLoader[Any]) -> int:
    return int(getattr(iter(loader), "_num_workers"))  # noqa: B009 - no attribute in its stubs


def _other_loader() -> None:
    changes = _changes({"num_workers": 2}, num_workers=1)
    other = DataLoader(_ROWS)
    assert _workers(other) == 0
    assert changes.idle() == ["num_workers"]
    training = DataLoader(_ROWS, num_workers=2)
    assert _workers(training) == 1
    assert not changes.idle()


@pytest.mark.long
def test_loader_with_other_workers_than_the_baseline_keeps_them() -> None:
    run_apart(_other_loader)


def _read_by_an_evaluation() -> None:
    _changes({"num_workers": 0}, num_workers=1, persistent_workers=True)
    loader = DataLoader(_ROWS)
    assert _workers(loader) == 1
    with torch.no_grad():
        assert _workers(loader) == 0
    assert _workers(loader) == 1


@pytest.mark.long
def test_loader_is_as_the_script_has_built_it_while_gradients_are_disabled() -> None:
    run_apart(_read_by_an_evaluation)


def _without_workers() -> None:
    _changes({"num_workers": 1}, num_workers=0)
    loader = DataLoader(_ROWS, num_workers=1, timeout=9, persistent_workers=True)
    assert _workers(loader) == 0
    with torch.inference_mode():
        assert _workers(loader) == 1
        assert loader.timeout == 0
    assert len(list(loader)) == 4


def test_workers_of_an_evaluation_stay() -> None:
    run_apart(_without_workers)


def _first_batch_without_gradients() -> None:
    changes = _changes({"num_workers": 0}, num_workers=1)

    def drawn(**order: Any) -> Iterator[Any]:
        yield from DataLoader(_ROWS, **order)

    with torch.no_grad():
        next(drawn(shuffle=False))
        assert changes.idle() == ["num_workers"]
        training = DataLoader(_ROWS, shuffle=True)
        assert _workers(training) == 1
    assert not changes.idle()


def test_loader_that_shuffles_is_changed_wherever_it_is_first_read() -> None:
    run_apart(_first_batch_without_gradients)


def _that_constructs_itself() -> None:
    changes = _changes({"num_workers": 0}, num_workers=1)
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(_ROWS, batch_size=2)
    assert changes.idle() == ["num_workers"]
    assert _workers(loader) == 1
    with torch.no_grad():
        assert _workers(loader) == 0
    assert not changes.idle()
    assert [batch.tolist() for batch in loader] == [[[1.0], [1.0]]] * 2
    assert _workers(DataLoader(_ROWS)) == 1


def _with_state() -> None:
    _changes({"num_workers": 0}, num_workers=1)
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(_ROWS)
    loader.state_dict()
    with torch.no_grad():
        assert len([*loader]) == 4
        before = loader.state_dict()
        next(iter(loader))
        assert loader.state_dict() != before
    assert len([*loader]) == 4


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def _streamed_with_state() -> None:
    _changes({"num_workers": 1}, num_workers=0)
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(_Stream(), num_workers=1, persistent_workers=True)
    loader.state_dict()
    with torch.no_grad():
        assert [len([*loader]) for _ in range(3)] == [4, 4, 4]


@pytest.mark.long
def test_evaluation_on_a_stream_has_all_batches_each_time() -> None:
    pytest.importorskip("torchdata")
    run_apart(_streamed_with_state)


@pytest.mark.long
def test_state_of_a_loader_of_torchdata_is_that_of_its_iterator() -> None:
    pytest.importorskip("torchdata")
    run_apart(_with_state)


@pytest.mark.long
def test_stateful_loader_of_torchdata_is_changed_as_well() -> None:
    pytest.importorskip("torchdata")
    run_apart(_that_constructs_itself)


def _persistent() -> None:
    _changes({"num_workers": 2}, num_workers=1)
    loader = DataLoader(_ROWS, num_workers=2, persistent_workers=True)
    for _ in range(2):
        with torch.no_grad():
            assert _workers(loader) == 2
        assert _workers(loader) == 1


@pytest.mark.long
def test_persistent_workers_of_an_evaluation_are_not_those_of_the_training() -> None:
    run_apart(_persistent)


def _of_another_machine() -> None:
    changes = _changes({"num_workers": 8}, num_workers=1)
    assert _workers(DataLoader(_ROWS, num_workers=3)) == 3
    assert changes.idle() == ["num_workers"]
    assert _workers(DataLoader(_ROWS, shuffle=True, num_workers=3)) == 1
    assert not changes.idle()


@pytest.mark.long
def test_loader_that_shuffles_is_changed_whatever_workers_the_machine_gives_it() -> None:
    run_apart(_of_another_machine)


def _derived(wanted: bool) -> None:
    changes = _changes({"persistent_workers": False, "num_workers": 0}, persistent_workers=wanted)
    loader = DataLoader(_ROWS, num_workers=1, persistent_workers=True)
    assert loader.persistent_workers is wanted
    iter(loader)
    assert not changes.idle()


@pytest.mark.parametrize("wanted", [True, False])
def test_script_may_derive_what_it_says_of_workers_from_their_number(wanted: bool) -> None:
    run_apart(functools.partial(_derived, wanted))


def _has_it_already() -> None:
    changes = _changes({"prefetch_factor": 2}, prefetch_factor=4)
    iter(DataLoader(_ROWS, num_workers=1, prefetch_factor=4))
    assert not changes.idle()


@pytest.mark.long
def test_loader_that_has_the_wanted_value_already_is_one_that_has_it() -> None:
    run_apart(_has_it_already)


def _built_anew() -> None:
    _changes({"num_workers": 1}, num_workers=0)
    loader = DataLoader(_ROWS, num_workers=1, multiprocessing_context="fork")
    names = ("num_workers", "multiprocessing_context", "timeout", "prefetch_factor")
    anew = DataLoader(_ROWS, **{name: getattr(loader, name) for name in names})
    assert _workers(anew) == 0
    with torch.no_grad():
        assert loader.multiprocessing_context is None
        assert _workers(loader) == 1


def test_framework_can_build_a_loader_without_workers_anew_by_its_attributes() -> None:
    run_apart(_built_anew)


def _of_workers(given: dict[str, Any], found: int) -> None:
    baseline = {"prefetch_factor": 2}
    _changes(baseline, prefetch_factor=4)
    assert getattr(iter(DataLoader(_ROWS, num_workers=1, **given)), "_prefetch_factor") == found  # noqa: B009


@pytest.mark.parametrize(("given", "found"), [({}, 4), ({"prefetch_factor": 3}, 3)])
@pytest.mark.long
def test_value_that_no_argument_gives_is_the_default(given: dict[str, Any], found: int) -> None:
    run_apart(functools.partial(_of_workers, given, found))
