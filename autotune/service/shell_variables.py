"""Variables that trials have of their daemon, where this shell has others."""

import os
import re

from autotune.worker.proc import variables_of
from storage import Repository, StoredStudy
from storage.host import this_host

_OF_TRAINING = re.compile(
    r"(PYTHON|LD_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|MALLOC_|NCCL_|GLOO_|UCX_|FI_|CUDA|CUBLAS_|CUDNN_"
    r"|NVIDIA_|TORCH|PYTORCH_|TRITON_|HF_|TRANSFORMERS_|TOKENIZERS_|ACCELERATE_|DS_|WANDB_)\w*"
    r"|PATH|VIRTUAL_ENV|CONDA_PREFIX|TMPDIR"
)
"""Names that change how a job trains; those of a terminal differ in every shell."""


def difference(repository: Repository, study: StoredStudy) -> str:
    """Return which variables of a study's daemon on this machine this process has otherwise.

    The text is empty if there are none. Variables under the study's `env` are its own.
    """
    daemon = repository.leases.serving(study)
    there = _variables(daemon.pid) if daemon and daemon.host == this_host() else {}
    if daemon is None or not there:
        return ""
    names = sorted(
        name
        for name in {*there, *os.environ} - {*study.spec.get("env", ())}
        if _OF_TRAINING.fullmatch(name) and there.get(name) != os.environ.get(name)
    )
    if not names:
        return ""
    return (
        f"{study.name} runs with the variables of the shell that started its daemon, process "
        f"{daemon.pid}, and this shell has others: {', '.join(names)}; put them under `env:` of the "
        "study, or stop that daemon first"
    )


def _variables(pid: int) -> dict[str, str]:
    """Return the variables a process was started with; none if it is gone or hidden."""
    parts = (os.fsdecode(variable).partition("=") for variable in variables_of(pid) if variable)
    return {name: value for name, _, value in parts}
