"""Reference workloads. Each module here has a `build` that returns an autotune.Workload."""

BUILT_IN = {
    "convnet": "autotune.workloads.convnet:build",
    "gpt": "autotune.workloads.gpt:build",
    "huggingface": "autotune.workloads.huggingface:build",
    "images": "autotune.workloads.images:build",
    "mlp": "autotune.workloads.mlp:build",
    "transformer": "autotune.workloads.transformer:build",
}
"""Name in study.yaml -> factory."""
