"""A workload reduced to the longest samples of its data: what does the worst batch of a month take?"""

import dataclasses
import itertools

from torch.utils.data import Subset

from autotune.worker.protocol import TrialRequest
from autotune.worker.workload import Workload


def of_longest(workload: Workload, request: TrialRequest) -> Workload:
    """The same, every batch of which holds nothing but its longest samples.

    Raises:
        ValueError: it does not say which they are.
    """
    if workload.longest is None or workload.dataset is None:
        raise ValueError(
            "the workload does not say which samples are the longest: Workload.longest"
        )
    count = request.knobs["micro_batch"] * request.world_size * request.replicas
    places = list(workload.longest(count))
    if not places:
        raise ValueError(f"Workload: `longest` gave no places for {count} samples")
    again = list(itertools.islice(itertools.cycle(places), count))
    return dataclasses.replace(workload, dataset=Subset(workload.dataset, again))
