"""Commands that print what there is: knobs, presets, the schema of study.yaml."""

import json

from autotune.views.terminal import show as print  # trials have a say in most of what is printed


def knobs() -> None:
    """Print the catalogue of knobs, in Markdown."""
    from autotune.views.catalogue import knobs_page

    print(knobs_page({}), end="")


def presets() -> None:
    """Print the search spaces that have a name: what each is for, and its values per knob."""
    from autotune.views.presets import presets_listed

    print("\n".join(presets_listed()))


def schema() -> None:
    """Print the JSON Schema of study.yaml."""
    from autotune.config import json_schema

    print(json.dumps(json_schema(), indent=2))
