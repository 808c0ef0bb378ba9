"""Hooks of MkDocs: a page per knob, made of the catalogue, and links that stay within the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

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
    """Add a page for each knob."""
    effects = recorded_effects(Path(config.docs_dir) / "results")
    for name in CATALOGUE:
        page = File.generated(config, f"knobs/{name}.md", content=knob_page(name, effects))
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link the table of knobs to their pages; leave out links to files beside the documentation."""
    markdown = _OUTWARD.sub(r"\1", markdown)
    if page.file.src_uri == "knobs.md":
        markdown = _KNOB.sub(r"| [`\1`](knobs/\1.md) |", markdown)
    return markdown
