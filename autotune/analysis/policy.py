"""Numbers of what records show, and of the proof of a gain."""

from dataclasses import dataclass

from autotune.policy import judgement, literature, measured


@dataclass(frozen=True)
class AnalysisPolicy:
    """Numbers of what records show: costs of runs, processes, nodes, bottlenecks."""

    # Steps on CUDA devices
    processes_df: float = judgement(
        2.0, "degrees of freedom", "of the two priors of processes beside measured runs"
    )
    unsteady_spread: float = judgement(
        0.05,
        "nats",
        "standard deviation between processes from which on more of them tell more than longer runs",
        "between 0.5 % of those that compute and 20 % of those that wait",
    )

    # The baseline
    most_failures: int = judgement(
        3, "failures", "of the baseline in a row, each for another reason, until it is given up"
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


ANALYSIS = AnalysisPolicy()


@dataclass(frozen=True)
class ProofPolicy:
    """Numbers of what is proved of a finalist."""

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
    most_restarts: int = judgement(
        3,
        "times",
        "that a round begins anew because another daemon goes on with it, at most",
        "daemons that never last for a whole round would not end it",
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
