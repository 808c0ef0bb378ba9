"""On PYTHONPATH: Python processes behave as if these packages were not installed."""

import importlib.machinery
import sys

PACKAGES = {"ray", "pandas", "optuna_dashboard"}


class Finder(importlib.machinery.PathFinder):
    """Finds everything else."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        missing = name.partition(".")[0] in PACKAGES
        return None if missing else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, context):
        missing = context.name and context.name.replace("-", "_") in PACKAGES
        return () if missing else super().find_distributions(context)


sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
