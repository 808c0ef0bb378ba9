"""Commands that print reference data: knobs, presets, the schema of study.yaml."""

import difflib
import json
from typing import Annotated

import typer

from autotune.errors import BadInput
from autotune.views.terminal import show as print  # output may hold control characters of trials


def knobs(
    name: Annotated[
        str | None, typer.Argument(help="A knob, to print all that is known of it.")
    ] = None,
) -> None:
    """Print the catalogue of knobs in Markdown, or one knob in full."""
    from autotune.views.catalogue import knob_lines, knobs_page
    from search_spaces import CATALOGUE

    if name is None:
        print(knobs_page({}), end="")
        return
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; `autotune knobs` lists all"
        raise BadInput(f"there is no knob {name}{hint}")
    print("\n".join(knob_lines(CATALOGUE[name])))


def presets() -> None:
    """Print the named search spaces: the use of each, and its values per knob."""
    from autotune.views.catalogue import presets_listed

    print("\n".join(presets_listed()))


def schema() -> None:
    """Print the JSON Schema of study.yaml."""
    from autotune.config import json_schema

    print(json.dumps(json_schema(), indent=2))
