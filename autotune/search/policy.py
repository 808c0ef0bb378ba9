"""Numbers of the search: what is proposed, by which models, with which priors."""

from dataclasses import dataclass

from autotune.policy import judgement, literature, measured

_TABLE = "the table translation, the only one whose configurations run out of memory"


@dataclass(frozen=True)
class SearchPolicy:
    """Numbers of the search."""

    # Proposals
    few_measured: int = judgement(
        2, "trials", "measured before the model is used; until then promising values come first"
    )
    risk_before_model: float = judgement(
        0.2,
        "probability",
        "most to run out of memory, before the model is used",
        "four times what has fitted",
    )
    doubt_before_model: float = judgement(
        0.5, "probability", "most to fail otherwise, before the model is used"
    )
    likely_to_run: float = judgement(
        0.5, "probability", "least to run, of a configuration that is predicted as the best"
    )
    rival_candidates: int = judgement(
        60, "candidates", "drawn for how much faster than the finalists they may be"
    )
    priced_candidates: int = judgement(
        200, "candidates", "most promising ones, whose gain is compared with their cost"
    )
    memory_caution: int = judgement(
        5,
        "exponent",
        "of the probability to fit in memory",
        "a trial out of memory is avoided beyond its own cost",
    )
    most_trials: int = judgement(
        600,
        "trials",
        "in the models; of more the fastest and the latest half",
        "bounds the time of a suggestion",
    )
    unmeasured_trials: int = judgement(
        100, "trials", "earlier ones that failed or ran out of memory, besides those"
    )
    most_observations: int = judgement(
        150,
        "trials",
        "with a time in the model of a step",
        "bounds the time of a suggestion",
    )
    unknown_noise: float = measured(
        0.03,
        "relative",
        "standard deviation of a trial where it is unknown",
        "16 processes of 1.5 s of one configuration differed by 3 to 4 %, two cores",
    )
    pruned_noise: float = judgement(
        0.05, "relative", "least standard deviation of a trial that was ended early"
    )
    look_ahead: int = judgement(
        100_000,
        "draws",
        "from a space too large to enumerate, for a configuration that is new and allowed",
        "seconds, in which a study does not stop",
    )
    startup_trials: int = judgement(8, "trials", "at random before Optuna's samplers model")
    patience_of_tpe: int = judgement(
        50, "proposals", "of TPE before a random configuration is taken"
    )
    patience_of_gp: int = judgement(
        2,
        "proposals",
        "of Optuna's GP before a random configuration is taken",
        "it takes a second, then proposes the same",
    )

    # The space
    most_candidates: int = judgement(
        1500,
        "configurations",
        "that are ranked; of more a random sample",
        "bounds the time of a suggestion",
    )
    walked_candidates: int = judgement(
        750,
        "configurations",
        "of that sample that are found change by change, from the baseline on",
        "half: few of a large space may be able to run",
    )
    most_values: int = judgement(17, "values", "of a range")
    enumerable_space: int = judgement(200_000, "configurations", "that are enumerated")
    searched_for_constants: int = measured(
        20_000,
        "configurations",
        "in which values that never vary are looked for",
        "half a second",
    )

    # Time of a step
    known_effect: float = judgement(0.12, "nats", "prior effect of a knob in the catalogue")
    unknown_effect: float = judgement(0.06, "nats", "prior effect of another knob")
    residual_size: float = judgement(0.03, "nats", "prior size of what the parts do not explain")
    effect_weight: float = judgement(1.0, "observations", "weight of the prior effects")
    residual_weight: float = judgement(4.0, "observations", "weight of the prior residual")
    noise_weight: float = judgement(10.0, "observations", "weight of the stated noise")
    relevant_effect: float = judgement(
        0.1, "nats", "effect that makes rows as different for the residual as their sizes do"
    )
    fit_rounds: int = judgement(
        10, "rounds", "between coefficients and sizes", "later changes are far below the noise"
    )
    first_sized: int = judgement(2, "rounds", "before the sizes are learnt")
    longest_step: float = judgement(1.5, "nats", "most that a time changes by in a round")
    gain_draws: int = judgement(64, "draws", "of the posterior in an expected gain")
    sure_share: float = judgement(0.4, "share", "of its spread that the model counts with at first")
    sure_growth: float = judgement(40.0, "trials", "in which that share grows by 1")
    forward_share: float = literature(
        1 / 3,
        "share",
        "of the forward pass in the arithmetic of a step",
        "Kaplan et al. 2020, section 2.1: the backward pass has two products for each",
    )
    profile_error: float = judgement(0.3, "share", "error of a part under the profiler")
    profile_least: float = judgement(0.02, "share", "of the step: least such error")
    unexpected_effect: float = judgement(
        0.5, "expected effects", "size of an unexpected effect of a knob"
    )
    compute_prior: tuple[float, float] = judgement(
        (0.5, 0.8),
        "fastest time per sample, nats",
        "median of the part compute, and standard deviation of its logarithm",
        "order of magnitude, as for the next six",
    )
    loader_prior: tuple[float, float] = judgement(
        (0.03, 1.5), "fastest time per sample, nats", "the same of the loader"
    )
    launching_prior: tuple[float, float] = judgement(
        (0.5, 2.0), "fastest time per sample, nats", "the same of launching kernels"
    )
    communication_prior: tuple[float, float] = judgement(
        (0.5, 2.0), "fastest time per sample, nats", "the same of communication"
    )
    optimizer_prior: tuple[float, float] = judgement(
        (0.1, 1.5), "fastest time per sample, nats", "the same of the optimizer"
    )
    pressure_prior: tuple[float, float] = judgement(
        (0.03, 1.5), "fastest time per sample, nats", "the same of memory pressure"
    )
    synchronisation_prior: tuple[float, float] = judgement(
        (0.05, 1.5), "fastest time per sample, nats", "the same of reading the loss"
    )

    # Memory
    risk_per_octave: float = judgement(
        0.06, "probability", "to run out of memory with twice the largest micro-batch that fitted"
    )
    margin_per_knob: float = judgement(
        0.35,
        "octaves",
        "standard error of a bound for each knob with another value; several by the root of squares",
        f"as a hard margin it had the least log loss of 0.35, 0.5 and 0.7 on {_TABLE}",
    )
    margin_of_waiting: float = judgement(
        0.15,
        "octaves",
        "margin for gradients that wait, or do not",
        "they are few beside activations",
    )
    edge_resolution: float = judgement(
        0.1,
        "octaves",
        "between two places of an edge, and least standard error of a bound",
        "fragments of the allocator",
    )
    memory_headroom: float = judgement(
        0.95, "share", "usable memory of a rank", "fragments of the allocator"
    )
    limit_unsure: float = judgement(0.3, "octaves", "uncertainty of the limit that two peaks give")
    limit_unsure_per_octave: float = judgement(
        0.15, "octaves per octave", "growth of that with the distance"
    )
    edge_beyond: float = judgement(
        1.0, "octaves", "below and above those of the space in which the edge may lie"
    )

    # Failures
    cause_alone: float = judgement(1.0, "weight", "of one value as the cause of a failure")
    cause_together: float = judgement(0.5, "weight", "of two values together")
    cause_chance: float = judgement(1.0, "weight", "of chance")
    cause_shared: float = judgement(
        4.0, "factor", "by which each further failure that it explains raises a cause's weight"
    )
    most_failures: int = judgement(50, "failures", "that are considered, the latest")


SEARCH = SearchPolicy()
