"""Knobs that act on what every step does, and on what feeds it."""

from search_spaces.knob import (
    ANY_WORKLOAD,
    ATTENTION,
    DATA,
    DATASET,
    GRAPH,
    LOADER,
    NOTHING,
    NUMBERS,
    ON_OR_OFF,
    OPTIMIZER,
    OWN_OPTIMIZER,
    ROOT,
    STATISTICS,
    STEP,
    Choice,
    Knob,
    Named,
    NotWith,
    Range,
    Via,
)
from search_spaces.needs import CUDA, FLASH, HOPPER, TF32, WITH_WORKERS, has_workers
from search_spaces.words import Fields, Knobs, Words, field, one_of, without


def _samples_of_rank(value: int, knobs: Knobs) -> Fields:
    """Return the batch as torchtitan counts it: of a rank, and over all ranks and micro-batches."""
    return {"training.local_batch_size": value, **(_samples_of_all(value, knobs) or {})}


def _samples_of_all(_: object, knobs: Knobs) -> Fields | None:
    """Return the batch over all ranks and micro-batches, where both of its knobs are known."""
    batch = knobs["global_batch_size"]
    return None if batch is None else {"training.global_batch_size": batch}


def _torchtitan_formats(weights: str, computing: str) -> Fields:
    return {"training.dtype": weights, "training.mixed_precision_param": computing}


KNOBS = (
    Knob(
        name="micro_batch",
        changes=frozenset({DATA, STATISTICS}),
        domain=Range(1, 1_048_576),
        default=8,
        summary="samples per rank and forward pass",
        acts_on=STEP,
        target=ANY_WORKLOAD,
        inject=None,
        applied="DataLoader(batch_size=...)",
        source="Hugging Face TrainingArguments.per_device_train_batch_size (default 8)",
        ordered=True,
        schedule=True,
        memory=True,
        parts=("launching", "communication", "optimizer", "pressure", "synchronisation"),
        promising=1_048_576,
        because="more samples share what every forward pass costs whatever its size",
        only_with=(),
        conflicts=(),
        exports={
            "hf-trainer": field("per_device_train_batch_size"),
            "deepspeed": field("train_micro_batch_size_per_gpu"),
            "torchtitan": Words(_samples_of_rank),
        },
        always_said=True,
    ),
    Knob(
        name="accumulation_steps",
        changes=frozenset({DATA, GRAPH}),
        domain=Range(1, 65_536),
        default=1,
        summary="micro-batches per optimizer step; gradients travel with the last one only",
        acts_on=STEP,
        target=ANY_WORKLOAD,
        inject=None,
        applied="DistributedDataParallel.no_sync() for all micro-batches but the last",
        source="PyTorch DistributedDataParallel.no_sync; Li et al. 2020, PyTorch Distributed (VLDB)",
        ordered=True,
        schedule=True,
        parts=("communication", "optimizer", "synchronisation"),
        promising=65_536,
        because="gradients travel and weights change less often",
        only_with=(),
        conflicts=(),
        exports={
            "hf-trainer": field("gradient_accumulation_steps"),
            "lightning": field("accumulate_grad_batches"),
            "deepspeed": field("gradient_accumulation_steps"),
            "torchtitan": Words(_samples_of_all),
        },
        always_said=True,
    ),
    Knob(
        name="precision",
        changes=frozenset({NUMBERS}),
        domain=Choice(("fp32", "tf32", "bf16", "fp16", "pure_bf16")),
        default="fp32",
        summary="number format of matrix products; fp16 scales the loss; pure_bf16 has no fp32 weights",
        needs=TF32,
        needs_for=("tf32",),
        acts_on=STEP,
        target=ANY_WORKLOAD,
        inject=Via(ROOT, values=("fp32", "tf32", "bf16"), baseline="fp32"),
        named=Named(
            (
                *(
                    "bf16",
                    "precision",
                    "mixed_precision",
                    "dtype",
                    "amp",
                    "autocast",
                    "train_dtype",
                ),
                *("compute_dtype", "amp_dtype", "torch_dtype", "fp16", "float16", "half"),
            ),
            "autocast that is entered, else the type of the parameters",
            ("mixed precision", "mixed-precision", "autocast", "bfloat16", "half precision"),
            (
                {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"},
                {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"},
                {"no": "fp32", "bf16": "bf16", "fp16": "fp16"},
                {"32-true": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16"},
                {"32": "fp32", "bf16": "bf16", "16": "fp16"},
                {"none": "fp32", "bf16": "bf16", "fp16": "fp16"},
            ),
        ),
        applied="torch.set_float32_matmul_precision, torch.autocast, torch.amp.GradScaler",
        source="Micikevicius et al. 2018, Mixed Precision Training; PyTorch AMP documentation",
        memory=True,
        number_format=True,
        parts=("compute", "launching", "pressure"),
        promising="bf16",
        because="half the bytes, matrix units of its own, and no loss to scale",
        only_with=(),
        conflicts=(),
        lasting=("pure_bf16",),
        exports={
            "hf-trainer": one_of(
                {
                    "fp32": {"bf16": False, "fp16": False},
                    "tf32": {"bf16": False, "fp16": False, "tf32": True},
                    "bf16": {"bf16": True, "fp16": False},
                    "fp16": {"bf16": False, "fp16": True},
                }
            ),
            "accelerate": one_of(
                {
                    "fp32": {"mixed_precision": "no"},
                    "bf16": {"mixed_precision": "bf16"},
                    "fp16": {"mixed_precision": "fp16"},
                }
            ),
            "lightning": one_of(
                {
                    "fp32": {"precision": "32-true"},
                    "bf16": {"precision": "bf16-mixed"},
                    "fp16": {"precision": "16-mixed"},
                    "pure_bf16": {"precision": "bf16-true"},
                }
            ),
            "deepspeed": one_of(
                {
                    "fp32": {"bf16.enabled": False, "fp16.enabled": False},
                    "bf16": {"bf16.enabled": True, "fp16.enabled": False},
                    "fp16": {"bf16.enabled": False, "fp16.enabled": True},
                }
            ),
            "torchtitan": one_of(
                {
                    "fp32": _torchtitan_formats("float32", "float32"),
                    "bf16": _torchtitan_formats("float32", "bfloat16"),
                    "pure_bf16": _torchtitan_formats("bfloat16", "bfloat16"),
                }
            ),
        },
    ),
    Knob(
        name="optimizer_kernels",
        changes=NOTHING,
        domain=Choice(("default", "foreach", "fused")),
        default="default",
        summary="update of all parameters in one call per operation (foreach) or in one (fused)",
        acts_on=STEP,
        target=OWN_OPTIMIZER,
        inject=Via(OPTIMIZER),
        named=Named(
            ("fused", "fused_optimizer", "fused_adam", "fused_adamw", "foreach", "optim"),
            "parameter groups of the optimizer",
            ("fused optimizer", "fused adam", "fused implementation"),
            (
                {"adamw_torch": "default", "adamw_torch_fused": "fused"},
                {"for-loop": "default", "foreach": "foreach", "fused": "fused"},
            ),
        ),
        applied="foreach=..., fused=... in the optimizer's parameter groups",
        source="PyTorch torch.optim: foreach is the default on CUDA, a loop elsewhere",
        memory=True,
        parts=("optimizer",),
        promising="fused",
        because="one kernel instead of one per parameter",
        only_with=(),
        conflicts=(
            NotWith(
                "parallelism",
                "under precision=fp16 the scale of the loss, which a fused update takes off by itself, "
                "does not reach the optimizer inside ZeroRedundancyOptimizer",
                values=("fused",),
                of_other=("zero1",),
                given=(("precision", "fp16"),),
            ),
        ),
        exports={
            # Its optim names the optimizer as well; by itself that is fused, with an older torch not.
            "hf-trainer": without(lambda _: None),
            "torchtitan": one_of(
                {name: {"optimizer.implementation": name} for name in ("foreach", "fused")},
                by_itself=lambda _: "fused",
            ),
        },
    ),
    Knob(
        name="set_to_none",
        changes=frozenset({GRAPH}),
        domain=ON_OR_OFF,
        default=True,
        summary="gradients are dropped after the update instead of set to zero; a parameter that a step "
        "leaves out is then skipped, where one with a gradient of zero still decays and moves on",
        acts_on=STEP,
        target=ANY_WORKLOAD,
        inject=None,
        applied="Optimizer.zero_grad(set_to_none=...)",
        source="PyTorch Optimizer.zero_grad (default true since 2.0)",
        parts=("optimizer",),
        promising=True,
        because="no memory to write, none to add to",
        memory=True,
        only_with=(),
        conflicts=(
            NotWith(
                "layer_keep",
                "blocks that are left out would be updated with gradients of zero instead of skipped",
            ),
        ),
        exports={},
    ),
    Knob(
        name="num_workers",
        changes=frozenset({DATA}),
        domain=Range(0, 256),
        default=0,
        summary="processes per rank that prepare batches ahead; 0: the training process does it",
        acts_on=STEP,
        target=DATASET,
        inject=Via(LOADER),
        named=Named(
            (
                *("num_workers", "workers", "n_workers", "nworkers", "dataloader_num_workers"),
                *("data_workers", "num_data_workers", "loader_workers", "num_loader_workers"),
                *(
                    "dataloader_workers",
                    "num_dataloader_workers",
                    "n_cpu",
                    "cpu_workers",
                    "j",
                    "nw",
                ),
            ),
            "the DataLoader's iterator",
            ("loading workers", "loader workers", "dataloader workers", "use for data loading"),
            is_number=True,
        ),
        applied="DataLoader(num_workers=...)",
        source="PyTorch torch.utils.data.DataLoader (default 0)",
        ordered=True,
        memory=True,
        of_host=True,
        parts=("loader", "launching"),
        promising=2,
        because="batches are prepared while the step computes",
        only_with=(),
        conflicts=(),
        exports={
            "hf-trainer": field("dataloader_num_workers"),
            "torchtitan": field("dataloader.num_workers"),
        },
    ),
    Knob(
        name="attention",
        changes=frozenset({NUMBERS}),
        domain=Choice(("auto", "unfused", "flash", "efficient", "cudnn", "flash3")),
        default="auto",
        summary="the implementation of scaled_dot_product_attention; flash3 is FlashAttention 3, where "
        "torch can register it and its package is installed",
        needs=CUDA,
        needs_for=("efficient", "cudnn"),
        also_needs=(("flash", FLASH), ("cudnn", TF32), ("flash3", HOPPER)),
        acts_on=STEP,
        target=ATTENTION,
        inject=Via(ROOT),
        applied="torch.nn.attention.sdpa_kernel; flash3: activate_flash_attention_impl as well",
        source="Dao et al. 2022, FlashAttention; Shah et al. 2024, FlashAttention-3; PyTorch "
        "scaled_dot_product_attention",
        parts=("compute", "launching", "pressure"),
        promising="auto",
        because="PyTorch picks the fastest that can do what is asked",
        memory=True,
        only_with=(),
        conflicts=(
            NotWith(
                "precision",
                "its kernels are for half precision",
                values=("flash", "cudnn", "flash3"),
                of_other=("fp32", "tf32"),
                device="cuda",
            ),
        ),
        lasting=("flash3",),
        exports={},
    ),
    Knob(
        name="pin_memory",
        changes=NOTHING,
        domain=ON_OR_OFF,
        default=False,
        summary="batches in page-locked memory, from which the device copies on its own",
        needs=CUDA,
        acts_on=STEP,
        target=ANY_WORKLOAD,
        inject=Via(LOADER),
        named=Named(
            ("pin_memory", "pin_mem", "dataloader_pin_memory"),
            "the DataLoader's iterator",
            ("pin cpu memory", "pinned memory", "pin memory"),
        ),
        applied="DataLoader(pin_memory=...)",
        source="PyTorch torch.utils.data, memory pinning",
        memory=True,
        of_host=True,
        parts=("loader", "copies"),
        promising=True,
        because="the copy no longer waits for the host",
        only_with=(),
        conflicts=(),
        exports={
            "hf-trainer": field("dataloader_pin_memory"),
            "torchtitan": field("dataloader.pin_memory"),
        },
    ),
    Knob(
        name="persistent_workers",
        changes=frozenset({DATA}),
        domain=ON_OR_OFF,
        default=False,
        summary="loader workers live on from epoch to epoch",
        acts_on=STEP,
        target=DATASET,
        inject=Via(LOADER),
        applied="DataLoader(persistent_workers=...)",
        source="PyTorch torch.utils.data.DataLoader (default false)",
        parts=("loader",),
        promising=True,
        because="no processes to start every epoch",
        only_with=(WITH_WORKERS,),
        conflicts=(),
        exports={
            "hf-trainer": field("dataloader_persistent_workers"),
            "torchtitan": field("dataloader.persistent_workers", has_workers),
        },
    ),
    Knob(
        name="prefetch_factor",
        changes=NOTHING,
        domain=Range(1, 1024),
        default=2,
        summary="batches that every loader worker prepares ahead",
        acts_on=STEP,
        target=DATASET,
        inject=Via(LOADER),
        applied="DataLoader(prefetch_factor=...)",
        source="PyTorch torch.utils.data.DataLoader (default 2)",
        parts=("loader",),
        promising=4,
        because="evens out samples that take long",
        ordered=True,
        memory=True,
        of_host=True,
        only_with=(WITH_WORKERS,),
        conflicts=(),
        exports={
            "hf-trainer": field("dataloader_prefetch_factor", has_workers),
            "torchtitan": field("dataloader.prefetch_factor", has_workers),
        },
    ),
    Knob(
        name="stream_prefetch",
        changes=NOTHING,
        domain=ON_OR_OFF,
        default=False,
        summary="copies the next batch to the device on a side stream during the current step",
        needs=CUDA,
        acts_on=STEP,
        target=ANY_WORKLOAD,
        inject=None,
        applied="torch.cuda.Stream around the copy of the next batch",
        source="NVIDIA apex data_prefetcher; PyTorch CUDA semantics, streams",
        memory=True,
        parts=("loader", "copies", "launching"),
        promising=True,
        because="the copy of the next batch hides behind the step",
        only_with=(),
        conflicts=(),
        exports={},
    ),
    Knob(
        name="log_interval",
        changes=NOTHING,
        domain=Range(1, 100_000),
        default=10,
        summary="optimizer steps between two readings of the loss on the host, each one a wait",
        acts_on=STEP,
        target=ANY_WORKLOAD,
        inject=None,
        named=Named(
            tuple(
                f"{what}_{how}"
                for what in ("log", "logging", "print", "disp")
                for how in ("interval", "freq", "frequency", "every", "steps", "every_n_steps")
            ),
            "how often a number is read from a tensor",
            is_number=True,
        ),
        applied="float(loss) every so many steps",
        source="PyTorch ImageNet example, --print-freq (default 10)",
        ordered=True,
        parts=("synchronisation",),
        promising=100_000,
        because="every reading of the loss makes the host wait for the device",
        only_with=(),
        conflicts=(),
        exports={
            "hf-trainer": Words(
                lambda value, _: {"logging_strategy": "steps", "logging_steps": value}
            ),
            "lightning": field("log_every_n_steps"),
            "torchtitan": field("metrics.log_freq"),
        },
    ),
)
