"""Reference workloads. Each module here has a `build` that returns an autotune.Workload."""

BUILT_IN = {
    "gpt": "autotune.workloads.gpt:build",
    "transformer": "autotune.workloads.transformer:build",
}
"""Name in study.yaml -> factory."""
