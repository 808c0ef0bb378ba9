"""What the training of a script does inside torch, told after each of its steps by rank 0.

It looks at graphs, compiled frames and kernels, and at no setting: a file of JSON that $TOLD names.
"""

import functools
import json
import multiprocessing
import os
import re
import sys
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

_PRODUCT = re.compile(r"([Mm]m|Linear|Convolution|Attention)\w*Backward")
_NO_BACKWARD = -1
_told = {"products": [], "attention": [], "channels_last": False, "recomputed": 0, "fused": 0}


def block_runs():
    """Note that a block of the model runs; in a backward pass it computes anew."""
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != _NO_BACKWARD:
        _told["recomputed"] += 1


def _look(loss):
    nodes, left = {loss.grad_fn}, [loss.grad_fn]
    while left:
        following = {node for node, _ in left.pop().next_functions if node is not None} - nodes
        nodes |= following
        left += following
    products = [node for node in nodes if _PRODUCT.search(type(node).__name__)]
    formats = {str(given.dtype) for node in products for given in node._input_metadata}
    _told["products"] = sorted(formats)
    attention = {type(node).__name__ for node in products if "Attention" in type(node).__name__}
    _told["attention"] = sorted(attention)
    for node in products:
        if "Convolution" in type(node).__name__:
            weight = node._saved_weight
            _told["channels_last"] = weight.is_contiguous(memory_format=torch.channels_last)


def _count(owner, name):
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def counting(*args, **kwargs):
        _told["fused"] += 1
        return plain(*args, **kwargs)

    setattr(owner, name, counting)


def _tell(*_):
    dynamo = sys.modules.get("torch._dynamo.utils")
    _told["frames"] = dynamo.counters["frames"]["ok"] if dynamo else 0
    _told["workers"] = len(multiprocessing.active_children())
    if os.environ.get("RANK", "0") == "0" and "TOLD" in os.environ:
        Path(os.environ["TOLD"]).write_text(json.dumps(_told))


def _watch():
    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def watched(loss, *args, **kwargs):
        _look(loss)
        backward(loss, *args, **kwargs)

    torch.Tensor.backward = watched
    for name in ("_fused_adam_", "_fused_adamw_"):
        _count(torch, name)
    register_optimizer_step_post_hook(_tell)


_watch()
