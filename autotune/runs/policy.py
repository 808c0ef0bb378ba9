"""Numbers of one run."""

from dataclasses import dataclass

from autotune.policy import judgement, measured


@dataclass(frozen=True)
class RunPolicy:
    """Numbers of one run: its blocks, its turns, its timeouts."""

    # The end of a run
    blocks_for_proof: int = judgement(
        10, "blocks", "fewest of a run of the proof", "fewer tell too little of their correlation"
    )

    # Requests
    hurried_blocks: int = judgement(
        6, "blocks", "of a short run", "its first step, its warm-up, what counts"
    )
    longest_block: float = judgement(
        2.0, "wished lengths", "of a block before its fewest steps give way"
    )
    block_on_device: float = measured(
        0.25,
        "seconds",
        "of a block on a CUDA device where the study does not say",
        "steps that compute scatter by 0.03 to 1 %, so eight blocks take two seconds, H200",
    )
    energy_block: float = judgement(
        1.0,
        "seconds",
        "of a block on a CUDA device whose energy counts, interleaved or not",
        "NVML's counter moves about ten times a second, so the two ends of a block err by a tenth of it",
    )
    steps_on_device: int = judgement(2, "steps", "fewest of such a block")
    startup_compiling: float = judgement(
        3.0,
        "timeouts",
        "of the start, and of a step, where a trial compiles",
        "too short loses configurations that work, too long costs time only in a hang",
    )
    startup_autotuning: float = judgement(
        10.0,
        "timeouts",
        "of both with max-autotune",
        "it times some twenty kernels for each shape, on all ranks at once",
    )
    hang_share: float = judgement(
        0.1, "share", "of the wall time that a hang may cost because its trial may be compiling"
    )
    steps_of_profile: int = judgement(8, "steps", "under the profiler")
    steps_of_survey: int = judgement(4, "steps", "of a script under survey")
    blocks_of_fit: int = judgement(
        2,
        "blocks",
        "of a run that shows its memory",
        "the first is one step, and the optimizer's state is there from the second on",
    )
    shortest_epoch: int = judgement(2, "batches", "of an epoch that is only to end")

    # Interleaved runs
    interleaved_block: float = judgement(
        0.1,
        "seconds",
        "of an interleaved block, or one step",
        "in shorter ones the step that is left out at each change costs more",
    )
    least_cycles: int = judgement(
        1, "cycles", "that are run even if they take longer than the time per run"
    )
    fewest_cycles: int = judgement(5, "cycles", "of which an interval is meaningful")
    least_cycles_of_pair: int = judgement(2, "cycles", "that a pair runs, however long they take")
    few_cycles: int = judgement(
        4, "cycles", "of a pair below which the distance of the two is not known"
    )
    machine_slower: float = judgement(
        2.0, "factor", "by which the machine may be slower than when the best was measured"
    )
    work_while_waiting: float = judgement(
        0.1,
        "share of a block",
        "that threads of a run may compute while it waits for its turn",
        "what they load meanwhile costs its steps no waiting; other threads, of monitors, take less",
    )


RUNS = RunPolicy()
