"""Repeated blocks of a model, which are sharded or checkpointed one by one."""

from torch import nn


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules of the longest lists (nn.ModuleList, nn.Sequential) of one class each.

    The result is empty if there is no list of at least two.
    """
    lists = [
        list(module.children())
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential)
    ]
    alike = [found for found in lists if len(found) > 1 and len(set(map(type, found))) == 1]
    longest = max(map(len, alike), default=0)
    return [block for found in alike if len(found) == longest for block in found]


def repeated(model: nn.Module, knob: str) -> list[nn.Module]:
    """Return the blocks, for a knob that needs them.

    Raises:
        ValueError: there is no list of at least two.
    """
    found = blocks(model)
    if not found:
        raise ValueError(
            f"{knob}: the model has no nn.ModuleList or nn.Sequential of two or more modules of one "
            "class; take the knob out of the search space"
        )
    return found
