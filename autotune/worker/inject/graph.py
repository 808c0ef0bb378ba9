"""Samples that a backward pass trains on, by the shapes in its graph. Nothing of it is computed."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction

_PRODUCT = re.compile(r"([Mm]m|Linear|Convolution|Attention|Rnn)\w*Backward")
"""Within the name of a node that computes matrix products or convolutions."""
_ATTENTION = re.compile("Attention|SafeSoftmax|CppFunction")
"""Within the names of nodes of scaled_dot_product_attention; unfused, it has a softmax of its own.

TorchScript and extensions hide theirs in a function of C++.
"""
_MOST_NODES = 50_000
"""Size above which a graph is not evaluated: far more nodes than layers of any model."""


@dataclass(frozen=True)
class Reached:
    """Shapes that the gradients of a loss go through.

    Attributes:
        rows: numbers of rows of the values that depend on more than parameters.
        once: whether each parameter is used once, so that the model has seen one batch.
    """

    rows: frozenset[int]
    once: bool


def reached(loss: torch.Tensor) -> Reached:
    """Return the shapes that the gradients of a loss go through."""
    rows, uses = set[int](), dict[Any, int]()
    for node in _nodes(loss.grad_fn):
        for following, _ in node.next_functions:
            if following is not None and not following.next_functions:
                uses[following] = uses.get(following, 0) + 1
        if not _of_parameter(node):
            shapes = (given.shape for given in getattr(node, "_input_metadata", ()))
            rows |= {shape[0] for shape in shapes if len(shape)}
    return Reached(frozenset(rows), all(count == 1 for count in uses.values()))


def product_formats(results: Iterable[torch.Tensor]) -> frozenset[torch.dtype]:
    """Return the number formats of matrix products and convolutions that results come from."""
    formats = set[torch.dtype]()
    for result in results:
        for node in _nodes(result.grad_fn):
            if _PRODUCT.search(type(node).__name__):
                formats |= {given.dtype for given in node._input_metadata}
    return frozenset(formats)


def may_attend(results: Iterable[torch.Tensor], parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether results may come from scaled_dot_product_attention.

    They do not where the graph shows all that was computed. Functions written in Python, as compiled
    code and reentrant checkpoints have, hide theirs; parameters that are not reached tell of more.
    """
    left = set(map(id, parameters))
    for result in results:
        for node in _nodes(result.grad_fn):
            if isinstance(node, BackwardCFunction) or _ATTENTION.search(type(node).__name__):
                return True
            left.discard(id(getattr(node, "variable", None)))
    return bool(left)


def _nodes(first: Any) -> Iterator[Any]:
    """Yield all nodes of a graph, unless it is very large."""
    seen, left = {first}, [first] if first is not None else []
    while left and len(seen) < _MOST_NODES:
        node = left.pop()
        yield node
        following = {node for node, _ in node.next_functions if node is not None} - seen
        seen |= following
        left += following


def _of_parameter(node: Any) -> bool:
    """Return whether a node is a parameter, or a view or another format of one."""
    while len(node.next_functions) == 1:
        node = node.next_functions[0][0]
        if node is None:
            return False
    return not node.next_functions
