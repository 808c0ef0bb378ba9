"""Numbers of the measurement and of the proof of its results."""

from dataclasses import dataclass

from autotune.policy import judgement, literature, measured

_GATE = "largest error in harmless runs (benchmarks/gate.py)"


@dataclass(frozen=True)
class MeasurementPolicy:
    """Numbers of how runs are measured and what they are expected to cost."""

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
    blocks_for_proof: int = judgement(
        10, "blocks", "fewest of a run of the proof", "fewer tell too little of their correlation"
    )
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
    pairing_gain: float = measured(
        2.0,
        "factor",
        "between the deviation of single runs and that of pairs, beyond the scatter of cycles",
        "two to six on two shared cores, by the seconds",
    )
    resident_share: float = judgement(
        0.8,
        "share",
        "of the memory that interleaved runs may take by their peaks",
        "allocators behave otherwise near the limit",
    )
    longest_turn_step: float = judgement(
        1.0, "seconds", "of a step above which two blocks are no neighbours any more"
    )
    work_while_waiting: float = judgement(
        0.1,
        "share of a block",
        "that threads of a run may compute while it waits for its turn",
        "what they load meanwhile costs its steps no waiting; other threads, of monitors, take less",
    )
    fewest_turns: int = judgement(
        4, "blocks", "fewest of an interleaved run", "two cycles show how far runs differ"
    )
    pair_worth: float = judgement(
        8.0,
        "trials",
        "in warm workers that the launch of the first pair may cost",
        "a paired trial tells what three or four by themselves do, and a search has some eight",
    )
    pairs_in_vain: int = judgement(
        2, "trials", "in a row that fail beside the baseline, until no more are paired"
    )
    widest_rate: float = judgement(
        0.3,
        "relative",
        "largest half-width of a rate",
        "a trial of a step or two has no interval, yet is not further off",
    )
    unknown_width: float = judgement(1.0, "relative", "half-width of a run whose blocks tell none")

    # Time limits
    longest_overrun: float = judgement(
        1.25, "planned times", "that a run may take before it is ended"
    )
    longer_launch: float = judgement(
        2.0,
        "shortest runs",
        "that a trial may take where the search has the time",
        "launches differ",
    )
    late_end: float = judgement(
        0.05, "share", "of the wall time by which what was begun in time may end later"
    )
    most_launches: int = judgement(
        3, "losses", "of an agent or a daemon in a row until the attempt is to blame"
    )
    most_node_losses: int = judgement(
        10,
        "losses",
        "of its node in a row until the attempt is to blame, though nothing ran between",
    )

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
    processes_df: float = judgement(
        2.0, "degrees of freedom", "of the two priors of processes beside measured runs"
    )
    unsteady_spread: float = judgement(
        0.05,
        "nats",
        "standard deviation between processes from which on more of them tell more than longer runs",
        "between 0.5 % of those that compute and 20 % of those that wait",
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

    # The baseline
    most_failures: int = judgement(
        3, "failures", "of the baseline in a row, each for another reason, until it is given up"
    )
    baseline_again_after: int = judgement(
        8, "trials", "between two runs of the baseline", "they show drift"
    )
    baseline_first_after: int = judgement(
        3, "trials", "before it runs again at all", "the first ones lie far apart"
    )
    restless_error: float = measured(
        0.06,
        "relative",
        "standard error of a trial from which on trials are paired",
        "trials 12, 10, 8 % apart alone were 5.5, 2.8, 3.3 % apart paired, 4.6 % 4.9, two cores",
    )
    pairing_drift: float = judgement(
        0.04, "relative per hour", "drift from which on trials are paired"
    )

    # Nodes
    nodes_apart: float = literature(
        0.08,
        "nats",
        "standard deviation between equal nodes before anything is known",
        "Sinha et al. 2022, arXiv:2208.11035, five clusters",
    )
    odd_node: float = judgement(
        3.0, "standard deviations", "beyond which nodes are not of one kind"
    )
    doubt_of_node: float = judgement(
        2.0, "standard errors", "of a node's speed that a trial is given before it is stopped"
    )

    # Compilation
    compile_default: float = measured(
        15.0, "seconds", "of torch.compile on a CUDA device", "12 to 16 s, GPT-2 124M, H200"
    )
    compile_graphs: float = judgement(20.0, "seconds", "of torch.compile with reduce-overhead")
    compile_max: float = judgement(150.0, "seconds", "of torch.compile with max-autotune")
    compile_on_cpu: float = measured(
        65.0,
        "seconds",
        "of torch.compile on the CPU, in any mode",
        "median of seven, 17 to 100 s: small GPT models, ViT, ResNet-18; two cores",
    )
    compile_float8: float = measured(
        20.0, "seconds", "that float8 adds to torch.compile", "35 s in all, GPT-2 124M, H200"
    )
    compile_warm: float = judgement(
        1 / 3, "share", "of a compilation where an earlier process has compiled the graph"
    )
    compile_longer: float = judgement(
        2.0, "factor", "over a compilation that was ended before it was over"
    )

    # Costs of runs
    runs_looked_at: int = judgement(16, "runs", "latest ones that tell costs")
    fewest_timed_steps: int = judgement(
        2, "steps", "of a timed run after its first one, which is all of its warm-up then"
    )
    brief_steps: float = judgement(
        6.0,
        "steps",
        "after the first of a run that only shows how processes lie apart",
        "with 10 % scatter they tell 4 %, where processes differ by 20 %",
    )
    profiled_steps: float = judgement(
        7.0, "steps", "that the shortest profile costs, overhead of the profiler included"
    )
    longer_after_failure: float = judgement(
        2.0, "factor", "over a run that was too short, so that a few of them get there"
    )
    slow_launch: float = judgement(0.9, "quantile", "of the launches seen that a plan counts on")
    least_timed_on_device: float = measured(
        0.3,
        "share of a launch",
        "least time of steps on a CUDA device",
        "about one second times a step to 1 %, H200",
    )
    least_timed: float = judgement(0.1, "share of a launch", "least time of steps on the CPU")
    cold_seconds: float = measured(
        2.5,
        "seconds",
        "in which steps on the CPU become as fast as they stay, and some of them are timed",
        "steps of ResNet-18 with a loader process were 4 % slower in their first 1.6 s, while its queue "
        "filled; runs of 1.2 s promised 1.96x where a job had 1.70x (two cores)",
    )
    cold_share: float = judgement(
        3.0, "launches", "that those take at most, so that rounds stay affordable"
    )
    full_precision: float = measured(
        7.0,
        "factor",
        "of a step in fp32 over one in bf16 on a CUDA device, before one was timed",
        "56,000 against 409,000 tokens/s, GPT-2 124M, H200",
    )
    unknown_seconds: float = judgement(
        1.0, "seconds", "of a trial before there was any", "all are alike"
    )
    least_seconds: float = judgement(1e-3, "seconds", "least of a trial")

    # Bottlenecks
    worth_saying: float = judgement(0.03, "share of a step", "of a part that is named")
    memory_imbalance: float = judgement(
        1.2, "factor", "between the memory of two ranks that is named"
    )
    rising_rate: float = judgement(
        1.1, "factor", "of the rate by twice the micro-batch from which on the batch is too small"
    )
    read_often: int = judgement(10, "steps", "between two readings of the loss that are too few")


MEASUREMENT = MeasurementPolicy()


@dataclass(frozen=True)
class ProofPolicy:
    """Numbers of what is proved of a finalist."""

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

    # Data
    runs_read: int = judgement(
        8, "runs", "of the baseline that are read", "with every trial paired there are thousands"
    )
    chance_copies: int = judgement(
        2, "rows", "most that come twice by chance where the baseline has none"
    )
    usual_copies: float = judgement(
        0.1,
        "share",
        "of the baseline's rows that repeat, up to which more copies are judged",
        "where a batch shows labels alone, most rows repeat one of a few",
    )
    copies_deviations: float = judgement(
        3.0, "standard deviations", "of a Poisson count by which more rows may repeat"
    )

    rates_apart: float = judgement(
        1.35,
        "ratio",
        "of learning rates in most of the first steps, by more than warm-ups of 3 and 4 steps differ",
    )

    summed_losses: float = judgement(
        0.5,
        "log ratio",
        "of the number of accumulation steps by which a gradient in proportion to it may lie off",
    )
    surely_summed: float = judgement(
        0.1,
        "log ratio",
        "the same, so close that no other split of the batch is tried",
        "with the same rows a sum of losses gives the factor itself",
    )

    # Ablation
    idle_gain: float = judgement(
        0.005, "relative", "gain below which reverted changes surely lie, all together"
    )
    idle_error: float = judgement(
        0.05,
        "probability",
        "one-sided error of the test of reverted changes, of all groups together",
    )
    idle_sure: float = judgement(
        0.05, "probability", "one-sided error with which a change no longer looks idle"
    )
    idle_futile: float = judgement(
        0.2, "probability", "one-sided error with which the test of a group is given up"
    )
    idle_groups: int = judgement(7, "groups", "most that are tested")
    idle_rounds: int = judgement(
        5, "rounds", "expected until the changes that bring nothing are known"
    )

    # Finalists
    ranked_trials: int = judgement(150, "trials", "with the highest rates that the model ranks")
    least_error: float = judgement(1e-4, "relative", "least standard error of a rate")
    most_error: float = judgement(
        0.15, "relative", "largest standard error of a rate", "that of a trial of a step or two"
    )
    unlikely_errors: float = judgement(
        1.28,
        "standard errors",
        "with which a trial is faster in one case out of ten, and no finalist",
        "its rounds would cost more than they bring",
    )
    beyond_doubt: float = judgement(
        3.0, "standard errors", "by which a difference is more than noise"
    )
    reserved_share: float = judgement(
        0.25, "share", "of the wall time that the search leaves to the proof at least"
    )
    another_seed_most: float = judgement(
        0.15,
        "share",
        "most of the wall time that the search leaves to checks with another seed",
        "they may not be needed",
    )

    # Rounds
    fewest_rounds: int = judgement(3, "rounds", "before the first look")
    fewest_alone: int = judgement(
        2, "rounds", "of one finalist where the spread between processes has a prior"
    )
    false_better: float = judgement(
        0.025,
        "probability",
        "of 'better' in a study whose finalists are no better than the baseline",
    )
    apart_error: float = judgement(
        0.05, "probability", "of the largest distance to the best, and of the largest gain"
    )
    alike_distance: float = judgement(
        0.02, "relative", "distance of the leader to the best within which rounds end"
    )
    tied_distance: float = judgement(
        0.01, "relative", "distance to the best within which the memory decides"
    )
    no_gain: float = judgement(
        0.005, "relative", "gain below which nothing is left to prove or to choose"
    )
    hopeless_chance: float = judgement(
        0.02, "probability", "to be faster than the leader with which a finalist drops out"
    )
    finest_half_width: float = judgement(0.01, "nats", "least half-width that fresh rounds aim at")
    coarsest_half_width: float = judgement(
        0.04, "nats", "largest half-width that fresh rounds aim at"
    )
    share_of_gain: float = judgement(
        1 / 3,
        "share",
        "of the gain: half-width that fresh rounds aim at between those",
        "up to which all rounds of a single finalist count: luck has little part in them",
    )
    share_of_unsteady: float = judgement(
        1 / 8, "share", "of the gain: half-width where processes of the baseline lie apart"
    )
    own_rate: float = judgement(
        0.015, "nats", "half-width of the choice's own rate that fresh rounds aim at beside that"
    )
    widest_bounds: float = judgement(
        4.0, "factor", "between the bounds of a result from which on nothing is known yet"
    )
    good_rounds: int = judgement(
        8,
        "rounds",
        "that more finalists, or longer runs, are not worth",
        "on CPUs processes lie apart by more than their steps scatter",
    )
    least_further: float = judgement(
        0.5,
        "lengths of the rounds before",
        "for which a further round needs time",
        "rounds count alike, and the noise of one that is much shorter would set the interval",
    )
    repeats_if_unsteady: int = judgement(
        3,
        "runs",
        "of a baseline whose processes lie apart, for which the search leaves time",
        "with two rounds they are five, which put a gain of a half beyond doubt",
    )
    most_repeats: int = judgement(
        12,
        "runs",
        "of such a baseline besides the rounds, at most",
        "the mean of twelve is known to a third of the spread",
    )
    most_restarts: int = judgement(
        3,
        "times",
        "that a round begins anew because another daemon goes on with it, at most",
        "daemons that never last for a whole round would not end it",
    )
    most_moves: int = judgement(
        3, "changes of the machine", "in one go that make rounds void, at most"
    )

    # Long runs
    longest_soak: float = judgement(600.0, "seconds", "longest run of the pair", "devices settle")
    shortest_soak: float = judgement(
        120.0, "seconds", "shortest run of the pair", "less shows what the rounds have shown"
    )
    soak_of_study: float = judgement(
        0.25, "share", "of the study's time so far that a run of the pair takes, at most"
    )
    soak_of_rest: float = judgement(
        0.4, "share", "of the time that is left that a run of the pair takes, at most"
    )

    # Time that is asked for
    most_rounds: int = judgement(50, "rounds", "beyond which no number of them would tell")
    trials_asked: int = judgement(
        2, "trials", "where a search has no rival", "the first may fail, or start slowly"
    )
    time_asked: float = judgement(
        1.1, "planned times", "that are asked for", "a study that goes on starts its launcher again"
    )
    rounds_asked: float = judgement(
        1.5, "expected rounds", "that are asked for", "a few tell little of how far they scatter"
    )
    runs_of_hang: int = judgement(
        2, "runs", "without a step, after which it is a hang and no lack of time"
    )


PROOF = ProofPolicy()
