"""Import of the workload's libraries into a fork server, done by importing this module.

The list of modules to import is all that a fork server accepts before it forks.
"""

import dataclasses
import os
from pathlib import Path

import torch

from autotune.worker import imports, interpreter
from autotune.worker.node import rehearsal, reverse_lookup
from autotune.worker.protocol import Preload, from_line


def _load() -> str:
    path = os.environ.pop(imports.PRELOAD_FILE, None)
    if path is None:
        return ""
    wanted = from_line(Path(path).read_bytes())
    assert isinstance(wanted, Preload)
    if wanted.host:
        reverse_lookup.settle(wanted.host)
    if wanted.modules and not wanted.may_write:
        try:
            wanted = dataclasses.replace(wanted, modules=rehearsal.harmless(wanted))
        except OSError as error:
            return f"nothing shows which of them write files: {error}"
    global _WANTED
    _WANTED = bool(wanted.modules)
    return imports.load(wanted) if _WANTED else ""


interpreter.record_start()
_WANTED = False
_UNFIT = _load()
_BEGAN_CUDA = imports.has_begun_cuda()


def unfit() -> str:
    """Return why nothing should be forked from the parent of this process; empty if all is well."""
    return _UNFIT or imports.running_beside(os.getppid())


def wanted() -> bool:
    """Return whether there was anything to import; if not, a new agent would be no better."""
    return _WANTED


def began_cuda() -> bool:
    """Return whether it is too late to use CUDA in this fork."""
    return _BEGAN_CUDA or torch.cuda._is_in_bad_fork()
