"""Hooks of MkDocs: pages of the knobs and of all commands, and links that stay within the site."""

import re
from pathlib import Path
from typing import Any

import typer
from mkdocs.structure.files import File, Files
from typer.cli import get_docs_for_click
from typer.main import get_command

from autotune.cli import app
from autotune.views.catalogue import knob_page, recorded_effects
from search_spaces import CATALOGUE

_OUTWARD = re.compile(r"\[([^\]]+)\]\(\.\./(?:examples|benchmarks)[^)]*\)")
_KNOB = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def on_config(config: Any) -> Any:
    """List the pages of the knobs, by the level at which they act, behind the table of all."""
    section = next(part["Knobs"] for part in config.nav if "Knobs" in part)
    for level in dict.fromkeys(knob.acts_on for knob in CATALOGUE.values()):
        names = [name for name, knob in CATALOGUE.items() if knob.acts_on == level]
        section.append({level.capitalize(): [{name: f"knobs/{name}.md"} for name in names]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each knob, and one for the command line."""
    effects = recorded_effects(Path(config.docs_dir) / "results")
    pages = {f"knobs/{name}.md": knob_page(name, effects) for name in CATALOGUE}
    for path, content in {**pages, "cli.md": _commands()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the table of knobs to their pages; leave out links to files beside the documentation."""
    markdown = _OUTWARD.sub(r"\1", markdown)
    if page.file.src_uri == "knobs.md":
        markdown = _KNOB.sub(r"| [`\1`](knobs/\1.md) |", markdown)
    return markdown


def _commands() -> str:
    """Return a page with the arguments and options of every command, as `--help` prints them."""
    command = get_command(app)
    context = typer.Context(command, info_name="autotune")
    return get_docs_for_click(obj=command, ctx=context, name="autotune", title="Commands")
