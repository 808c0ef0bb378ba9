"""Find what building a workload imports, and import it once for all trials.

A rank is forked from a process that has torch imported. Libraries that the workload needs besides
(transformers takes seconds) can be imported there too, as long as nothing that a rank can see comes
out differently. The user's own modules are never among them.
"""

import contextlib
import ctypes
import importlib
import os
import site
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from autotune.worker import processes
from autotune.worker.protocol import Preload, TrialRequest
from autotune.worker.sandbox import redirect

PRELOAD_FILE = "AUTOTUNE_PRELOAD"
"""Environment variable that tells a fork server which file says what to import."""
_DRIVER = "libcuda.so.1"
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED, the answer to every call before cuInit."""
_DEVICES = "/dev/nvidia"


class ImportRecord:
    """Record of modules, environment and sys.path before a rank builds its workload."""

    def __init__(self) -> None:
        self._modules = set(sys.modules)
        self._environment = dict(os.environ)
        self._path = list(sys.path)

    def preload(self, request: TrialRequest, own: Iterable[str]) -> Preload:
        """Return what to import beforehand in later trials.

        Args:
            request: of the trial that has built its workload.
            own: names of environment variables that are set for this rank alone.
        """
        names = {*self._environment, *os.environ}
        # Without an overlay a fork server cannot find out which libraries write when they are imported.
        copying = redirect.VARIABLE in os.environ
        environment = processes.study_variables(request.env)
        return Preload(
            modules=() if copying else installed(self._modules, request.factory),
            environment=environment,
            private=tuple(sorted({*own} - {*environment})),
            changed={
                name: os.environ.get(name)
                for name in sorted(names)
                if os.environ.get(name) != self._environment.get(name)
            },
            workdir=request.workdir,
            may_write=request.may_write,
            import_paths=(
                *request.import_paths,
                *(entry for entry in sys.path if entry not in self._path),
            ),
        )


def installed(before: Iterable[str], factory: str) -> tuple[str, ...]:
    """Return modules of installed libraries imported since, in the order of their imports' ends.

    Args:
        before: names of the modules that were there then.
        factory: `module:function` of the workload; its own package is never among them.
    """
    known = set(before)
    own = package_of(factory.partition(":")[0])
    folders = _library_folders()
    return tuple(
        name
        for name, module in list(sys.modules.items())
        if name not in known and package_of(name) != own and _lies_in(module, folders)
    )


def load(wanted: Preload) -> str:
    """Import modules into a process that ranks will be forked from.

    Returns:
        Why nothing should be forked from this process now; empty if all is well.
    """
    before, shared = set(sys.modules), _shared()
    try:
        os.chdir(wanted.workdir)
    except OSError as error:
        return f"the study's folder is not there: {error}"
    os.environ.update(wanted.environment)
    with _environment_watched({*wanted.private, *wanted.changed}) as asked:
        for name in wanted.modules:
            import_one(name)
            if has_begun_cuda():
                return f"{name} initialises CUDA when it is imported"
    if differing := [name for name in asked if not _comes_out_alike(name, wanted.changed)]:
        return f"{differing[0]} is read or set when the libraries are imported"
    if not _shared() <= shared:
        return "the libraries open files or share memory when they are imported"
    brought = {package_of(name) for name in set(sys.modules) - before}
    if shadowed := [name for name in sorted(brought) if _is_found_in(name, wanted.import_paths)]:
        return f"{shadowed[0]} is also in the folder of the study"
    return ""


@contextlib.contextmanager
def _environment_watched(names: AbstractSet[str]) -> Iterator[list[str]]:
    """Notice which of these variables are read or set in os.environ meanwhile.

    Libraries enumerate the names for a prefix of their own. That alone is no reading; taking the
    value of an enumerated name is, as it may copy the whole environment.

    Yields:
        Their names, some repeatedly.
    """
    asked = list[str]()
    usual = type(os.environ)
    enumerated = ""

    class Watched(usual):  # type: ignore[misc, valid-type]
        def __getitem__(self, key: str) -> str:
            asked.extend(names if key is enumerated else {key} & names)
            return str(super().__getitem__(key))

        def __setitem__(self, key: str, value: str) -> None:
            asked.extend({key} & names)
            super().__setitem__(key, value)

        def __delitem__(self, key: str) -> None:
            asked.extend({key} & names)
            super().__delitem__(key)

        def __iter__(self) -> Iterator[str]:
            nonlocal enumerated
            for name in super().__iter__():
                enumerated = name
                yield name

    os.environ.__class__ = Watched
    try:
        yield asked
    finally:
        os.environ.__class__ = usual


def has_begun_cuda() -> bool:
    """Return whether this process has initialised CUDA, through torch or not: its forks cannot use it.

    The driver is asked. What the process has open tells less: NVML, which only counts devices, opens the
    same files in some versions.
    """
    torch = sys.modules.get("torch")  # not imported for this alone: it takes a second
    if torch is not None and torch.cuda.is_initialized():
        return True
    driver = _driver()
    if driver is None:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def _driver() -> ctypes.CDLL | None:
    """Return the CUDA driver's library if this process has loaded it, without loading it."""
    try:
        return ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def running_beside(parent: int) -> str:
    """Return why nothing should be forked from `parent`; empty if all is well. Call it in a fork.

    Threads and processes that the imported libraries have started count; thread pools of numerical
    libraries do not, as they end before a fork and start again on use.
    """
    if len(os.listdir(f"/proc/{parent}/task")) > 1:  # noqa: PTH208
        return "the libraries start threads when they are imported"
    if processes.descendants(parent) - {os.getpid()}:
        return "the libraries start processes when they are imported"
    return ""


def import_one(name: str) -> None:
    """Import a module; if that fails, print why. A rank that imports it itself reports the error."""
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit too
        traceback.print_exc()


def _comes_out_alike(name: str, changed: Mapping[str, str | None]) -> bool:
    """Return whether a variable that building the workload changes has the same value now."""
    return name in changed and os.environ.get(name) == changed[name]


def _shared() -> set[str]:
    """Return open files, and memory that a fork would share with this process, without NVML's."""
    mappings = Path("/proc/self/maps").read_text().splitlines()
    files = os.listdir("/proc/self/fd")  # noqa: PTH208
    return {line for line in mappings if line.split()[1].endswith("s") and _DEVICES not in line} | {
        name for name in files if not _is_of_nvml(Path("/proc/self/fd", name))
    }


def _is_of_nvml(descriptor: Path) -> bool:
    with contextlib.suppress(OSError):
        return str(descriptor.readlink()).startswith(_DEVICES)
    return False


def _library_folders() -> list[Path]:
    return [
        Path(folder).resolve() for folder in [*site.getsitepackages(), site.getusersitepackages()]
    ]


def _lies_in(module: Any, folders: Iterable[Path]) -> bool:
    try:
        spec = module.__spec__
        origin = Path(spec.origin).resolve() if spec.has_location else None
    except Exception:  # anything may stand in sys.modules
        return False
    return origin is not None and any(origin.is_relative_to(folder) for folder in folders)


def _is_found_in(name: str, folders: Sequence[str]) -> bool:
    spec = PathFinder.find_spec(name, list(folders))
    return spec is not None and spec.loader is not None  # a folder of data is no package


def package_of(name: str) -> str:
    """Return the outermost package of a module."""
    return name.partition(".")[0]
