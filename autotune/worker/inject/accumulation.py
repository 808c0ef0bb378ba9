"""How many micro-batches the optimizer steps of a script have, and whether all have as many samples."""

_TOLERANCE = 0.1
"""Of samples per step, in the long run."""


def strays(samples: float, wanted: int, steps: int) -> bool:
    """Return whether so many steps have other samples than `wanted` each. A loader may run ahead of the
    steps, and end an epoch with fewer batches."""
    return abs(samples - wanted * steps) > wanted * (1 + _TOLERANCE * steps)


class Accumulation:
    """Counts the micro-batches of the steps of one optimizer.

    Backward passes and batches must agree, else nothing is known of a step: frameworks draw batches
    ahead, and adversarial networks have several backward passes per batch.

    Attributes:
        passes: backward passes that have begun.
        of_step: micro-batches of the last step, by its backward passes.
        numbers: of micro-batches that steps have had.
    """

    def __init__(self) -> None:
        self.passes = 0
        self.of_step = 0
        self.numbers: set[int] = set()
        self._before = (0, 0)
        self._outside = 0

    def begins(self) -> None:
        """Take in that an optimizer begins a step. Backward passes inside it are those of its closure,
        and together one micro-batch: LBFGS evaluates it several times."""
        self._outside = self.passes

    def ends(self, batches: int) -> None:
        """Take in that a step is done.

        Args:
            batches: that were drawn until now and trained on.
        """
        passes, drawn = self._before
        self.of_step = self._outside - passes + (self.passes > self._outside)
        if batches - drawn == self.of_step:
            self.numbers.add(self.of_step)
        self.left_out(batches)

    def left_out(self, batches: int) -> None:
        """Take in that a step was left out, as a gradient was too large for fp16."""
        self._before = (self.passes, batches)
