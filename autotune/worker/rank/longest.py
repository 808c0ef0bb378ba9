"""Reduction of a workload to the longest samples of its data, to find the memory that they need."""

import dataclasses
import itertools

from torch.utils.data import Subset

from autotune.worker.protocol import TrialRequest
from autotune.worker.workload import Workload


def of_longest(workload: Workload, request: TrialRequest) -> Workload:
    """Return the workload with a dataset of nothing but its longest samples.

    Raises:
        ValueError: the workload does not name them.
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
