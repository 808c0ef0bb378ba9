"""What building a workload imports, and importing it once for all trials instead of in each.

A rank is forked from a process that has torch imported. Libraries that the workload needs besides
(transformers takes seconds) can be imported there too, as long as that process stays fit to be forked
and no library has taken in what belongs to a single rank. The user's own modules stay out of it.
"""

import contextlib
import importlib
import os
import site
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType


def installed(before: Iterable[str], factory: str) -> tuple[str, ...]:
    """Modules of installed libraries that were imported since, in the order in which that ended.

    Args:
        before: names of the modules that were there then.
        factory: `module:function` of the workload; its own package is never among them.
    """
    known = set(before)
    own = _root(factory.partition(":")[0])
    folders = _library_folders()
    return tuple(
        name
        for name, module in list(sys.modules.items())
        if name not in known and _root(name) != own and _lies_in(module, folders)
    )


def load(modules: Sequence[str], private: Iterable[str], import_paths: Sequence[str]) -> str:
    """Import these modules into a process that ranks are to be forked from.

    Args:
        modules: names; one that cannot be imported is left out.
        private: names of environment variables that are different in a rank.
        import_paths: what a rank searches before everything else.

    Returns:
        Why nothing should be forked from this process now; empty if all is well.
    """
    before = set(sys.modules)
    with _watched_environment(private) as asked:
        for name in modules:
            _load(name)
    if asked:
        return f"{asked[0]} is read when the libraries are imported"
    brought = {_root(name) for name in set(sys.modules) - before}
    if shadowed := [name for name in sorted(brought) if _is_found_in(name, import_paths)]:
        return f"{shadowed[0]} is also in the folder of the study"
    return ""


def keeps_threads(parent: int) -> str:
    """The same, for what only a process shows that has forked: threads that are still there.

    Thread pools of numerical libraries end before a fork and start again when they are used.
    """
    if len(os.listdir(f"/proc/{parent}/task")) > 1:  # noqa: PTH208
        return "the libraries start threads when they are imported"
    return ""


def _load(name: str) -> None:
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit too: the rank that imports it itself will tell
        traceback.print_exc()


@contextlib.contextmanager
def _watched_environment(private: Iterable[str]) -> Iterator[list[str]]:
    """Names among `private` that are looked up in os.environ meanwhile."""
    names, asked = set(private), list[str]()
    usual = type(os.environ)

    class Watched(usual):  # type: ignore[misc, valid-type]
        def __getitem__(self, key: str) -> str:
            if key in names:
                asked.append(key)
            return str(super().__getitem__(key))

    os.environ.__class__ = Watched
    try:
        yield asked
    finally:
        os.environ.__class__ = usual


def _library_folders() -> list[Path]:
    return [
        Path(folder).resolve() for folder in [*site.getsitepackages(), site.getusersitepackages()]
    ]


def _lies_in(module: ModuleType | None, folders: Iterable[Path]) -> bool:
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.has_location or not spec.origin:
        return False
    origin = Path(spec.origin).resolve()
    return any(origin.is_relative_to(folder) for folder in folders)


def _is_found_in(name: str, folders: Sequence[str]) -> bool:
    return PathFinder.find_spec(name, list(folders)) is not None


def _root(name: str) -> str:
    return name.partition(".")[0]
