"""Numbers of the measurement and of the numerics gate."""

from dataclasses import dataclass

from autotune.policy import judgement, literature, measured

_GATE = "largest error in harmless runs (benchmarks/gate.py)"


@dataclass(frozen=True)
class MeasurementPolicy:
    """Numbers of how runs are measured."""

    # Blocks
    steady_blocks: int = judgement(5, "blocks", "fewest that end a warm-up, if they are steady")
    drift_blocks: int = judgement(10, "blocks", "most, the latest, whose drift is looked at")
    steady_drift: float = judgement(
        0.01, "share of the median", "largest drift of steady blocks (Theil-Sen slope times five)"
    )
    steady_errors: float = judgement(
        1.0,
        "standard errors",
        "largest drift of steady blocks that scatter more",
        "blocks that scatter by 4 % warm up for 7; of steps that begin 20 % slower, with a time "
        "constant of 3, 5 or 8 blocks, 0.1, 0.8 or 3 % is left in the next ten",
    )
    most_steady_drift: float = judgement(
        0.03, "share of the median", "largest drift of steady blocks, however they scatter"
    )
    fewest_runs_of_drift: int = judgement(
        3, "runs", "fewest whose two halves tell whether the speed changes within a run"
    )
    least_block_df: int = judgement(
        2,
        "degrees of freedom",
        "least for three blocks or more",
        "with one, an interval in twenty is three times as wide, and no more hold the truth",
    )
    most_block_correlation: float = judgement(
        0.9, "correlation", "most of neighbouring blocks", "a few that all rise would tell nothing"
    )
    fine_half_width: float = judgement(0.1, "nats", "half-width of a ratio that is never too vague")
    least_certain: float = judgement(
        0.5, "share", "of a difference that is certain where a ratio is not too vague"
    )

    # The end of a run
    fewest_blocks: int = judgement(3, "blocks", "fewest of a run")
    steps_for_proof: int = judgement(
        20, "steps", "timed one by one that tell as much", "neighbours are correlated"
    )
    overrun_of_block: float = judgement(
        1.1, "time limits", "within which another block must end to begin"
    )
    hopeless_trial: float = judgement(
        0.98, "share", "of the best rate below which a trial is stopped"
    )
    warm_up_share: float = judgement(1 / 3, "share", "of the warm-up in the time of a short trial")
    most_repeats: int = judgement(3, "blocks", "most that are repeated because others disturbed")
    most_compiling: int = judgement(
        5, "blocks", "most that compile and do not count, nor are charged to the warm-up"
    )
    eaten_batches: float = judgement(
        2.0, "batches", "fall of a loader's queue over the latest blocks: steps live on it"
    )
    blocks_beside_runs: float = judgement(
        0.5,
        "share",
        "of the scatter of runs below which that of blocks adds nothing",
        "both add up as squares",
    )

    # Interleaved runs
    pairing_gain: float = measured(
        2.0,
        "factor",
        "between the deviation of single runs and that of pairs, beyond the scatter of cycles",
        "two to six on two shared cores, by the seconds",
    )
    unknown_width: float = judgement(1.0, "relative", "half-width of a run whose blocks tell none")

    # Noise between runs
    prior_sigma: float = measured(
        0.02,
        "relative",
        "standard deviation between runs before any were repeated",
        "3 to 4 % on two shared cores, below 1 % on a quiet node",
    )
    prior_weight: float = judgement(
        2.0, "runs", "for which `prior_sigma` counts beside repeated runs"
    )
    fewest_for_drift: int = judgement(5, "runs", "fewest that tell a drift")
    shortest_for_drift: float = judgement(
        1800.0,
        "seconds",
        "least time from the first run to the last for a drift",
        "minutes tell no hours",
    )
    others_df: float = judgement(
        2.0,
        "degrees of freedom",
        "most of all other arms in the variance of a pair",
        "arms need not have one noise",
    )

    # Steps on CUDA devices
    waiting_jitter: float = measured(
        0.025,
        "relative",
        "scatter of neighbouring steps from which on a device waits for its host",
        "at most 0.019 where it computes, at least 0.030 where it waits, one H200",
    )
    typical_waiting_jitter: float = measured(
        0.02,
        "relative",
        "the same in the median, from which on it waits and has no waves of slow steps",
        "at most 0.012 where it computes, median 0.045 where it waits (one series 0.013), one H200",
    )
    scatter_of_lengths: float = judgement(
        0.5,
        "scatter of the seconds of a step between blocks",
        "of those of a token below which steps differ by the length of their batches",
        "where lengths are equal both are the same",
    )
    waiting_processes: float = measured(
        0.2,
        "nats",
        "standard deviation between processes that wait for their host",
        "113, 126 and 185 ms in three processes, one H200",
    )
    computing_processes: float = measured(
        0.005,
        "nats",
        "standard deviation between processes that compute",
        "79.4 to 80.4 ms in three builds of one process, one H200",
    )
    most_correlation: float = judgement(0.9, "correlation", "most of neighbouring steps")
    usual_correlation: float = measured(
        0.4,
        "correlation",
        "of neighbouring steps before any was seen",
        "median of 35 series, one H200",
    )
    correlation_weight: float = judgement(
        8.0, "pairs of steps", "for which the usual correlation counts"
    )
    usual_step_scatter: float = measured(
        0.02,
        "relative",
        "of steps that compute: scatter of a long run's mean times the root of their number",
        "0.4 to 10 %, geometric mean 1.8 %, 15 series, one H200",
    )
    usual_step_df: float = measured(
        2.0,
        "degrees of freedom",
        "of that scatter",
        "these series lie apart by a factor of three",
    )
    least_df: float = judgement(
        2.0, "degrees of freedom", "least of a run's interval", "with one it is too wide to use"
    )

    # First steps
    first_step: float = judgement(5.0, "steady steps", "that a first step takes, at most")
    first_step_seconds: float = judgement(
        10.0, "seconds", "by which a first step takes longer than a steady one, at most"
    )
    first_step_margin: float = judgement(2.0, "factor", "over the worst first step of the study")
    early_steps: int = judgement(5, "steps", "of a run that count as early")
    early_step: float = judgement(
        3.0, "steady steps", "that an early step takes", "gradient compression begins later"
    )
    late_step: float = judgement(1.3, "steady steps", "that a later step of the warm-up takes")

    # Contention
    busy_share: float = judgement(
        0.9, "share", "of a node's processors that are busy in a disturbed block"
    )
    foreign_share: float = judgement(
        0.1, "share", "of a node's processors that other processes take in a disturbed block"
    )
    straggling_factor: float = judgement(
        1.5, "factor", "by which a rank lags behind the others more than before"
    )
    enough_disturbed: int = judgement(3, "blocks", "fewest that tell how much is usual")

    # Watched jobs
    checks_in_a_row: int = judgement(
        3, "minutes", "below the bound with which a drift begins, or above it with which it ends"
    )
    fewest_blocks_of_check: int = judgement(5, "blocks", "of a rank, fewest for a check")


MEASUREMENT = MeasurementPolicy()


@dataclass(frozen=True)
class GatePolicy:
    """Numbers of the numerics gate: losses, gradients and replicas that are compared."""

    # Length of the runs that are compared
    fewest_steps: int = judgement(32, "optimizer steps", "fewest of a reference")
    most_steps: int = judgement(
        96, "optimizer steps", "most of a reference, which goes on until its loss has fallen"
    )
    look_every: int = judgement(
        8, "optimizer steps", "between two looks whether the loss of a reference has fallen"
    )
    start_steps: int = judgement(4, "optimizer steps", "whose mean loss is the loss at the start")
    least_progress: float = judgement(
        0.10, "share of the loss", "fall of a reference with which losses are compared"
    )
    most_seeds: int = judgement(3, "pairs of runs", "most, while the result is open")

    # Loss
    loss_margin: float = judgement(
        0.05, "share of the progress", "by which the loss of the last quarter may differ"
    )
    equivalence_level: float = literature(
        0.05,
        "probability",
        "to call curves equivalent that lie a margin apart, over all looks",
        "Schuirmann 1987",
    )
    surely_different: float = judgement(
        0.01,
        "probability",
        "to call curves different, before the last look, that lie a margin apart",
    )
    seed_scatter: float = measured(
        0.15,
        "share of the margin",
        "least standard deviation between the distances of equal curves with other seeds",
        "at most 5 % of wrong curves pass (benchmarks/equivalence.py)",
    )

    # Gradients
    null_fp32: float = judgement(
        1e-3,
        "relative error",
        "of the gradient in fp32 where all is well",
        "cuDNN's convolutions may be TF32",
    )
    null_tf32: float = judgement(2e-3, "relative error", "the same in tf32", "by the format")
    null_fp16: float = measured(0.015, "relative error", "the same in fp16", _GATE)
    null_bf16: float = measured(0.05, "relative error", "the same in bf16", _GATE)
    null_pure_bf16: float = measured(0.06, "relative error", "the same with weights in bf16", _GATE)
    null_float8: float = judgement(0.10, "relative error", "the same in float8", "by the format")
    null_sent_fp16: float = judgement(
        0.003, "relative error", "the same of gradients sent in fp16", "by the format"
    )
    null_sent_bf16: float = judgement(
        0.01, "relative error", "the same of gradients sent in bf16", "by the format"
    )
    gradient_limit: float = judgement(3.0, "null errors", "largest error of the whole gradient")
    tensor_limit: float = judgement(
        3.0, "limits of the whole", "largest error of a tensor, relative to its own norm"
    )
    second_step_limit: float = judgement(
        3.0,
        "limits of the first step",
        "largest error in the second step",
        "its weights differ by the first",
    )
    largest_limit: float = judgement(
        0.5,
        "relative error",
        "largest limit of any number format, and largest error of plain autocast with which the "
        "direction of a gradient tells anything",
    )
    rounding_limit: float = judgement(
        1.5,
        "errors of plain autocast",
        "largest error, of the whole or a tensor, where the model amplifies rounding",
        "with the same seed, other kernels round elsewhere: channels_last 0.98 to 1.01, "
        "five convolutional networks",
    )
    largest_of_tensor: float = judgement(
        1.2,
        "relative error",
        "largest limit of a tensor in the first step where the direction of the gradient tells anything",
        "gradients of equal norm with nothing in common lie 1.4 apart, and a sketch errs by an eighth",
    )
    largest_turn: float = judgement(
        1.7,
        "one less the cosine",
        "largest of a tensor's gradient in the first step where autocast turns the whole one around",
        "2: a flipped sign; 1: nothing in common, four errors of a sketch away",
    )
    fewest_to_turn: int = judgement(
        1024, "elements", "fewest of a tensor whose direction is compared", "few turn by chance"
    )
    norm_limit: float = judgement(
        0.1,
        "relative error",
        "largest error of the gradient's norm where the model amplifies rounding",
        "rounding turns a gradient and hardly changes its norm: 5 % at most, five such networks",
    )
    negligible_norm: float = judgement(
        0.02, "share of the gradient", "least norm that the error of a tensor is relative to"
    )
    replica_difference: float = judgement(
        1e-9, "relative", "largest difference between the ranks' models"
    )


GATE = GatePolicy()
