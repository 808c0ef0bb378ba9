"""Spans of a script's steps in a trace, with the names that the built-in loop uses."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.utils.data import dataloader

from autotune.worker.inject.changes import ScriptObjects
from autotune.worker.inject.steps import after_steps, before_steps
from autotune.worker.patches import wrapping


class Spans:
    """Markers of forward, backward, optimizer and loader; on in a profile only, as each takes time."""

    def __init__(
        self, built: ScriptObjects, span: Callable[[str], AbstractContextManager[Any]]
    ) -> None:
        """Prepare the markers.

        Args:
            built: objects of the script; its forward passes are those of the model in it.
            span: returns a context that marks a span of that name.
        """
        self._built = built
        self._span = span
        self._marks = False
        self._open: dict[str, AbstractContextManager[Any]] = {}

    def watch(self) -> None:
        """Mark steps of optimizers from now on, while inside of `marked`.

        That is entered from such a step, when torch iterates over the hooks.
        """
        before_steps(lambda *_: self._enter("optimizer"))
        after_steps(lambda *_: self._leave("optimizer"))

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Mark spans while inside. The script is left then, so that patches and hooks stay."""
        self._marks = True
        if (model := self._built.model) is not None:  # the profile has its operators anyway
            model.register_forward_pre_hook(lambda *_: self._enter("forward"))
            model.register_forward_hook(lambda *_: self._leave("forward"), always_call=True)
        self._mark_calls(dataloader._BaseDataLoaderIter, "__next__", "loader")
        self._mark_calls(torch.Tensor, "backward", "backward")
        yield
        self._marks = False
        for name in tuple(self._open):
            self._leave(name)

    def _leave(self, name: str) -> None:
        """Close a span if it is open."""
        if (opened := self._open.pop(name, None)) is not None:
            opened.__exit__(None, None, None)

    def _enter(self, name: str) -> None:
        self._leave(name)
        if self._marks:
            self._open[name] = opened = self._span(name)
            opened.__enter__()

    def _mark_calls(self, owner: Any, method: str, name: str) -> None:
        @wrapping(owner, method)
        def marked(call: Any, *args: Any, **kwargs: Any) -> Any:
            with self._span(name):
                return call(*args, **kwargs)
