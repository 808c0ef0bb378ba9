"""Numbers of the proof: when a finalist computes the same training as the baseline."""

from dataclasses import dataclass

from autotune.policy import judgement, literature, measured

_GATE = "largest error in harmless runs (benchmarks/gate.py)"


@dataclass(frozen=True)
class ProofPolicy:
    """Numbers of what is proved of a finalist."""

    # Length of the runs that are compared
    fewest_steps: int = judgement(32, "optimizer steps", "fewest of a reference")
    most_steps: int = judgement(
        96, "optimizer steps", "most of a reference, which goes on until its loss has fallen"
    )
    look_every: int = judgement(8, "optimizer steps", "between two looks whether it has")
    start: int = judgement(4, "optimizer steps", "whose mean loss is that of the start")
    progress: float = judgement(
        0.10, "share of the loss", "fall of a reference with which losses are compared"
    )
    most_seeds: int = judgement(3, "pairs of runs", "most, while the result is open")

    # Loss
    margin: float = judgement(
        0.05, "share of the progress", "by which the loss of the last quarter may differ"
    )
    level: float = literature(
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
    window: int = judgement(3, "optimizer steps", "whose mean distance is shown", "batches jump")

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
    limit: float = judgement(3.0, "null errors", "largest error of the whole gradient")
    limit_of_tensor: float = judgement(
        3.0, "limits of the whole", "largest error of a tensor, relative to its own norm"
    )
    limit_of_second: float = judgement(
        3.0,
        "limits of the first step",
        "largest error in the second step",
        "its weights differ by the first",
    )
    largest_limit: float = judgement(0.5, "relative error", "beyond which no format goes")
    negligible: float = judgement(
        0.02, "share of the gradient", "least norm that the error of a tensor is relative to"
    )
    known_direction: float = judgement(
        0.5,
        "relative error",
        "largest of a tensor's gradient with which its update is compared",
        "Adam moves a tensor by its noise where there is nothing else",
    )
    update: float = judgement(
        0.15, "relative", "largest difference of how far the first steps move the weights"
    )
    update_of_tensor: float = judgement(
        0.35, "relative", "the same for a tensor", "its sketch tells a norm to 12 %"
    )
    norm: float = judgement(
        0.25, "relative", "largest difference of the median norm over all steps"
    )
    replicas: float = judgement(1e-9, "relative", "largest difference between the ranks' models")


PROOF = ProofPolicy()
