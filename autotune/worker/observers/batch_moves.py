"""Where a model moves the batch away from the outermost dimension of its tensors.

The automatic parallelisation of tensors splits the outermost dimension. A permutation that puts
another one there costs a copy, and communication where ranks share tensors. Example: packed
projections permuted from (batch, n, heads, width, 3) to (3, batch, heads, n, width), where (batch,
3, heads, n, width) would do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

_FEWEST_DIMENSIONS = 3  # a matrix that is transposed is mostly a weight


class BatchMoves(TorchDispatchMode):
    """Dispatch mode that records permutations that move the batch out of the first place."""

    def __init__(self, micro_batch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, str] = {}
        """Module -> the move, as 'permute (8, 64, 4, 16, 3) to (3, 8, 4, 64, 16)'."""
        self._size = micro_batch
        self._modules: list[str] = [""]

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record while inside, under the names of the model's modules."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(name)))
            handles.append(module.register_forward_hook(self._leaving))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in ("permute", "transpose") and self._moved(args):
            self._note(args[0], result)
        return result

    def _moved(self, args: Any) -> bool:
        """Return whether the batch was the first dimension and is no longer."""
        tensor, dimensions = args[0], args[0].dim()
        if dimensions < _FEWEST_DIMENSIONS or tensor.shape[0] != self._size:
            return False
        if isinstance(args[1], list | tuple):
            return bool(args[1][0] % dimensions != 0)
        first, second = (axis % dimensions for axis in args[1:3])
        return first != second and 0 in (first, second)

    def _note(self, before: torch.Tensor, after: torch.Tensor) -> None:
        move = f"{tuple(before.shape)} to {tuple(after.shape)}"
        self.found.setdefault(self._modules[-1] or "the loss", move)

    def _entering(self, name: str) -> Any:
        def enter(*_: Any) -> None:
            self._modules.append(name or "the model")

        return enter

    def _leaving(self, *_: Any) -> None:
        self._modules.pop()
