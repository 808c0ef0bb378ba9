"""Roots and optimizers of a script, each changed once, and the results of roots."""

import contextlib
import copy
import functools
import gc
import inspect
import io
import os
import tempfile
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from autotune.worker.effects.process import ALL_COLLECTING_STEPS, COLLECTING_STEPS
from autotune.worker.inject import job_order
from autotune.worker.inject.changes import Changes
from autotune.worker.inject.job_order import Order
from autotune.worker.inject.root_changes import RootChanges
from autotune.worker.inject.roots import PLACE, Call, Prepare, Roots
from autotune.worker.inject.steps import after_steps, before_steps
from autotune.worker.protocol import CHECKED_STEPS, COMPRESSION_WARM_UP, Script
from tests.support.apart import run_apart
from tests.support.trials import knobs

T = TypeVar("T")
MakeOptimizer = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
ChangeGroups = Callable[[torch.optim.Optimizer, nn.Parameter], None]
"""Change of an optimizer's groups, given a parameter that it lacks."""
_MANY = 100
"""Objects that are collected: the memory of some is taken by other objects."""
_MOST_TRIED = 10_000
"""Objects made until one has the id of an earlier one; CPython reuses it soon."""


def with_one_of(ids: set[int], make: Callable[[], T], of: Callable[[T], object]) -> T:
    """Make objects until what belongs to one has one of these ids; return that one."""
    gc.collect()
    kept = []
    for _ in range(_MOST_TRIED):
        made = make()
        if id(of(made)) in ids:
            return made
        kept.append(made)
    raise AssertionError("no id was used again")


def _optimizer_with_a_reused_id() -> None:
    Changes(knobs(optimizer_kernels="fused"), ("optimizer_kernels",)).begin()
    parameter = nn.Parameter(torch.ones(4))
    parameter.grad = torch.ones(4)

    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.AdamW([parameter])

    earlier = [optimizer() for _ in range(_MANY)]
    for one in earlier:
        one.step()
    ids = {id(one) for one in earlier}
    del one, earlier
    later = with_one_of(ids, optimizer, lambda made: made)
    later.step()
    assert later.param_groups[0]["fused"]


def test_optimizer_with_the_id_of_a_collected_one_is_changed() -> None:
    run_apart(_optimizer_with_a_reused_id)


class Outer(torch.optim.Optimizer):
    """Optimizer around another one, which shares its groups of parameters."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self.inner = torch.optim.SGD(parameters, lr=0.1)
        super().__init__(self.inner.param_groups, self.inner.defaults)

    def step(self, closure: None = None) -> None:
        self.inner.step(closure)


def _sharing(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1)


def _scaled_losses(make: MakeOptimizer, change: ChangeGroups = lambda *_: None) -> list[float]:
    """Train, and change the groups of the optimizer before the third of four steps."""
    torch.manual_seed(0)
    model, late = nn.Linear(4, 1), nn.Parameter(torch.zeros(1))
    optimizer, scaler = make(model.parameters()), torch.amp.GradScaler("cpu", init_scale=1024)
    x, losses = torch.randn(8, 4), []
    for step in range(4):
        if step == 2:
            change(optimizer, late)
        loss = (model(x) + late - 1).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return losses


def _fused_inside(make: MakeOptimizer) -> None:
    plain = _scaled_losses(functools.partial(torch.optim.SGD, lr=0.1))
    Changes(knobs(optimizer_kernels="fused"), ("optimizer_kernels",)).begin()
    assert _scaled_losses(make) == pytest.approx(plain)


@pytest.mark.parametrize(
    "make",
    [functools.partial(torch.optim.SGD, lr=0.1), Outer, _sharing],
    ids=["bare", "outer", "zero"],
)
def test_fused_updates_beside_a_scaler_have_gradients_without_its_scale(
    make: MakeOptimizer,
) -> None:
    run_apart(functools.partial(_fused_inside, make))


def _adds_a_group(optimizer: torch.optim.Optimizer, late: nn.Parameter) -> None:
    optimizer.add_param_group({"params": [late]})


def _loads_a_state(optimizer: torch.optim.Optimizer, _: nn.Parameter) -> None:
    untuned = torch.optim.Adam(optimizer.param_groups[0]["params"], lr=0.1)
    optimizer.load_state_dict(untuned.state_dict())


def _fused_in_changed_groups(change: ChangeGroups) -> None:
    make = functools.partial(torch.optim.Adam, lr=0.1)
    plain = _scaled_losses(make, change)
    Changes(knobs(optimizer_kernels="fused"), ("optimizer_kernels",)).begin()
    assert _scaled_losses(make, change) == pytest.approx(plain)


@pytest.mark.parametrize("change", [_adds_a_group, _loads_a_state], ids=["added", "loaded"])
def test_groups_that_come_later_are_fused_beside_a_scaler(change: ChangeGroups) -> None:
    run_apart(functools.partial(_fused_in_changed_groups, change))


def _second_optimizer(*, in_job: bool) -> None:
    names = ("optimizer_kernels",)
    Changes(knobs(optimizer_kernels="fused"), names, in_job=in_job).begin()
    parameter = nn.Parameter(torch.ones(4))

    def loss() -> float:
        parameter.grad = 2 * parameter.detach()
        return parameter.detach().square().sum().item()

    first = torch.optim.Adam([parameter], lr=0.1)
    first.step(loss)
    assert first.param_groups[0]["fused"]
    second, said = torch.optim.LBFGS([parameter], lr=0.1), io.StringIO()
    refused = contextlib.nullcontext() if in_job else pytest.raises(ValueError, match="no fused")
    before = loss()
    with refused, contextlib.redirect_stderr(said):
        second.step(loss)
        second.step(loss)
        torch.optim.LBFGS([parameter], lr=0.1).step(loss)
    if in_job:
        assert loss() < before
        assert said.getvalue().count("LBFGS has no fused implementation") == 1


class UnlikeGroups(torch.optim.Optimizer):
    """Optimizer that updates each group in another way, and one of them with no fused kernels."""

    def __init__(self, parameter: nn.Parameter) -> None:
        super().__init__([parameter], {"fused": False, "foreach": False})
        self.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        del self.param_groups[1]["fused"]

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


def _unlike_groups() -> None:
    Changes(knobs(optimizer_kernels="fused"), ("optimizer_kernels",), in_job=True).begin()
    optimizer, said = UnlikeGroups(nn.Parameter(torch.ones(1))), io.StringIO()
    with contextlib.redirect_stderr(said):
        optimizer.step()
        optimizer.step()
        optimizer.param_groups[0]["fused"] = False  # as a state that is loaded
        optimizer.step()
    assert not optimizer.param_groups[0]["fused"]
    assert said.getvalue().count("it is left as it is") == 1


def test_optimizer_with_a_group_without_such_kernels_is_left_as_it_is() -> None:
    run_apart(_unlike_groups)


@pytest.mark.parametrize("in_job", [False, True], ids=["trial", "job"])
def test_optimizer_without_such_kernels_ends_a_trial_and_no_job(in_job: bool) -> None:
    run_apart(functools.partial(_second_optimizer, in_job=in_job))


def _state_made_by_a_step() -> None:
    calls: list[str] = []
    before_steps(lambda *_: calls.append("before"))
    after_steps(lambda *_: calls.append("after"))
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    assert get_optimizer_state_dict(model, optimizer)["state"]
    assert not calls
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert calls == ["before", "after"]


def test_step_by_which_torch_makes_the_state_of_an_optimizer_is_none_of_the_training() -> None:
    run_apart(_state_made_by_a_step)


def _roots(prepare: Prepare = lambda _, own: own) -> Roots:
    roots = Roots(prepare)
    roots.watch()
    return roots


def _swapped_parameters() -> None:
    roots = _roots()
    torch.__future__.set_swap_module_params_on_conversion(True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    model.to(torch.float64)
    assert roots.takes(model)
    del optimizer


def test_parameters_of_a_root_can_be_swapped_once_an_optimizer_has_them() -> None:
    run_apart(_swapped_parameters)


def _parameters_replaced_in_an_optimizer() -> None:
    roots = _roots()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    model.weight, model.bias = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.ones(1))
    optimizer.param_groups[0]["params"] = list(model.parameters())
    assert roots.takes(model)


def test_model_whose_parameters_are_replaced_in_a_living_optimizer_is_a_root() -> None:
    run_apart(_parameters_replaced_in_an_optimizer)


def _compiled_in_place_and_settled() -> None:
    roots = _roots()
    model = nn.Linear(1, 1)
    model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters())
    roots.settle()
    model(torch.ones(1, 1))
    assert not roots.found
    del optimizer


def test_module_compiled_in_place_is_no_root_after_settling() -> None:
    run_apart(_compiled_in_place_and_settled)


def _compiled_as_a_root() -> None:
    prepared: list[nn.Module] = []
    calls: list[str] = []

    def prepare(root: nn.Module, own: Call) -> Call:
        prepared.append(root)

        def changed(*args: object) -> object:
            calls.append("changed")
            return own(*args)

        return changed

    roots = _roots(prepare)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(1, 1))
    uncompiled = vars(model)[PLACE].own
    model.compile(backend="eager")
    model(torch.ones(1, 1))
    assert vars(model)[PLACE].own is not uncompiled
    assert prepared == [model] == [*roots.found]
    assert len(calls) == 2
    del optimizer


def test_root_that_is_compiled_later_is_prepared_once_and_stays_changed() -> None:
    run_apart(_compiled_as_a_root)


class Redirected(nn.Linear):
    """Module whose training step is called in the place of its forward pass, as Lightning does it."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.seen: list[tuple[bool, bool]] = []

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Note what is in force here."""
        self.seen.append((torch.compiler.is_compiling(), torch.is_autocast_enabled("cpu")))
        return super().forward(x)

    def redirect(self) -> None:
        """Redirect the next forward pass."""
        forward = self.forward

        def training_step(x: torch.Tensor) -> torch.Tensor:
            self.forward = forward  # type: ignore[method-assign]
            found = self(x).square().mean()
            assert not torch.is_autocast_enabled("cpu"), "the loss is the script's"
            assert isinstance(found, torch.Tensor)
            return found

        self.forward = training_step  # type: ignore[method-assign]


def _train_redirected(steps: int) -> Redirected:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = Redirected()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = DistributedDataParallel(model)
    for _ in range(steps):
        model.redirect()
        wrapper(torch.ones(1, 2)).backward()
        optimizer.step()
    return model


def _training_step_that_calls_its_own_module() -> None:
    Changes(knobs(compile="default", precision="bf16"), ("compile", "precision")).begin()
    assert _train_redirected(3).seen == [(True, True)] * 3


@pytest.mark.long
def test_module_whose_training_step_calls_it_is_changed_in_every_step() -> None:
    run_apart(_training_step_that_calls_its_own_module)


def _copies_with_all_attributes() -> None:
    Changes(knobs(precision="bf16"), ("precision",)).begin()
    model = _train_redirected(1)
    del model.forward
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        for parameter in other.parameters():
            nn.init.zeros_(parameter)
        assert not other(torch.ones(1, 2)).any()


def test_copies_of_a_root_that_keep_all_attributes_have_their_own_weights() -> None:
    run_apart(_copies_with_all_attributes)


Export = Callable[[nn.Module, torch.Tensor], Call]


def _by_trace(model: nn.Module, x: torch.Tensor) -> Call:
    traced: Call = torch.jit.trace(model, x)
    return traced


def _by_export(model: nn.Module, x: torch.Tensor) -> Call:
    return torch.export.export(model, (x,)).module()


def _exported(export: Export, **wanted: Any) -> None:
    Changes(knobs(**wanted), tuple(wanted)).begin()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(1, 2)
    for _ in range(2):
        exported = export(model, x)
        with torch.no_grad():
            assert torch.equal(exported(x), model(x))
        model(x).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "wanted",
    [
        {"precision": "bf16"},
        {"compile": "default"},
        pytest.param({"compile": "default", "compile_scope": "blocks"}, marks=pytest.mark.long),
    ],
    ids=["bf16", "compiled", "blocks"],
)
@pytest.mark.parametrize("export", [_by_trace, _by_export])
def test_export_of_a_root_holds_the_model_as_the_script_has_it(
    export: Export, wanted: dict[str, Any]
) -> None:
    run_apart(functools.partial(_exported, export, **wanted))


def _one_after_another() -> None:
    Changes(knobs(precision="bf16"), ("precision",)).begin()
    formats: list[torch.dtype] = []

    class Telling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = super().forward(x)
            formats.append(found.dtype)
            return found

    def trained() -> weakref.ref[nn.Module]:
        model = Telling(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(CHECKED_STEPS + 2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return weakref.ref(model)

    first, second = trained(), trained()
    assert formats == [torch.bfloat16] * (2 * (CHECKED_STEPS + 2))
    gc.collect()
    assert first() is second() is None


def test_model_after_another_is_changed_and_neither_is_kept() -> None:
    run_apart(_one_after_another)


def _attention_of_every_pass(*, use_reentrant: bool) -> None:
    Changes(knobs(attention="flash"), ("attention",)).begin()
    unfused: list[bool] = []

    class Recomputing(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.look, x, use_reentrant=use_reentrant)

        def look(self, x: torch.Tensor) -> torch.Tensor:
            unfused.append(torch.backends.cuda.math_sdp_enabled())
            return super().forward(x)

    model = Recomputing(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.ones(1, 2, requires_grad=True)
    for _ in range(2):
        loss = model(x).sum()
        with torch.no_grad():
            model(x)
        loss.backward()
    assert unfused == [False, True, False] * 2  # pass, evaluation, recomputation
    assert torch.backends.cuda.math_sdp_enabled()
    del optimizer


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_attention_is_chosen_in_gradient_passes_and_their_recomputation(
    use_reentrant: bool,
) -> None:
    run_apart(functools.partial(_attention_of_every_pass, use_reentrant=use_reentrant))


def _refused_attention(*, in_job: bool) -> None:
    Changes(knobs(attention="flash"), ("attention",), in_job=in_job).begin()

    class Attending(nn.Linear):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            y = super().forward(x)
            return nn.functional.scaled_dot_product_attention(y, y, y, mask)

    model = Attending(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, refused = torch.ones(1, 1, 2, 4), torch.zeros(2, 2, requires_grad=True)
    assert "Flash" in type(model(x, None).grad_fn).__name__
    with contextlib.nullcontext() if in_job else pytest.raises(RuntimeError, match="No available"):
        model(x, refused).sum().backward()
    assert "Flash" in type(model(x, None).grad_fn).__name__
    del optimizer


@pytest.mark.parametrize("in_job", [False, True], ids=["trial", "job"])
def test_batch_that_the_attention_refuses_ends_a_trial_and_no_job(in_job: bool) -> None:
    run_apart(functools.partial(_refused_attention, in_job=in_job))


def _first_bucket(bucket: int | None, idle: list[str]) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    changes = Changes(knobs(first_bucket_mb=0.1), ("first_bucket_mb",))
    changes.begin()
    DistributedDataParallel(nn.Linear(1, 1), bucket_cap_mb=bucket)
    assert changes.idle() == idle


@pytest.mark.parametrize(("bucket", "idle"), [(None, []), (25, ["first_bucket_mb"])])
def test_first_bucket_is_idle_where_the_script_says_the_size_of_all(
    bucket: int | None, idle: list[str]
) -> None:
    run_apart(functools.partial(_first_bucket, bucket, idle))


def _powersgd_begins(*, in_job: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    chosen = knobs(gradient_compression="powersgd")
    names = ("gradient_compression",)
    if in_job:
        os.environ[job_order.VARIABLE] = Order(Script("train.py", changes=names), chosen).to_text()
        job_order.begin(["python", "train.py"])
    else:
        Changes(chosen, names).begin()
    model = DistributedDataParallel(nn.Linear(1, 1))
    ((_, state),) = model._comm_hooks
    by_itself = inspect.signature(PowerSGDState).parameters["start_powerSGD_iter"].default
    assert by_itself == 1000, "the announcement of a job names it"
    assert state.start_powerSGD_iter == (by_itself if in_job else COMPRESSION_WARM_UP)


@pytest.mark.parametrize("in_job", [False, True])
def test_own_job_begins_to_compress_where_pytorch_does_and_a_trial_at_once(in_job: bool) -> None:
    run_apart(functools.partial(_powersgd_begins, in_job=in_job))


def _garbage_in_a_script(optimizers: int) -> None:
    Changes(knobs(freeze_gc=True), ("freeze_gc",)).begin()
    several = [torch.optim.SGD([nn.Parameter(torch.ones(1))]) for _ in range(optimizers)]

    def step() -> None:
        for optimizer in several:
            optimizer.step()

    step()
    cycle: list[Any] = [nn.Identity()]
    left = weakref.ref(cycle[0])
    cycle.append(cycle)
    del cycle
    for _ in range(COLLECTING_STEPS - 1):
        step()
    assert left() is not None
    step()
    assert left() is None


def _garbage_that_outlives_a_collection() -> None:
    Changes(knobs(freeze_gc=True), ("freeze_gc",)).begin()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    optimizer.step()
    cycle: list[Any] = [nn.Identity()]
    left = weakref.ref(cycle[0])
    cycle.append(cycle)
    for _ in range(2 * COLLECTING_STEPS):
        optimizer.step()
    del cycle
    for _ in range(ALL_COLLECTING_STEPS):
        optimizer.step()
    assert left() is None


def test_garbage_that_outlives_a_collection_is_collected_later() -> None:
    run_apart(_garbage_that_outlives_a_collection)


def _forked_after_a_step() -> None:
    Changes(knobs(freeze_gc=True), ("freeze_gc",)).begin()
    torch.optim.SGD([nn.Parameter(torch.ones(1))]).step()
    assert not gc.isenabled()
    child = os.fork()
    if not child:
        os._exit(not gc.isenabled())
    assert os.waitpid(child, 0)[1] == 0


def test_python_collects_the_garbage_of_processes_that_are_forked_after_the_first_step() -> None:
    run_apart(_forked_after_a_step)


@pytest.mark.parametrize("optimizers", [1, 3])
def test_garbage_of_a_script_is_collected_at_few_steps(optimizers: int) -> None:
    run_apart(functools.partial(_garbage_in_a_script, optimizers))


def _set_back(setting: str, value: object) -> None:
    matmul = torch.backends.cuda.matmul
    chosen = knobs(precision="tf32")
    both = Changes(chosen, ("precision",)), Changes(chosen, ("freeze_gc",))
    both[0].begin()
    assert not both[0].set_back()
    setattr(matmul, setting, value)
    assert [changes.set_back() for changes in both] == [["precision"], []]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("allow_tf32", False),
        pytest.param(
            *("fp32_precision", "ieee"),
            marks=pytest.mark.skipif(
                not hasattr(torch.backends, "fp32_precision"), reason="since torch 2.9"
            ),
        ),
    ],
)
def test_script_that_forbids_tf32_has_set_precision_back(setting: str, value: object) -> None:
    run_apart(functools.partial(_set_back, setting, value))


def _saved_by_safetensors() -> None:
    Changes(knobs(channels_last=True), ("channels_last",)).begin()
    from safetensors.torch import load, load_file, save, save_file

    model = nn.Conv2d(3, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 3, 4, 4)).sum().backward()
    optimizer.step()
    weights = model.state_dict()
    assert not weights["weight"].is_contiguous()
    with tempfile.TemporaryDirectory() as folder:
        save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
        loaded = load_file(f"{folder}/model.safetensors")
    for found in (loaded, load(save(tensors=weights))):
        assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_safetensors_save_weights_in_channels_last() -> None:
    run_apart(_saved_by_safetensors)


def _later_forward(**wanted: Any) -> None:
    Changes(knobs(**wanted), tuple(wanted)).begin()
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    block, x = model[1], torch.ones(1, 2)
    optimizer.step(lambda: model(x).sum().backward())
    block.forward = lambda x: x - 1
    halved = model(x)
    torch.testing.assert_close(halved, model[0](x) - 1)
    forward = model.forward
    model.forward = lambda x: 3 * forward(x)
    torch.testing.assert_close(model(x), 3 * halved)
    assert "forward" in vars(block)
    assert vars(model)["forward"] is model.forward


@pytest.mark.parametrize(
    "wanted",
    [{"activation_checkpointing": 1}, {"compile": "default"}],
    ids=["checkpointed", "compiled"],
)
@pytest.mark.long
def test_forward_that_the_script_sets_later_is_called(wanted: dict[str, Any]) -> None:
    run_apart(functools.partial(_later_forward, **wanted))


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_result_that_the_script_keeps_stays_as_it_is(kind: type) -> None:
    kept = kind()

    def own(x: torch.Tensor) -> Any:
        kept["loss"] = [model(x)]
        return kept

    model = nn.Linear(2, 2)
    changes = RootChanges(knobs(precision="bf16"), frozenset({"precision"}))
    given = changes.prepare(model, own)(torch.ones(1, 2))
    assert type(given) is kind
    assert given["loss"][0].dtype == torch.float32
    assert kept["loss"][0].dtype == torch.bfloat16
    assert changes.met() == {"precision"}


@pytest.mark.parametrize(
    ("root", "met"), [(nn.Linear(16, 16), set()), (nn.Sequential(nn.Linear(16, 16)), {"float8"})]
)
def test_linear_layer_that_is_the_root_is_not_taken_for_replaced(
    root: nn.Module, met: set[str]
) -> None:
    pytest.importorskip("torchao.float8")
    changes = RootChanges(knobs(float8="tensorwise"), frozenset({"float8"}))
    changes.prepare(root, root.forward)
    assert changes.met() == met


class _Mixing(nn.Module):
    """Attention of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inside(x)
        return self.mixed(x) @ x

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).softmax(-1)


class _Attending(_Mixing):
    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        x = x[None]
        return nn.functional.scaled_dot_product_attention(x, x, x)[0]


class _Recomputing(_Attending):
    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(super().forward, x, use_reentrant=True)


class _AttendingBelow(_Mixing):
    """Attention without gradients, as in a frozen part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = _Attending.mixed(self, super().forward(x))
        return x.requires_grad_()


def _meets(root: Callable[[], nn.Module], chosen: str, met: set[str]) -> None:
    model = root()
    changes = RootChanges(knobs(attention=chosen), frozenset({"attention"}))
    changes.prepare(model, model.forward)(torch.ones(1, 4, 4, requires_grad=True))
    assert changes.met() == met


@pytest.mark.parametrize("chosen", ["unfused", "flash"])
@pytest.mark.parametrize(
    ("root", "attends"),
    [
        *[(_Mixing, False), (_Attending, True), (_Recomputing, True), (_AttendingBelow, True)],
        (functools.partial(nn.TransformerEncoderLayer, 4, 1, 4, 0.0), True),
    ],
)
def test_attention_is_met_by_a_root_that_may_attend(
    root: Callable[[], nn.Module], attends: bool, chosen: str
) -> None:
    met = {"attention"} if attends else set()
    run_apart(functools.partial(_meets, root, chosen, met))  # where nothing was compiled


@pytest.mark.parametrize(
    ("mode", "is_own"),
    [
        *[("default", False), ("max-autotune-no-cudagraphs", False)],
        *[("reduce-overhead", True), ("max-autotune", True)],
    ],
)
def test_result_under_cuda_graphs_has_memory_of_its_own(mode: str, is_own: bool) -> None:
    model, memory = nn.Linear(2, 1), torch.zeros(1, 1)

    def own(x: torch.Tensor) -> Any:
        """Write every result to the same memory, as a CUDA graph does."""
        with torch.no_grad():
            memory.copy_(nn.functional.linear(x, model.weight))
        return {"loss": [model.weight.sum(), memory]}

    call = RootChanges(knobs(compile=mode), frozenset({"compile"})).prepare(model, own)
    first, _ = call(torch.zeros(1, 2)), call(torch.ones(1, 2))
    assert (first["loss"][1].item() == 0) is is_own
    first["loss"][0].backward()
    assert model.weight.grad is not None


def test_result_that_no_cuda_graph_has_written_is_not_copied() -> None:
    model, memory = nn.Linear(2, 1), torch.zeros(1, 1)

    def result(grad: bool, scope: str) -> Any:
        wanted = knobs(compile="reduce-overhead", compile_scope=scope)
        changes = RootChanges(wanted, frozenset({"compile", "compile_scope"}))
        with torch.set_grad_enabled(grad):
            return changes.prepare(model, lambda _: memory)(torch.zeros(1, 2))

    assert result(grad=True, scope="model") is not memory
    assert result(grad=False, scope="model") is memory
    assert result(grad=True, scope="blocks") is memory  # it has no blocks
