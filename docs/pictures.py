"""Pictures of what a study looks like: those of the documentation, and a study in every state.

python -m docs.pictures STUDY [DATABASE]     # docs/images; `make pictures` runs the quickstart before
python -m docs.pictures --states FOLDER      # page and terminal of replayed studies, to look at
"""

import argparse
import contextlib
import html
import io
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from rich.console import Console

from autotune.views.answer import final_block
from autotune.views.figures import figures_of
from autotune.views.page import page
from autotune.views.study_figures import StudyFigures
from storage import Database, Repository
from tests.control.replayed import Replayed
from tests.support.states import STATES, Shown

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 1100
"""Pixels of the page that are shown: answer, savings and trust."""
COLUMNS = 100
MEDIA = {
    "desktop": (1280, "light", "screen"),
    "phone": (390, "light", "screen"),
    "dark": (1280, "dark", "screen"),
    "print": (800, "light", "print"),
}
"""Width in pixels, colours and medium of each picture of a page."""
_FONTS = re.compile(r"@font-face\s*{.*?}", re.DOTALL)
"""Fonts that a picture of a terminal would load from elsewhere."""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Open Chromium without a window."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


def photograph(figures: StudyFigures, target: Path) -> None:
    """Save the first screen of a study's page as PNG."""
    with browser() as opened:
        tab = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        tab.set_content(page(figures, exported="best.yaml"))
        tab.screenshot(path=target)


def draw(figures: StudyFigures, target: Path) -> None:
    """Save the final block of a study as SVG, as a terminal shows it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(f"$ autotune status {figures.study}", style="dim", highlight=False)
    text = final_block(figures, width=COLUMNS, exported="best.yaml")
    console.print(text, highlight=False, markup=False)
    drawn = console.export_svg(title="autotune")
    target.write_text(_FONTS.sub("", drawn))


def save_states(folder: Path) -> None:
    """Save page and terminal of a study in every state, at every width and medium."""
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as opened:
        for name, make in STATES.items():
            with tempfile.TemporaryDirectory() as place:
                database = Database(f"sqlite:///{place}/autotune.db")
                shown = make(Replayed(Path(place), database, name))
            _save(opened, shown, folder / name)
            print(name, shown.figures.state, flush=True)


def _save(opened: Any, shown: Shown, target: Path) -> None:
    written = target.with_name(f"{target.name}.html")
    written.write_text(page(shown.figures))
    for name, (width, colours, medium) in MEDIA.items():
        tab = opened.new_page(viewport={"width": width, "height": 900}, color_scheme=colours)
        tab.goto(written.absolute().as_uri())
        tab.emulate_media(media=medium, color_scheme=colours)
        tab.screenshot(path=target.with_name(f"{target.name}-{name}.png"), full_page=True)
        tab.close()
    for columns, text in shown.screens.items():
        tab = opened.new_page(viewport={"width": 10 * columns, "height": 200})
        tab.set_content(
            f'<pre style="width:{columns}ch;outline:1px solid">{html.escape(text)}</pre>'
        )
        tab.screenshot(path=target.with_name(f"{target.name}-{columns}.png"), full_page=True)
        tab.close()


def main() -> None:
    """Make all pictures of a study, or of all states."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", nargs="?")
    parser.add_argument("database", nargs="?", default="autotune.db")
    parser.add_argument("--states", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.states:
        save_states(given.states)
    if given.study:
        repository = Repository(Database(f"sqlite:///{given.database}"))
        figures = figures_of(repository, repository.studies.named(given.study))
        photograph(figures, IMAGES / "page.png")
        draw(figures, IMAGES / "terminal.svg")


if __name__ == "__main__":
    main()
