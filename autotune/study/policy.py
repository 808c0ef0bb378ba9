"""Numbers of the course of a study."""

from dataclasses import dataclass

from autotune.policy import judgement, measured


@dataclass(frozen=True)
class StudyPolicy:
    """Numbers of the course of a study: what is tried first, its time, its end."""

    # Interleaved runs
    resident_share: float = judgement(
        0.8,
        "share",
        "of the memory that interleaved runs may take by their peaks",
        "allocators behave otherwise near the limit",
    )
    longest_turn_step: float = judgement(
        1.0, "seconds", "of a step above which two blocks are no neighbours any more"
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

    # The baseline
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

    # Ablation
    idle_rounds: int = judgement(
        5, "rounds", "expected until the changes that bring nothing are known"
    )

    # Finalists
    another_seed_most: float = judgement(
        0.15,
        "share",
        "most of the wall time that the search leaves to checks with another seed",
        "they may not be needed",
    )

    # Rounds
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

    # First trials
    broken_after: int = judgement(
        5, "trials", "first ones that all fail, which shows that the workload is to blame"
    )
    hopeless_after: int = judgement(
        20,
        "trials",
        "first ones without a rate, whatever they end in, after which a search ends",
        "four times those that show it by errors",
    )
    cores_for_loading: int = judgement(2, "cores per rank", "from which on one is free for loading")
    cores_for_steps: int = judgement(
        1, "cores per rank", "that no process that loads is proposed for", "the step needs one"
    )
    most_growth: int = judgement(
        4, "factor", "of the micro-batch at once, unless the memory is known to hold more"
    )
    share_of_memory: float = judgement(
        0.8, "share", "of a rank's memory to which the micro-batch may grow at once"
    )

    # Time of the search
    opening_share: float = judgement(0.1, "share", "of the wall time for the look at the baseline")
    first_trial_share: float = judgement(
        0.1, "share", "of the wall time for the baseline's own trial", "its steps are not known yet"
    )
    first_trial_most: float = judgement(
        0.4, "share", "of the wall time after which that trial is ended"
    )
    shortest_look: float = judgement(
        15.0, "seconds", "in which a look at a script that starts anew mostly shows something"
    )
    trials_in_short: int = judgement(
        12,
        "trials",
        "among which a short search divides its time",
        "a longer trial tells no more where equal runs lie 3 to 5 % apart",
    )
    calibration_share: float = judgement(
        0.25, "share", "of the time for the search that another run of the baseline may take"
    )
    calibration_on_device: float = judgement(
        0.1, "share", "the same on a CUDA device", "its steps tell the noise"
    )
    left_unused: float = judgement(
        0.3,
        "share",
        "of the wall time: with less left, a search that disturbed runs end has ended",
    )
    disturbed_runs: int = judgement(
        3,
        "runs",
        "of the baseline, whose median is believed however disturbed they were",
        "one disturbed run of three does not move the median",
    )

    # Largest micro-batch
    fit_budget: float = judgement(
        0.25, "share", "of the budget that runs for the largest micro-batch may spend"
    )
    fit_least: float = judgement(0.1, "share", "of the wall time, least for such a run")
    fit_headroom: float = judgement(
        0.9,
        "share",
        "of the largest micro-batch that is taken",
        "training has peaks that a few steps do not show",
    )
    batch_granule: int = judgement(
        8, "samples", "that divide a micro-batch", "kernels are faster with multiples"
    )
    close_enough: int = judgement(
        8, "parts", "of what fits, of which one may lie between the bounds at the end"
    )

    # End of the search
    fewest_trials: int = judgement(6, "trials", "before the model may end the search")
    tolerable_gain: float = judgement(
        0.02, "relative", "gain that may be left beyond the finalists when a search ends"
    )
    chance_of_more: float = judgement(0.1, "probability", "that more is left than that")
    surprise_probability: float = judgement(
        0.025, "probability", "of residuals as large as those of a model that is not believed"
    )
    long_search: int = judgement(
        60, "trials", "from which on the later half shows what trials bring"
    )


STUDY = StudyPolicy()
