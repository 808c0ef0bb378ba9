"""Pictures of the documentation, all of one study: its page, and the block that ends it on a terminal.

python docs/pictures.py STUDY [DATABASE]     # `make pictures` runs the quickstart before
"""

import argparse
import io
import re
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from autotune.views.block import final_block
from autotune.views.figures import StudyFigures, figures_of
from autotune.views.page import page
from storage import Database, Repository

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 1280, 1100
"""Pixels of the page that are shown: answer, savings and trust."""
COLUMNS = 100
_FONTS = re.compile(r"@font-face\s*{.*?}", re.DOTALL)
"""Fonts that a picture of a terminal would load from elsewhere."""


def photograph(figures: StudyFigures, target: Path) -> None:
    """Save the first screen of a study's page as PNG."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        opened.set_content(page(figures))
        opened.screenshot(path=target)
        browser.close()


def draw(figures: StudyFigures, target: Path) -> None:
    """Save the final block of a study as SVG, as a terminal shows it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(f"$ autotune status {figures.study}", style="dim", highlight=False)
    text = final_block(figures, width=COLUMNS, exported="best.yaml")
    console.print(text, highlight=False, markup=False)
    drawn = console.export_svg(title="autotune")
    target.write_text(_FONTS.sub("", drawn))


def main() -> None:
    """Make all pictures of a study."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study")
    parser.add_argument("database", nargs="?", default="autotune.db")
    given = parser.parse_args()
    repository = Repository(Database(f"sqlite:///{given.database}"))
    figures = figures_of(repository, repository.studies.named(given.study))
    photograph(figures, IMAGES / "page.png")
    draw(figures, IMAGES / "terminal.svg")


if __name__ == "__main__":
    main()
