"""tiny, whose batches wait for a word: trials that can be struck in the middle of a step."""

import dataclasses
import time
from pathlib import Path

import tiny

HELD = Path("held")
"""Lists sizes of batches that wait, with a space between."""
REACHED = Path("held.reached")
"""Size of the batch that waits."""


def build():
    """Build it."""
    workload = tiny.build()

    def loss(model, batch):
        while (size := str(len(batch[0]))) in HELD.read_text().split():
            REACHED.write_text(size)
            time.sleep(0.01)
        return workload.loss(model, batch)

    return dataclasses.replace(workload, loss=loss)
