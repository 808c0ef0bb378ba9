"""Texts of a replayed study, as its page and the terminal show them."""

import html
import re

from autotune.views.answer import final_block
from autotune.views.markdown_report import report_of
from autotune.views.page import page
from autotune.views.study_figures import StudyFigures
from tests.control.replayed import Replayed
from tests.support.steering import ask


def words(markup: str) -> str:
    """Return the text of a page."""
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", markup, flags=re.DOTALL))


def answered(played: Replayed, *command: str) -> str:
    """Return the output of a command about a study."""
    found = ask(*command, "--storage", played.url, cwd=played.folder)
    assert found.returncode == 0, found.stderr
    return found.stdout


def texts_of(played: Replayed, figures: StudyFigures) -> dict[str, str]:
    """Return the texts of a study that show its answer, by the place where they stand."""
    return {
        "page": words(page(figures)),
        "report": report_of(figures),
        "block": final_block(figures),
        "status": answered(played, "status", played.name),
        "watch": answered(played, "watch", played.name),
    }
