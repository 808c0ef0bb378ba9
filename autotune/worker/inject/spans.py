"""Spans of a script's steps in a trace, with the names that the built-in loop uses."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.utils.data import dataloader

from autotune.worker.inject.changes import ScriptObjects
from autotune.worker.inject.steps import after_steps, before_steps


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
        self._open: dict[str, AbstractContextManager[Any]] = {}

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Mark spans while inside."""
        with ExitStack() as undone:
            self._mark_passes(undone)
            self._mark_updates(undone)
            iterator = dataloader._BaseDataLoaderIter
            undone.enter_context(self._within(iterator, "__next__", "loader"))
            undone.enter_context(self._within(torch.Tensor, "backward", "backward"))
            yield
            for name in tuple(self._open):
                self.leave(name)

    def leave(self, name: str) -> None:
        """Close a span if it is open; the optimizer's, before the work that follows its step."""
        if (opened := self._open.pop(name, None)) is not None:
            opened.__exit__(None, None, None)

    def _enter(self, name: str) -> None:
        self.leave(name)
        opened = self._span(name)
        opened.__enter__()
        self._open[name] = opened

    def _mark_passes(self, undone: ExitStack) -> None:
        if (model := self._built.model) is None:
            return  # the profile has its operators nevertheless
        before = model.register_forward_pre_hook(lambda *_: self._enter("forward"))
        after = model.register_forward_hook(lambda *_: self.leave("forward"), always_call=True)
        undone.callback(before.remove)
        undone.callback(after.remove)

    def _mark_updates(self, undone: ExitStack) -> None:
        before = before_steps(lambda *_: self._enter("optimizer"))
        after = after_steps(lambda *_: self.leave("optimizer"))
        undone.callback(before.remove)
        undone.callback(after.remove)

    @contextmanager
    def _within(self, owner: Any, method: str, name: str) -> Iterator[None]:
        """Mark calls of a method as a span."""
        plain = getattr(owner, method)

        @functools.wraps(plain)
        def marked(*args: Any, **kwargs: Any) -> Any:
            with self._span(name):
                return plain(*args, **kwargs)

        setattr(owner, method, marked)
        try:
            yield
        finally:
            setattr(owner, method, plain)
