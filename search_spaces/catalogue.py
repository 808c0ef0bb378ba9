"""The knobs. Adding one takes an entry here, a function in autotune.trial.apply, and a test."""

from search_spaces.knob import Choice, Knob, KnobValue, Range

CUDA = "a CUDA device"
TF32 = "a CUDA device of compute capability 8.0 or higher"

_SWITCH = Choice((False, True))

_KNOBS = (
    Knob(
        name="micro_batch",
        domain=Range(1, 1_048_576),
        default=8,
        summary="samples per rank and forward pass",
        applied="DataLoader(batch_size=...)",
        source="Hugging Face TrainingArguments.per_device_train_batch_size (default 8)",
        ordered=True,
        memory=True,
    ),
    Knob(
        name="accumulation_steps",
        domain=Range(1, 65_536),
        default=1,
        summary="micro-batches per optimizer step; gradients travel with the last one only",
        applied="DistributedDataParallel.no_sync() for all micro-batches but the last",
        source="PyTorch DistributedDataParallel.no_sync; Li et al. 2020, PyTorch Distributed (VLDB)",
        ordered=True,
    ),
    Knob(
        name="precision",
        domain=Choice(("fp32", "tf32", "bf16", "fp16")),
        default="fp32",
        summary="number format of matrix products; fp16 scales the loss and keeps fp32 weights",
        needs=TF32,
        needs_for=("tf32",),
        applied="torch.set_float32_matmul_precision, torch.autocast, torch.amp.GradScaler",
        source="Micikevicius et al. 2018, Mixed Precision Training; PyTorch AMP documentation",
        memory=True,
        numerics=True,
    ),
    Knob(
        name="bucket_cap_mb",
        domain=Range(0.01, 100_000, integer=False),
        default=25,
        summary="MiB of gradients per all-reduce of DDP; 25, PyTorch's own, has a first bucket of 1",
        applied="DistributedDataParallel(bucket_cap_mb=...)",
        source="PyTorch DistributedDataParallel (default 25); Li et al. 2020",
        ordered=True,
        memory=True,
    ),
    Knob(
        name="gradient_as_bucket_view",
        domain=_SWITCH,
        default=False,
        summary="gradients live in the buckets: one copy and its memory less",
        applied="DistributedDataParallel(gradient_as_bucket_view=...)",
        source="PyTorch DistributedDataParallel (default false)",
        memory=True,
    ),
    Knob(
        name="stream_prefetch",
        domain=_SWITCH,
        default=False,
        summary="copies the next batch to the device on a side stream during the current step",
        needs=CUDA,
        applied="torch.cuda.Stream around the copy of the next batch",
        source="NVIDIA apex data_prefetcher; PyTorch CUDA semantics, streams",
        memory=True,
    ),
    Knob(
        name="qkv_streams",
        domain=_SWITCH,
        default=False,
        summary="Q, K and V projections issued on three CUDA streams",
        needs=CUDA,
        applied="attribute qkv_streams of the model's attention modules",
        source="measured slower for d_model 512 on 4 RTX 3090: a negative result worth repeating",
        memory=True,
    ),
    Knob(
        name="log_interval",
        domain=Range(1, 100_000),
        default=10,
        summary="optimizer steps between two readings of the loss on the host, each one a wait",
        applied="float(loss) every so many steps",
        source="PyTorch ImageNet example, --print-freq (default 10)",
        ordered=True,
    ),
)

CATALOGUE: dict[str, Knob] = {knob.name: knob for knob in _KNOBS}


def defaults() -> dict[str, KnobValue]:
    """Every knob at its default: what a plain script does."""
    return {name: knob.default for name, knob in CATALOGUE.items()}
