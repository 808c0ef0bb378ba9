"""Effect of each knob on this machine: every one against its default, interleaved, in new processes.

    python benchmarks/knobs.py [--json] [--rounds N] [--only KNOB]

Each knob is tried where it can matter: on a workload, and beside other knobs, that are named with the
result. `equals` is the same comparison of a configuration with itself (A/A): a gain within its interval
is none. Knobs that cannot act on this machine are left out.
"""

import argparse
import json
import random
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autotune.config.workload_kinds import spread
from autotune.measurement.estimate import paired_ratio
from autotune.measurement.stop_rule import Limits
from autotune.runs import study_setup
from autotune.runs.monitors import TimedMonitor
from autotune.views.catalogue import knobs_page, recorded_effects
from autotune.worker.protocol import BlockPlan, TrialRequest
from launchers import Launcher, Resources, section_of
from search_spaces import CATALOGUE, defaults, infeasible

DOCS = Path(__file__).parent.parent / "docs"
WORKERS = 2
LIMITS = Limits(warmup=0.4, longest=0.8, precision=0.01)
COMPILED = Limits(warmup=40, longest=1.0, precision=0.01)
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt": (
        "autotune.workloads.gpt:build",
        {"layers": 2, "d_model": 128, "heads": 4, "length": 64},
    ),
    "mlp": ("autotune.workloads.mlp:build", {"layers": 4, "width": 512}),
    "images": ("autotune.workloads.images:build", {"size": 48, "width": 8}),
    "convnet": ("autotune.workloads.convnet:build", {"size": 24, "width": 16, "blocks": 3}),
}


@dataclass(frozen=True)
class Case:
    """Where a knob is tried.

    Attributes:
        value: against the default.
        workload: of WORKLOADS.
        beside: knobs that both have.
    """

    value: Any
    workload: str
    beside: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {
    "micro_batch": Case(32, "gpt"),
    "accumulation_steps": Case(4, "mlp"),
    "precision": Case("bf16", "gpt", {"micro_batch": 32}),
    "bucket_cap_mb": Case(0.25, "mlp"),
    "first_bucket_mb": Case(0.1, "mlp"),
    "gradient_as_bucket_view": Case(True, "mlp"),
    "gradient_compression": Case("fp16", "mlp"),
    "powersgd_rank": Case(8, "mlp", {"gradient_compression": "powersgd"}),
    "static_graph": Case(True, "gpt"),
    "find_unused_parameters": Case(True, "gpt"),
    "broadcast_buffers": Case(False, "convnet"),
    "parallelism": Case("fsdp", "gpt", {"micro_batch": 32}),
    "optimizer_kernels": Case("fused", "gpt"),
    "set_to_none": Case(False, "mlp"),
    "activation_checkpointing": Case(1, "gpt", {"micro_batch": 32}),
    "loss_chunks": Case(4, "gpt", {"micro_batch": 32}),
    "layer_keep": Case(0.5, "gpt", {"micro_batch": 32}),
    "curriculum_start": Case(0.25, "gpt", {"micro_batch": 32}),
    "curriculum_share": Case(1.0, "gpt", {"micro_batch": 32, "curriculum_start": 0.25}),
    "channels_last": Case(True, "convnet", {"micro_batch": 32}),
    "compile": Case("default", "gpt", {"micro_batch": 32}),
    "compile_scope": Case("blocks", "gpt", {"micro_batch": 32, "compile": "default"}),
    "float8": Case(
        "tensorwise", "gpt", {"micro_batch": 32, "precision": "bf16", "compile": "default"}
    ),
    "cudnn_benchmark": Case(True, "convnet", {"micro_batch": 32}),
    "attention": Case("unfused", "gpt", {"micro_batch": 32}),
    "num_workers": Case(1, "images", {"micro_batch": 32}),
    "persistent_workers": Case(True, "images", {"micro_batch": 32, "num_workers": 1}),
    "prefetch_factor": Case(8, "images", {"micro_batch": 32, "num_workers": 1}),
    "pin_memory": Case(True, "images"),
    "cpu_threads": Case(2, "gpt", {"micro_batch": 32}),
    "freeze_gc": Case(True, "gpt"),
    "stream_prefetch": Case(True, "gpt"),
    "qkv_streams": Case(True, "gpt"),
    "expandable_segments": Case(True, "gpt"),
    "nccl_algo": Case("Ring", "mlp"),
    "nccl_proto": Case("Simple", "mlp"),
    "nccl_channels": Case(4, "mlp"),
    "nccl_ctas": Case(4, "mlp"),
    "nccl_registration": Case(True, "mlp"),
    "cuda_connections": Case(1, "mlp"),
    "numa_binding": Case(True, "gpt"),
    "cpu_affinity": Case("share", "gpt"),
    "fsdp_prefetch": Case(2, "gpt", {"micro_batch": 32, "parallelism": "fsdp"}),
    "fsdp_reduce_dtype": Case("bf16", "gpt", {"micro_batch": 32, "parallelism": "fsdp"}),
    "loss_placement": Case("inside", "convnet", {"parallelism": "data_parallel"}),
    "log_interval": Case(1, "gpt"),
}


def measure(launcher: Launcher, folder: Path, knobs: dict[str, Any], workload: str) -> float | None:
    """Return samples per second; None if the configuration does not run."""
    factory, args = WORKLOADS[workload]
    slot = launcher.slots[0]
    asked = TrialRequest(
        trial=folder.name,
        factory=factory,
        args=args,
        knobs=knobs,
        world_size=launcher.ranks,
        seed=0,
        device=slot.device,
        devices_per_rank=slot.devices_per_rank,
        blocks=BlockPlan(seconds=0.1, min_steps=2),
        workdir=str(folder.parent),
        log_dir=str(folder),
    )
    judge = TimedMonitor(COMPILED if knobs["compile"] != "none" else LIMITS)
    return judge.result(slot.run_solo(spread(asked), judge)).throughput


def compare(launcher: Launcher, folder: Path, name: str, rounds: int) -> dict[str, Any]:
    """Compare a knob's value with its default, and the default with itself, round by round."""
    case = CASES[name]
    before = {**defaults(), **case.beside}
    after = {**before, name: case.value}
    rates: dict[str, list[float | None]] = {"before": [], "after": [], "again": []}
    for number in range(rounds):
        order = [("before", before), ("after", after), ("again", before)]
        random.Random(f"{name}/{number}").shuffle(order)
        for label, knobs in order:
            place = folder / f"{name}-{number}-{label}"
            rates[label].append(measure(launcher, place, knobs, case.workload))
    found: dict[str, Any] = asdict(case)
    for label, against in (("gain", "after"), ("equals", "again")):
        pairs = [(a, b) for a, b in zip(rates[against], rates["before"], strict=True) if a and b]
        found[label] = asdict(paired_ratio(*zip(*pairs, strict=True))) if len(pairs) > 1 else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--page", action="store_true", help="write docs/knobs.md and measure nothing"
    )
    arguments = parser.parse_args()
    if arguments.page:
        (DOCS / "knobs.md").write_text(knobs_page(recorded_effects(DOCS / "results")), "utf-8")
        return
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        section_of("local").open(Resources(WORKERS, None, 1, 1), folder) as launcher,
    ):
        facts = study_setup.facts_of(launcher.site)
        for name in CATALOGUE:
            case = CASES[name]
            chosen = {**defaults(), **case.beside, name: case.value}
            if infeasible(chosen, facts) or arguments.only not in (None, name):
                continue
            found[name] = compare(launcher, Path(folder), name, arguments.rounds)
            if not arguments.json:
                print(name, json.dumps(found[name]))
    if arguments.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
