"""Decide which of the batches that a script draws from its loaders are trained on.

A batch is drawn long before its purpose shows: frameworks draw the batches of a step before the
model is switched to training, and evaluation loops may draw theirs with gradients enabled. All
batches between two backward passes are therefore judged together, when the second one begins; in
doubt by the graph that they go through.
"""

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autotune.worker.inject.graph import Reached
from autotune.worker.inject.tokens import Tokens

_REGULAR = 3
"""Backward passes in a row before which a loader was read: no evaluation is so regular.

It is also the number of times that a graph has shown the purpose of a data set.
"""


@dataclass(slots=True, eq=False)
class Source:
    """One pass over a loader.

    Attributes:
        iterator: returns the loader's iterator while it exists.
        origin: data set.
        trained: its batches are trained on.
        exhausted: it has yielded its last batch.
        evaluating: the model was in evaluation mode at every draw since the last backward pass.
        quiet: draws since the last backward pass that were followed by disabled gradients.
        known: the loader knows how many samples a batch has, and nothing else of it is counted.
        guessed: its samples are counted by tensors, as the loader does not know them.
        agrees: tensors of an iterable data set have shown as many samples as the loader asks for;
            then they also count the last batch.
        text: counts its tokens; None where they are not counted.
        rows: samples of the batch before.
        shorter: the batch before had fewer than those before it: the last one, or batches vary.
        regular: backward passes in a row that it was read before without being trained on.
        dropped: number of the last of them.
        thread: the thread that draws from it.
    """

    iterator: Callable[[], Any]
    origin: Any = None
    trained: bool = False
    exhausted: bool = False
    evaluating: bool = True
    quiet: int = 0
    known: bool = False
    guessed: bool = False
    agrees: bool = False
    text: Tokens | None = None
    rows: int = 0
    shorter: bool = False
    regular: int = 0
    dropped: int = 0
    thread: int = field(default_factory=threading.get_ident)

    @property
    def left(self) -> bool:
        """Return whether the script holds no reference to it any more."""
        return self.iterator() is None

    @property
    def ended(self) -> bool:
        """Return whether it will yield no further batch."""
        return self.exhausted or self.left

    @property
    def evaluated(self) -> bool:
        """Return whether its batches went through the model without gradients."""
        return self.quiet > 0 and (self.exhausted or self.evaluating)


class Batch(NamedTuple):
    """Batch that was drawn.

    Attributes:
        asked: number of times that gradients had been disabled when the script asked for it.
        drawn: the same number when the script received it.
    """

    source: Source
    samples: int
    tokens: int
    asked: int
    drawn: int


class Draws:
    """Batches that a script draws, and those that it trains on.

    Attributes:
        samples: trained on so far.
        tokens: trained on so far.
        batches: trained on so far; those of several loaders count together.
        varies: whether batches of one loader have different numbers of samples, apart from the
            last.
        sizes: numbers of samples of the batches that were trained on.
        missing: samples by which the last batches of passes were smaller than those before them.
        drawn: whether any batch was drawn.
        quiet: number of times that gradients were disabled; the owner counts it.
        trained: called with the batches that a backward pass trains on.
    """

    def __init__(self, trained: Callable[[Sequence[Batch]], None] | None = None) -> None:
        self.samples = 0
        self.tokens = 0
        self.batches = 0
        self.varies = False
        self.sizes: set[int] = set()
        self.missing = 0
        self.begun = 0
        self.drawn = False
        self.quiet = 0
        self.trained = trained
        self._window: list[Batch] = []
        self._undecided = False
        self._backwards = 0
        self._trained_on = _Origins()
        self._left_beside = _Origins()

    @property
    def waiting(self) -> int:
        """Return the number of batches that were drawn since the last backward pass."""
        return len(self._window)

    @property
    def untrained(self) -> bool:
        """Return whether a batch of a source that is trained on was drawn since that pass."""
        return any(batch.source.trained for batch in self._window)

    def since(self, number: int) -> list[Batch]:
        """Return the batches that were drawn when so many were waiting already."""
        return self._window[number:]

    def asks(self, source: Source) -> None:
        """Note that the script asks for a batch of a source that is not known to be trained on."""
        last = next((batch for batch in reversed(self._window) if batch.source is source), None)
        if last is not None and last.drawn < self.quiet:
            source.quiet += 1

    def drew(self, batch: Batch) -> None:
        """Take in a batch."""
        self._window.append(batch)
        if not batch.source.trained:
            self.drawn = self._undecided = True

    def forget(self, source: Source) -> None:
        """Drop the batches of a source that begins anew."""
        self._window = [batch for batch in self._window if batch.source is not source]

    def clear(self) -> None:
        """Drop all batches drawn since the last backward pass."""
        self._window = []

    def backward(self, reached: Callable[[], Reached]) -> list[Source]:
        """Count the batches that are trained on, as a backward pass begins.

        Args:
            reached: returns the shapes that its gradients go through.

        Returns:
            Sources that are found to be trained on.
        """
        self._backwards += 1
        window = self._window
        if not window:
            return []
        self._window = []
        found = self._decide(window, reached) if self._undecided else []
        counted = [batch for batch in window if batch.source.trained]
        for batch in counted:
            self.samples += batch.samples
            self.tokens += batch.tokens
            if batch.samples != batch.source.rows:
                self._note_size(batch)
        self.batches += of_one_pass(counted)[1] if len(counted) > 1 else len(counted)
        if self.trained is not None and counted:
            self.trained(counted)
        return found

    def _note_size(self, batch: Batch) -> None:
        """Take in a batch of another size than the one before."""
        source, samples = batch.source, batch.samples
        if source.rows:
            self.varies = self.varies or source.shorter or samples > source.rows
            self.missing += max(0, source.rows - samples)
            source.shorter = True
        else:
            self.begun += 1
        source.rows = samples
        self.sizes.add(samples)

    def _decide(self, window: Sequence[Batch], reached: Callable[[], Reached]) -> list[Source]:
        self._undecided = False
        beside = self._beside(window, reached)
        window = [batch for batch in window if batch.source not in beside]
        sources = list(dict.fromkeys(batch.source for batch in window))
        undecided = [source for source in sources if not source.trained]
        anchor = _anchor(sources, window)
        begun = anchor is not None and anchor.trained
        found = []
        for source in undecided:
            if anchor is not None and not source.evaluated and not source.left:
                known = not begun or self._trained_on[source.origin] > 0
                together = known and _together(source, anchor, window)
                if source is anchor or together or self._is_regular(source):
                    found.append(source)
            source.quiet, source.evaluating = 0, True
        for source in found:
            source.trained = True
            self._trained_on.add(source.origin)
        return found

    def _beside(self, window: Sequence[Batch], reached: Callable[[], Reached]) -> Sequence[Source]:
        """Return sources whose batches went through the model without gradients only.

        They accompany those that are trained on. Where gradients were disabled since a batch was
        drawn, which teachers and pseudo labels do as well, the graph decides.
        """
        latest = {batch.source: batch for batch in window}
        doubtful = [batch for batch in latest.values() if self._is_doubtful(batch)]
        if len(latest) == 1 or not doubtful:
            return []
        graph, found = None, []
        for batch in reversed(doubtful):
            origin = batch.source.origin
            others = [b for b in latest.values() if b is not batch and b.source not in found]
            if self._left_beside[origin] < _REGULAR:
                graph = graph or reached()
                if not _is_beside(batch, others, graph):
                    continue
                self._left_beside.add(origin)
            found.append(batch.source)
        return found

    def _is_doubtful(self, batch: Batch) -> bool:
        """Return whether only the graph can show the purpose of a batch.

        Gradients were disabled since it was drawn, and nothing else is known of it.
        """
        source = batch.source
        known = source.trained or source.evaluated or source.left or self._trained_on[source.origin]
        return not known and batch.drawn < self.quiet

    def _is_regular(self, source: Source) -> bool:
        """Return whether a source is read before every backward pass."""
        follows = source.dropped == self._backwards - 1
        source.regular = source.regular + 1 if follows else 1
        source.dropped = self._backwards
        return source.regular >= _REGULAR


class _Origins:
    """Counters per data set."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def add(self, origin: Any) -> None:
        """Add one to the counter of a data set."""
        try:
            self._known[id(origin)] = (weakref.ref(origin), self[origin] + 1)
        except TypeError:
            return  # no weak reference, e.g. to a plain list of batches

    def __getitem__(self, origin: Any) -> int:
        """Return the counter of a data set."""
        reference, times = self._known.get(id(origin), (None, 0))
        return times if reference is not None and reference() is origin else 0


def _is_beside(batch: Batch, others: Sequence[Batch], graph: Reached) -> bool:
    """Return whether gradients go through one of the other batches, and not through this one.

    Batches put together count as well.
    """
    rows = graph.rows
    through = [other.samples for other in others if other.samples in rows]
    if batch.samples in rows:
        return graph.once and batch.samples in through
    return bool(through) and not any(batch.samples + other.samples in rows for other in others)


def _anchor(sources: Sequence[Source], window: Sequence[Batch]) -> Source | None:
    """Return the source that is surely trained on.

    It is one that was before and goes on; else the one that looks least like an evaluation, which
    disables gradients and draws many batches.
    """
    possible = [s for s in sources if s.trained or not (s.evaluated or s.left)]
    lasting = [source for source in possible if not source.ended]
    if before := [source for source in lasting if source.trained]:
        return before[-1]
    counts = Counter(batch.source for batch in window)
    return min(
        reversed(lasting or possible),
        key=lambda source: (source.quiet > 0, source.evaluating, counts[source]),
        default=None,
    )


def _together(source: Source, anchor: Source, window: Sequence[Batch]) -> bool:
    """Return whether both yielded as many batches, with no pass without gradients in between."""
    both = [batch for batch in window if batch.source in (source, anchor)]
    counts = Counter(batch.source for batch in both)
    if counts[source] != counts[anchor] or source.ended > anchor.ended:
        return False
    return all(after.asked == before.drawn for before, after in itertools.pairwise(both))


def of_one_pass(window: Iterable[Batch]) -> tuple[int, int]:
    """Return the samples of batches, and the number of micro-batches that they make.

    Batches of several loaders count together.
    """
    batches = list(window)
    counts = Counter(batch.source for batch in batches)
    return sum(batch.samples for batch in batches), max(counts.values(), default=0)
