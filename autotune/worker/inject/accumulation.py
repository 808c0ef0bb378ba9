"""Number of micro-batches of each optimizer step of a script."""

_TOLERANCE = 0.1
"""Relative deviation of the samples per step that is accepted over many steps."""
_AHEAD = 1
"""Most batches that a loader wrapper draws ahead of the backward passes, as Accelerate's does."""
_MOST_AHEAD = 16
"""Most batches that a wrapper with a thread of its own draws ahead, into a queue."""


def strays(samples: float, wanted: int, steps: int, ahead: float = 0.0) -> bool:
    """Return whether steps have other samples than `wanted` each.

    A loader may run ahead of the steps, and end an epoch with fewer batches.

    Args:
        samples: of batches that were drawn and are trained on.
        wanted: samples of a step.
        ahead: most samples that a thread is known to have drawn ahead.
    """
    surplus = samples - wanted * steps
    return max(surplus - ahead, -surplus) > wanted * (1 + _TOLERANCE * steps)


class Accumulation:
    """Counter of the micro-batches of one optimizer's steps.

    A step counts only if its backward passes agree with the batches drawn until then, but for one
    that is drawn ahead: adversarial networks have several backward passes per batch.

    Attributes:
        passes: backward passes that have begun.
        of_step: micro-batches of the last step, by its backward passes.
        numbers: numbers of micro-batches that steps have had.
        falls: steps with fewer micro-batches than the fullest step before them.
        missing: micro-batches that such steps had less.
        drawn_ahead: most batches that a thread has drawn ahead of the backward passes; 0 if none draws.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.of_step = 0
        self.numbers: set[int] = set()
        self.falls = 0
        self.missing = 0
        self.drawn_ahead = 0
        self._before = (0, 0)
        self._outside = 0
        self._ahead = 0

    @property
    def pending(self) -> bool:
        """Return whether a backward pass has begun since the last step."""
        return self.passes > self._before[0]

    def draws_ahead(self, batches: int) -> None:
        """Take in, as a backward pass begins, that a thread draws the batches.

        Args:
            batches: drawn until now and trained on.
        """
        self.drawn_ahead = max(self.drawn_ahead, min(batches - self.passes, _MOST_AHEAD))

    def begins(self) -> None:
        """Take in that an optimizer begins a step.

        Backward passes inside it belong to its closure, and together are one micro-batch: LBFGS
        evaluates it several times.
        """
        self._outside = self.passes

    def ends(self, batches: int) -> None:
        """Take in that a step is done.

        Args:
            batches: drawn until now and trained on.
        """
        passes, drawn = self._before
        self.of_step = self._outside - passes + (self.passes > self._outside)
        was_known = self._is_known()
        self._ahead += batches - drawn - self.of_step
        if was_known and self._is_known():
            self._count()
        self._before = (self.passes, batches)

    def left_out(self, batches: int) -> None:
        """Take in that a step was skipped, as a gradient was too large for fp16."""
        passes, drawn = self._before
        self._ahead += batches - drawn - (self.passes - passes)
        self._before = (self.passes, batches)

    def _is_known(self) -> bool:
        return 0 <= self._ahead <= max(_AHEAD, self.drawn_ahead)

    def _count(self) -> None:
        short = max(self.numbers, default=0) - self.of_step
        if short > 0:
            self.falls += 1
            self.missing += short
        self.numbers.add(self.of_step)
