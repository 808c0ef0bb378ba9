"""The public contract by which a user names what is trained: a factory that returns a Workload."""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset


@dataclass(frozen=True)
class Workload:
    """What one rank trains. A factory `module:function` builds it anew in every rank.

    The factory is called with the `workload.args` of the study file as keyword arguments, after the
    process group is initialised and the random seeds are set, on the CPU; autotune moves the model
    to the device.

    Attributes:
        model: the bare module, neither wrapped for data parallelism nor moved to a device.
        dataset: map-style; it is read again and again, epoch after epoch, so that it may be shorter than
            a trial. It must hold a micro-batch for every rank: with fewer samples the trial is an error.
        loss: called as loss(model, batch) with the wrapped model and a collated batch on the
            device; returns the mean loss of the batch, a scalar tensor.
        optimizer: called with the model's parameters.
        tokens_per_sample: tokens in one sample; 0 where the word has no meaning.
        collate: as for torch.utils.data.DataLoader; None takes the default.
        shorten: called as shorten(batch, tokens); returns the batch with samples of no more tokens;
            None: sequences always have their full length.
    """

    model: nn.Module
    dataset: Dataset[Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    tokens_per_sample: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    shorten: Callable[[Any, int], Any] | None = None


def build(factory: str, args: dict[str, Any]) -> Workload:
    """The workload that `module:function` builds.

    Raises:
        TypeError: the factory is not callable, refuses the arguments, or returns something else, or a
            model that is wrapped for data parallelism already.
        ImportError, AttributeError: there is no such module or function.
    """
    module_name, _, function_name = factory.partition(":")
    function = getattr(importlib.import_module(module_name), function_name)
    workload = function(**args)
    if not isinstance(workload, Workload):
        raise TypeError(
            f"{factory} returned {type(workload).__name__}; it must return an autotune.Workload"
        )
    if isinstance(workload.model, nn.DataParallel | DistributedDataParallel):
        raise TypeError(
            f"{factory} returned a model in {type(workload.model).__name__}; return the bare module: "
            "autotune wraps it as the knob parallelism says"
        )
    return workload
