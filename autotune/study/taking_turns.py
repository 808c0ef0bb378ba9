"""Whether runs that are to be compared can be resident at once."""

from collections.abc import Sequence

from autotune.study.bench import Job

_SHARE = 0.8
"""Of the memory that residents may take by their peaks: near the limit allocators behave otherwise."""
_GIB = 2**30


class TakingTurns:
    """Judges it for one study, and says once how the runs of its rounds are made."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said = ""

    def possible(self, peaks: Sequence[int]) -> bool:
        """Whether runs with these peaks, bytes of their largest rank each, may be resident at once."""
        obstacle = self._obstacle(peaks)
        said = (
            f"they run one after another: {obstacle}"
            if obstacle
            else "they are resident at once and take turns, block by block"
        )
        if said != self._said:
            self._said = said
            self._job.say(f"What is compared with each other: {said}.")
        return not obstacle

    def _obstacle(self, peaks: Sequence[int]) -> str:
        """Why they may not, in words; empty if they may."""
        plan = self._job.plan
        if plan.spec.workload.command:
            return "a command that starts its own ranks cannot be paused"
        if len(peaks) < 2:
            return "there is only one"
        needed, there = sum(peaks), plan.memory_of_rank()
        if there is None:
            slot = plan.launcher.slots[0]
            there = slot.environment["memory_bytes"] * slot.nodes / plan.launcher.workers
        elif not all(peaks):
            return "how much memory each needs is not known"
        if needed > _SHARE * there:
            return (
                f"by their peaks they need {needed / _GIB:.2f} of the {there / _GIB:.2f} GiB that a "
                "rank has"
            )
        return ""
