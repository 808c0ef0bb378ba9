"""Import of the workload's libraries into a fork server, done by importing this module.

The list of modules to import is all that a fork server accepts before it forks. A rehearsal shows which
libraries write no file when they are imported: the fork server imports them where no file is protected.
Those that write are left to the ranks.
"""

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

import torch

from autotune.worker import imports, interpreter, processes
from autotune.worker.node import reverse_lookup
from autotune.worker.node.sandbox import writable
from autotune.worker.protocol import Preload, from_line
from autotune.worker.sandbox import overlay, scratch

_REMOVAL_SECONDS = 5.0


def harmless(wanted: Preload) -> tuple[str, ...]:
    """Return the modules that write no file when they are imported, in their order.

    A fork imports them under an overlay, which is discarded. Where none can be mounted, or this user may
    write neither where the job works nor at home, no module is known to be harmless.

    Raises:
        OSError: there is no room for the overlay.
    """
    folders = writable([wanted.workdir])
    if not folders:
        return ()
    layers = scratch.Scratch(scratch.place(list(folders))[0])
    view = overlay.View(folders, (), str(layers.folder), in_memory=True)
    report = os.memfd_create("harmless")
    fork = os.fork()
    if not fork:
        _rehearse_and_leave(wanted, view, report)
    os.waitpid(fork, 0)
    layers.remove()
    scratch.finish(_REMOVAL_SECONDS)  # no rank can be forked beside a thread
    os.lseek(report, 0, os.SEEK_SET)
    with open(report) as lines:  # noqa: PTH123 (a descriptor)
        return tuple(lines.read().split())


def _rehearse_and_leave(wanted: Preload, view: overlay.View, report: int) -> None:
    try:
        _rehearse(wanted, view, report)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(processes.Survivors):
        processes.kill_descendants(set())
    sys.stderr.flush()
    os._exit(0)


def _rehearse(wanted: Preload, view: overlay.View, report: int) -> None:
    """Import the modules one by one, and report which of them are harmless.

    Raises:
        OSError: no overlay can be mounted.
    """
    os.chdir(wanted.workdir)
    os.environ.update(wanted.environment)
    overlay.enter(view)
    sys.dont_write_bytecode = True  # what python itself writes beside a library is no harm
    left_out, packages = _LeftOut(), {imports.package_of(name) for name in wanted.modules}
    sys.meta_path.insert(0, left_out)
    for name in wanted.modules:
        if left_out.has(name):
            continue
        left_out.missed, before, known = False, _written(view), set(sys.modules)
        imports.import_one(name)
        if left_out.missed or _written(view) != before:
            print(f"{name} writes files when it is imported: left to the ranks.", file=sys.stderr)
            # A module that it has imported may be the one that writes, and would not write again.
            brought = {imports.package_of(loaded) for loaded in set(sys.modules) - known}
            left_out.add({imports.package_of(name)} | (brought & packages))
        else:
            os.write(report, f"{name}\n".encode())


def _written(view: overlay.View) -> int:
    """Count the files in the upper layers: all are in one tmpfs, and each change adds one."""
    known = os.statvfs(view.wanted[0])
    return known.f_files - known.f_ffree


class _LeftOut(MetaPathFinder):
    """Finder that fails for some packages, and records when a module misses one.

    Attributes:
        missed: set to True when one of them is looked for.
    """

    def __init__(self) -> None:
        self.missed = False
        self._roots = set[str]()

    def add(self, packages: AbstractSet[str]) -> None:
        """Remove packages from this process."""
        self._roots |= packages
        for loaded in [loaded for loaded in sys.modules if self.has(loaded)]:
            del sys.modules[loaded]

    def has(self, name: str) -> bool:
        """Return whether a module belongs to a package that is left out."""
        return imports.package_of(name) in self._roots

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Find nothing.

        Raises:
            ModuleNotFoundError: the module is left out.
        """
        if self.has(name):
            self.missed = True
            raise ModuleNotFoundError(f"{name} is left to the ranks", name=name)


def _load() -> tuple[Preload, str]:
    """Load what the launcher wants; return that, and why nothing should be forked from here."""
    path = os.environ.pop(imports.PRELOAD_FILE, None)
    if path is None:
        return Preload(), ""
    wanted = from_line(Path(path).read_bytes())
    assert isinstance(wanted, Preload)
    if wanted.host:
        reverse_lookup.settle(wanted.host)
    if wanted.modules and not wanted.may_write:
        try:
            wanted = dataclasses.replace(wanted, modules=harmless(wanted))
        except OSError as error:
            return Preload(), f"nothing shows which of them write files: {error}"
    return wanted, imports.load(wanted) if wanted.modules else ""


interpreter.record_start()
LOADED, _UNFIT = _load()
"""Message that was loaded, with the modules that were imported."""
_BEGAN_CUDA = imports.has_begun_cuda()


def unfit() -> str:
    """Return why nothing should be forked from the parent of this process; empty if all is well."""
    return _UNFIT or imports.running_beside(os.getppid())


def began_cuda() -> bool:
    """Return whether it is too late to use CUDA in this fork."""
    return _BEGAN_CUDA or torch.cuda._is_in_bad_fork()
