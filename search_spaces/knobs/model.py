"""Knobs that act on the bare model."""

from search_spaces.knob import (
    ANY_WORKLOAD,
    BLOCKS,
    CHUNKED_LOSS,
    DATA,
    FLOAT8_LAYERS,
    GRAPH,
    IMAGE_CONVOLUTIONS,
    MODEL,
    NOTHING,
    NUMBERS,
    ON_OR_OFF,
    ROOT,
    SHORTENED_SAMPLES,
    SPLIT_PROJECTIONS,
    STATISTICS,
    Choice,
    Fields,
    Knob,
    Knobs,
    Named,
    NotWith,
    OnlyWith,
    Range,
    Via,
    Words,
    one_of,
    without,
)
from search_spaces.needs import BF16, CUDA, CUDA_GRAPHS, FOR_ONE_COPY, FP8, SHARDED, UNSHARDED

_IN_FSDP = ("fsdp", "fsdp_no_reshard")
"""Values of parallelism for which Accelerate and the Trainer wrap the model in FSDP."""


def _compiles(knobs: Knobs) -> bool:
    return bool(knobs["compile"] != "none")


def _hf_compile(mode: str, knobs: Knobs) -> Fields | None:
    if not _compiles(knobs):
        return {}
    if knobs["compile_scope"] != "model":
        return None
    # By itself it turns TF32 on for what autocast leaves in fp32.
    strict = {"tf32": False} if knobs["precision"] == "bf16" else {}
    named = {} if mode == "default" else {"torch_compile_mode": mode}
    return {"torch_compile": True, **named, **strict}


def _accelerate_compile(mode: str, knobs: Knobs) -> Fields:
    if not _compiles(knobs):
        return {}
    return {
        "dynamo_config.dynamo_backend": "INDUCTOR",
        "dynamo_config.dynamo_mode": mode,
        **_accelerate_scope(knobs["compile_scope"], knobs),
    }


def _accelerate_scope(scope: str, knobs: Knobs) -> Fields:
    if scope != "blocks" or not _compiles(knobs):
        return {}
    return {"dynamo_config.dynamo_use_regional_compilation": True}


def _hf_checkpointing(every: int, knobs: Knobs) -> Fields:
    if every == 0:
        return {}
    if every == 1:
        sharded = knobs["parallelism"] in _IN_FSDP
        name = "fsdp_config.activation_checkpointing" if sharded else "gradient_checkpointing"
        return {name: True}
    return {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs.every_n_layers": every,
    }


def _accelerate_checkpointing(every: int, knobs: Knobs) -> Fields | None:
    """Return how Accelerate checkpoints the blocks that FSDP wraps: all of them, or none."""
    if not every:
        return {}
    sharded = knobs["parallelism"] in _IN_FSDP
    return {"fsdp_config.fsdp_activation_checkpointing": True} if sharded and every == 1 else None


KNOBS = (
    Knob(
        name="activation_checkpointing",
        changes=frozenset({STATISTICS}),
        domain=Range(0, 64),
        default=0,
        summary="every so many-th block keeps its input only and computes anew in backward; 0: none",
        acts_on=MODEL,
        target=BLOCKS,
        inject=Via(ROOT, baseline=0),
        named=Named(
            (
                *("gradient_checkpointing", "grad_checkpointing", "activation_checkpointing"),
                *("gradient_checkpoint", "grad_checkpoint", "checkpoint_activations"),
                *("use_checkpoint", "recompute", "recompute_activations"),
            ),
            "calls of torch.utils.checkpoint",
            ("gradient checkpointing", "activation checkpointing", "recompute activations"),
        ),
        applied="torch.utils.checkpoint around blocks of the model's longest list of equal modules",
        source="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost",
        memory=True,
        parts=("compute", "launching", "pressure"),
        promising=0,
        because="computing anew costs time: only if memory is what hurts",
        only_with=(),
        conflicts=(FOR_ONE_COPY,),
        reversible=UNSHARDED,
        exports={
            "hf-trainer": Words(_hf_checkpointing),
            "accelerate": Words(_accelerate_checkpointing),
            # A policy of its own, which is another class in its configuration for every kind.
            "torchtitan": without(lambda _: None),
        },
    ),
    Knob(
        name="loss_chunks",
        changes=frozenset({NUMBERS}),
        domain=Range(1, 1024),
        default=1,
        summary="slices of the vocabulary in which the loss is computed, anew in backward; 1: all "
        "logits at once",
        acts_on=MODEL,
        target=CHUNKED_LOSS,
        inject=None,
        applied="attribute loss_chunks of the model",
        source="Wijmans et al. 2024, Cut Your Losses in Large-Vocabulary Language Models",
        ordered=True,
        memory=True,
        parts=("compute", "launching", "pressure"),
        promising=1,
        because="computing anew costs time: only if memory is what hurts",
        only_with=(),
        conflicts=(),
        reversible=UNSHARDED,
        exports={},
    ),
    Knob(
        name="layer_keep",
        changes=frozenset({GRAPH}),
        domain=Range(0.05, 1, integer=False),
        default=1,
        summary="progressive layer dropping: how likely the last block is kept at the end; 1: all are",
        acts_on=MODEL,
        target=BLOCKS,
        inject=None,
        applied="blocks of the model's longest list of equal modules pass their input on; DDP looks for "
        "unused parameters",
        source="Zhang and He 2020, Progressive Layer Dropping (arXiv 2010.13369)",
        ordered=True,
        schedule=True,
        parts=("compute", "launching", "pressure", "communication"),
        promising=1,
        because="it trains something else: a decision for people",
        only_with=(),
        conflicts=(
            FOR_ONE_COPY,
            NotWith("compile", "every choice of blocks would be compiled anew"),
            NotWith("static_graph", "other parameters get a gradient in every step"),
            NotWith(
                "gradient_compression",
                "what is left over from one step belongs to the same parameters in the next",
                of_other=("powersgd", "one_bit"),
            ),
        ),
        stateful=(),
        exports={},
    ),
    Knob(
        name="curriculum_start",
        changes=frozenset({DATA}),
        domain=Range(0.01, 1, integer=False),
        default=1,
        summary="length of samples at the start of the training, as a share; it grows evenly; 1: always "
        "whole. A shortened sample counts by its tokens",
        acts_on=MODEL,
        target=SHORTENED_SAMPLES,
        inject=None,
        applied="Workload.shorten of every batch",
        source="Li et al. 2022, Sequence Length Warmup (arXiv 2108.06084)",
        ordered=True,
        schedule=True,
        parts=("compute", "launching", "pressure"),
        promising=1,
        because="it trains something else: a decision for people",
        only_with=(),
        conflicts=(NotWith("compile", "every length would be compiled anew"),),
        stateful=(),
        exports={},
    ),
    Knob(
        name="curriculum_share",
        changes=frozenset({DATA}),
        domain=Range(0.01, 1, integer=False),
        default=0.5,
        summary="share of the training after which samples have their whole length",
        acts_on=MODEL,
        target=SHORTENED_SAMPLES,
        inject=None,
        applied="Workload.shorten of every batch",
        source="Li et al. 2022, Sequence Length Warmup (arXiv 2108.06084)",
        ordered=True,
        schedule=True,
        parts=("compute", "launching", "pressure"),
        promising=0.5,
        because="it trains something else: a decision for people",
        only_with=(OnlyWith("curriculum_start", (), "samples always have their whole length"),),
        conflicts=(),
        exports={},
    ),
    Knob(
        name="channels_last",
        changes=frozenset({NUMBERS}),
        domain=ON_OR_OFF,
        default=False,
        summary="image tensors and convolution weights with the channel innermost",
        acts_on=MODEL,
        target=IMAGE_CONVOLUTIONS,
        inject=Via(ROOT, baseline=False),
        named=Named(
            ("channels_last", "memory_format", "nhwc"),
            "memory format of convolution weights",
            ("channels last", "channels_last", "memory format", "nhwc"),
            (
                {"contiguous": False, "channels_last": True},
                {"contiguous_format": False, "channels_last": True},
            ),
        ),
        applied="model and batches .to(memory_format=torch.channels_last)",
        source="PyTorch tutorial: Channels Last Memory Format",
        parts=("compute", "pressure"),
        promising=True,
        because="the format that convolution kernels work in",
        memory=True,
        only_with=(),
        conflicts=(
            FOR_ONE_COPY,
            NotWith("parallelism", "FSDP2 takes contiguous weights only", of_other=SHARDED),
        ),
        # The buckets of DDP keep the memory format that the weights had.
        reversible=("none",),
        exports={},
    ),
    Knob(
        name="compile",
        changes=frozenset({NUMBERS}),
        domain=Choice(
            ("none", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        ),
        default="none",
        summary="the model through torch.compile; reduce-overhead and max-autotune with CUDA graphs, "
        "both max-autotune with the fastest of many kernels for every product",
        needs=CUDA,
        needs_for=("reduce-overhead", "max-autotune"),
        acts_on=MODEL,
        target=ANY_WORKLOAD,
        inject=Via(ROOT, baseline="none"),
        named=Named(
            (
                "compile",
                "torch_compile",
                "torchcompile",
                "compile_model",
                "model_compile",
                "dynamo",
                "dynamo_backend",
            ),
            "frames that torch.compile has compiled",
            ("torch.compile", "torchdynamo"),
            ({"none": "none", "default": "default"}, {"no": "none", "inductor": "default"}),
        ),
        applied="torch.compile(model, mode=...)",
        source="Ansel et al. 2024, PyTorch 2; torch.compile documentation",
        parts=("compute", "launching", "pressure"),
        promising="default",
        because="fused kernels read and write less; the time to compile is not counted",
        memory=True,
        only_with=(),
        conflicts=(
            FOR_ONE_COPY,
            NotWith(
                "accumulation_steps",
                "its CUDA graphs write gradients where those of the micro-batch before still lie "
                "(pytorch#169545)",
                values=CUDA_GRAPHS,
                device="cuda",
            ),
            NotWith(
                "set_to_none",
                "its CUDA graphs write gradients where those of the step before, only set to zero, "
                "still lie (pytorch#96693)",
                values=CUDA_GRAPHS,
                device="cuda",
            ),
        ),
        reversible=UNSHARDED,
        lasting=CUDA_GRAPHS,
        made_for=(
            *("micro_batch", "precision", "attention", "activation_checkpointing"),
            *("channels_last", "compile_scope", "loss_chunks", "qkv_streams"),
        ),
        exports={
            "hf-trainer": Words(_hf_compile),
            "accelerate": Words(_accelerate_compile),
            "torchtitan": one_of(
                {"none": {"compile.enable": False}, "default": {"compile.enable": True}}
            ),
        },
    ),
    Knob(
        name="compile_scope",
        changes=frozenset({NUMBERS}),
        domain=Choice(("model", "blocks")),
        default="model",
        summary="what is compiled at a time: the whole model, or each of its repeated blocks, which "
        "share what was compiled of one",
        acts_on=MODEL,
        target=BLOCKS,
        inject=Via(ROOT),
        applied="torch.compile of forward of the blocks in the model's longest list of equal modules",
        source="PyTorch tutorial: Reducing torch.compile cold start with regional compilation; "
        "torchtitan compiles every block of a Transformer",
        parts=("compute", "launching", "pressure"),
        promising="model",
        because="fuses across blocks; blocks alone compile faster and go with FSDP",
        memory=True,
        only_with=(OnlyWith("compile", (), "nothing is compiled"),),
        conflicts=(),
        reversible=UNSHARDED,
        exports={
            "hf-trainer": one_of({"model": {}}),
            "accelerate": Words(_accelerate_scope),
            "torchtitan": Words(
                lambda value, knobs: {} if value == "blocks" or not _compiles(knobs) else None,
                by_itself=lambda knobs: "blocks" if _compiles(knobs) else "model",
            ),
        },
    ),
    Knob(
        name="float8",
        changes=frozenset({NUMBERS}),
        domain=Choice(("none", "tensorwise", "rowwise")),
        default="none",
        summary="matrix products of linear layers in FP8, scaled by the tensor or by its rows, forward "
        "and backward; beside compile it pays, alone it does not. Under FSDP, tensorwise gathers "
        "weights in FP8",
        needs=FP8,
        acts_on=MODEL,
        target=FLOAT8_LAYERS,
        inject=Via(ROOT, baseline="none"),
        applied="torchao.float8.convert_to_float8_training of nn.Linear whose dimensions are multiples "
        "of 16; extra: float8",
        source="Micikevicius et al. 2022, FP8 Formats for Deep Learning; torchtitan, Llama 3 8B on "
        "H100s: 1.11x rowwise, 1.25x tensorwise with weights gathered in FP8, over compiled bf16",
        parts=("compute", "communication"),
        promising="tensorwise",
        because="twice the rate of bf16 products",
        memory=True,
        number_format=True,
        only_with=(OnlyWith("precision", BF16, "its products are rounded from and to bf16"),),
        conflicts=(
            NotWith(
                "compile",
                "only compiled code fuses the scaling into its products; without it 130,000 tokens/s "
                "were measured where bf16 has 409,000 (GPT-2 124M, H200, torch 2.11)",
                of_other=("none",),
                runs=True,
            ),
            NotWith(
                "parallelism",
                "torchao's layers cannot be copied for every forward pass",
                of_other=("data_parallel",),
            ),
        ),
        made_for=("precision", "optimizer_kernels"),
        exports={},
    ),
    Knob(
        name="qkv_streams",
        changes=NOTHING,
        domain=ON_OR_OFF,
        default=False,
        summary="Q, K and V projections issued on three CUDA streams",
        needs=CUDA,
        acts_on=MODEL,
        target=SPLIT_PROJECTIONS,
        inject=None,
        applied="attribute qkv_streams of the model's attention modules",
        source="measured slower for d_model 512 on 4 RTX 3090: a negative result worth repeating",
        memory=True,
        parts=("launching", "compute"),
        promising=False,
        because="measured slower at usual sizes",
        only_with=(),
        conflicts=(FOR_ONE_COPY,),
        reversible=UNSHARDED,
        exports={},
    ),
)
