"""Entry point of the `autotune` command."""

import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_ROOT = str(Path(__file__).resolve().parent.parent)
_OWN_PACKAGES = {"search_spaces", "launchers", "storage"}


class _OwnPackages:
    """Finder of autotune's other top-level packages.

    It precedes PYTHONPATH and the working directory, which may hold packages of the same names.
    Only this process is concerned: ranks import the user's.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _OWN_PACKAGES:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [_ROOT], target)


def main() -> None:
    """Run the command line."""
    sys.meta_path.insert(0, _OwnPackages)
    try:
        from autotune.cli import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"autotune", *_OWN_PACKAGES}:
            raise
        from autotune.worker.installing import pip_install

        print(
            f"error: autotune was installed without what its commands need ({error.name}); "
            f"autotune.load() works all the same. For the commands: {pip_install()}",
            file=sys.stderr,
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
