"""Commands that print reference data: knobs, presets, the schema of study.yaml."""

import json

from autotune.views.terminal import show as print  # output may hold control characters of trials


def knobs() -> None:
    """Print the catalogue of knobs, in Markdown."""
    from autotune.views.catalogue import knobs_page

    print(knobs_page({}), end="")


def presets() -> None:
    """Print the named search spaces: the use of each, and its values per knob."""
    from autotune.views.presets import presets_listed

    print("\n".join(presets_listed()))


def schema() -> None:
    """Print the JSON Schema of study.yaml."""
    from autotune.config import json_schema

    print(json.dumps(json_schema(), indent=2))
