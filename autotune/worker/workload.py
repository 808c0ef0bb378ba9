"""Public contract by which a user names what is trained: a factory that returns a Workload."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset

Batches = Callable[[int, int, int], Iterable[Any]]


class Update(Protocol):
    """Argument of `Workload.step`, which is called when the gradients of a step are complete.

    Attributes:
        number: of the step, from 0.
        model: as it was wrapped.
        optimizers: those that train, which need not be those that the workload has made.
    """

    number: int
    model: nn.Module
    optimizers: tuple[Optimizer, ...]

    def __call__(self, *optimizers: Optimizer) -> None:
        """Update the weights, by these optimizers or by all, through a loss scaler if there is one."""

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the gradients, averaged over the ranks; return the norm before.

        It stands for torch.nn.utils.clip_grad_norm_ of all parameters.
        """

    def unscale(self) -> None:
        """Take the loss scale off the gradients, before anything but clip_grad_norm reads them."""


def _no_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    raise NotImplementedError


@dataclass(frozen=True)
class Workload:
    """Training of one rank. A factory `module:function` builds it anew in every rank.

    The factory is called with the `workload.args` of the study file as keyword arguments, after the
    process group is initialised and the random seeds are set; autotune moves the model to the device. A
    factory with a parameter `device` receives it.

    Attributes:
        model: the bare module, neither wrapped for data parallelism nor moved to a device; one that
            needs its device while it is built may be there already.
        dataset: map-style: it is read again and again, epoch after epoch, so that it may be shorter than
            a trial. It must hold a micro-batch for every rank: with fewer samples the trial is an error.
            Or an IterableDataset, which shares its samples among ranks, and loader workers, by itself.
        loss: called as loss(model, batch) with the wrapped model and a collated batch on the
            device; returns the mean loss of the batch, a scalar tensor.
        optimizer: called with the model's parameters; returns an optimizer, or a list of several.
        tokens_per_sample: tokens in one sample; 0 where the word has no meaning.
        collate: as for torch.utils.data.DataLoader; None takes the default.
        shorten: called as shorten(batch, tokens); returns the batch with samples of no more tokens;
            None: sequences always have their full length.
        longest: called as longest(count); returns the places of about `count` of the longest samples in
            a map-style `dataset`. The recommended configuration is run on them once, to see that it
            fits. None: all are equally long, or the lengths are unknown.
        batches: in place of a data set: called as batches(rank, world_size, micro_batch), and again when
            its result is exhausted; returns an iterable of collated batches of `micro_batch` samples.
        step: called with an Update once per optimizer step, in place of the plain update, which it makes
            by calling it: for gradient clipping, schedules, several optimizers.
        optimizer_step: in place of optimizers: called as optimizer_step(model), it updates the weights
            from their gradients, which are dropped afterwards.
    """

    model: nn.Module
    dataset: Dataset[Any] | None = None
    loss: Callable[[nn.Module, Any], torch.Tensor] = _no_loss
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer | Sequence[Optimizer]] | None = None
    tokens_per_sample: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    shorten: Callable[[Any, int], Any] | None = None
    batches: Batches | None = None
    longest: Callable[[int], Sequence[int]] | None = None
    step: Callable[[Update], None] | None = None
    optimizer_step: Callable[[nn.Module], None] | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            TypeError: they do not, or one of them cannot be used for training.
        """
        problems = [*_of_model(self.model), *_of_data(self), *_of_updates(self)]
        if self.loss is _no_loss:
            problems.append("it has no `loss`")
        if problems:
            raise TypeError("Workload: " + "; ".join(problems))


_WRAPPED = ("FullyShardedDataParallel", "FSDPModule")
"""Names of classes: importing them takes as long as half of torch."""


def _of_model(model: object) -> Iterable[str]:
    if not isinstance(model, nn.Module):
        yield (
            f"`model` is {_named(model)}, no nn.Module; put several models into one module, e.g. "
            "nn.ModuleDict"
        )
        return
    names = [kind.__name__ for kind in type(model).__mro__]
    wrapped = isinstance(model, nn.DataParallel | DistributedDataParallel)
    if wrapped or any(name in _WRAPPED for name in names):
        yield (
            f"`model` is a model in {type(model).__name__}; return the bare module: autotune wraps it "
            "as the knob parallelism says"
        )


def _of_data(workload: Workload) -> Iterable[str]:
    data = workload.dataset
    if workload.longest is not None and (data is None or isinstance(data, IterableDataset)):
        yield "`longest` goes with a map-style `dataset`, of which it names places"
    if (data is None) == (workload.batches is None):
        yield "it needs `dataset` or `batches`, one of them"
    elif data is None:
        if workload.collate is not None:
            yield "`collate` goes with `dataset`; `batches` gives whole batches"
    elif isinstance(data, DataLoader):
        yield (
            "`dataset` is a DataLoader, and knobs make that; give its data set and `collate`, or, with "
            "a sampler of your own, `batches`"
        )
    elif not isinstance(data, IterableDataset) and not (
        hasattr(data, "__getitem__") and hasattr(data, "__len__")
    ):
        yield (
            f"`dataset` is {_named(data)}, neither map-style (__len__ and __getitem__) nor an "
            "IterableDataset"
        )


def _of_updates(workload: Workload) -> Iterable[str]:
    if (workload.optimizer is None) == (workload.optimizer_step is None):
        yield "it needs `optimizer` or `optimizer_step`, one of them"
    elif workload.step is not None and workload.optimizer is None:
        yield "`step` goes with `optimizer`; `optimizer_step` does all by itself"


def _named(value: object) -> str:
    return f"of class {type(value).__name__}"


def optimizers_of(made: object) -> list[Optimizer]:
    """Return what `Workload.optimizer` has made, as a list.

    Raises:
        TypeError: it is no optimizer, or one that computes the loss by itself.
    """
    several: list[Any] = list(made) if isinstance(made, list | tuple) else [made]
    wrong = [one for one in several if not isinstance(one, Optimizer)]
    if wrong or not several:
        raise TypeError(
            f"Workload: `optimizer` returned {_named(wrong[0]) if wrong else 'nothing'}; it must return "
            "a torch.optim.Optimizer or a list of them"
        )
    for one in several:
        closure = inspect.signature(type(one).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(
                f"Workload: `optimizer` returned {type(one).__name__}, whose step computes the loss "
                "again (a closure), which is not supported"
            )
    return several


def check_loss(loss: object) -> None:
    """Check that a loss can be trained on.

    Raises:
        TypeError: it is no scalar tensor.
    """
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"Workload: `loss` returned something {_named(loss)}; it must return one scalar tensor: "
            "several losses with backward passes of their own are not supported"
        )
    if loss.numel() != 1:
        raise TypeError(
            f"Workload: `loss` returned a tensor of shape {tuple(loss.shape)}; it must return the mean "
            "over the batch, a scalar"
        )


def build(
    factory: str,
    args: dict[str, Any],
    device: torch.device | None = None,
    places: Sequence[str] = (),
) -> Workload:
    """Build the workload of `module:function`.

    Args:
        factory: module and function.
        args: its keyword arguments.
        device: of this rank, for a factory with a parameter of that name; None: not known.
        places: folders that come first on sys.path: where the command was typed, then, if that is
            another one, where the study file is.

    Raises:
        TypeError: the factory is not callable, refuses the arguments, or returns something else, or a
            model that is wrapped for data parallelism already.
        ImportError, AttributeError: there is no such module or function.
    """
    module_name, _, function_name = factory.partition(":")
    function = getattr(_module(module_name, places), function_name)
    if device is not None and "device" not in args and _asks_for_device(function):
        args = {**args, "device": device}
    workload = function(**args)
    if not isinstance(workload, Workload):
        raise TypeError(
            f"{factory} returned {type(workload).__name__}; it must return an autotune.Workload"
        )
    return workload


def _module(name: str, places: Sequence[str]) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that it imports itself
        labels: tuple[str, ...] = (
            "where the command was typed",
            "beside the study file, or its `folder`",
        )
        if len(places) == 1:
            labels = (" and ".join(labels),)
        looked = ", ".join(f"{p} ({label})" for p, label in zip(places, labels, strict=False))
        raise ModuleNotFoundError(
            f"there is no module {error.name!r} of the workload: looked in {looked or 'sys.path'}, on "
            "PYTHONPATH and among installed packages",
            name=error.name,
        ) from None


def _asks_for_device(function: Callable[..., Any]) -> bool:
    try:
        return "device" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # not callable, which calling it says better; or written in C
        return False
