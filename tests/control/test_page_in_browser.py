"""Page of a study in a real browser: desktop, phone, dark and print; and a page of 5,000 trials."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.views.figures import figures_of
from autotune.views.page import page
from tests.control.replayed import Replayed
from tests.support.browsing import open_browser
from tests.support.states import MANY, STATES, many, tuned

WHOLE_SECONDS = 20.0
"""Limit of processor time of a page of so many trials; on a quiet machine it takes less than two."""
LOWEST_CONTRAST = 4.5
"""Lowest contrast of text by WCAG 2.1, level AA."""

CONTRASTS = """
() => {
  const parse = text => {
    const n = text.match(/[\\d.]+/g).map(Number);
    return n.length < 4 ? [...n, 1] : n;
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = c => {
    const [r, g, b] = c.map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    const several = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour[3] > 0) several.push(colour);
      if (colour[3] === 1) break;
    }
    return several.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.textContent);
    const text = own.join("").trim();
    if (!text || !e.getClientRects().length || e.tagName === "title") continue;
    const style = getComputedStyle(e), back = behind(e);
    const front = over(parse(e.tagName === "text" ? style.fill : style.color), back);
    const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), text.slice(0, 40), e.tagName, e.getAttribute("class")]);
  }
  return found;
}
"""

OVERLAPS = """
() => {
  const found = [];
  for (const chart of document.querySelectorAll(".chart, svg.area")) {
    const labels = [...chart.querySelectorAll("text, .xs span, .ys span")]
      .filter(e => e.textContent.trim() && e.getClientRects().length)
      .map(e => [e.getBoundingClientRect(), e.textContent]);
    for (const [i, [a, one]] of labels.entries())
      for (const [b, other] of labels.slice(i + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4)
          found.push([one, other]);
  }
  return found;
}
"""
"""Labels of a chart that lie on one another."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


MEDIA = (
    (1280, "light", "screen"),
    (390, "light", "screen"),
    (1280, "dark", "screen"),
    (800, "dark", "print"),
)


@pytest.mark.long
@pytest.mark.parametrize("state", [name for name in STATES if name != "many-trials"])
def test_state_can_be_read_on_terminal_desktop_phone_in_the_dark_and_on_paper(
    played: Replayed, browser: Any, tmp_path: Path, state: str
) -> None:
    shown = STATES[state](played)
    for width, text in shown.screens.items():
        assert max(map(len, text.splitlines())) <= width, text
    file = tmp_path / "page.html"
    file.write_text(page(shown.figures))
    opened = browser.new_page()
    opened.set_default_timeout(60_000)
    told: list[str] = []
    opened.on("console", lambda message: told.append(message.text))
    opened.on("request", lambda request: told.append(request.url))
    opened.goto(file.as_uri())
    for width, scheme, media in MEDIA:
        opened.set_viewport_size({"width": width, "height": 900})
        opened.emulate_media(media=media, color_scheme=scheme)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, (width, media)
        poor = [one for one in opened.evaluate(CONTRASTS) if one[0] < LOWEST_CONTRAST]
        assert not poor, (width, scheme, media, poor)
        assert not opened.evaluate(OVERLAPS), (width, scheme, media)
    assert told == [file.as_uri()], "nothing is loaded, and nothing is complained of"
    opened.close()


@pytest.mark.long
def test_page_is_usable_with_a_keyboard_and_a_reader(
    played: Replayed, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(tuned(played)))
    opened = browser.new_page()
    opened.set_default_timeout(60_000)
    opened.goto(file.as_uri())
    assert opened.title().startswith("played: ")
    assert opened.evaluate("document.documentElement.lang") == "en"
    unnamed = "[...document.querySelectorAll('svg[role=img]')].filter(e => !e.ariaLabel).length"
    assert opened.evaluate(unnamed) == 0
    assert opened.evaluate("document.querySelectorAll('h1').length") == 1
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.tagName") == "A"
    opened.evaluate("document.querySelector('summary').focus()")
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.querySelector('details').open")
    opened.close()


@pytest.mark.long
def test_page_of_thousands_of_trials_stays_small(played: Replayed) -> None:
    tuned(played)
    many(played)
    began = time.process_time()
    figures = figures_of(played.repository, played.study())
    markup = page(figures)
    seconds = time.process_time() - began
    assert len(figures.trials) == MANY + 12
    assert len(markup.encode()) <= 2 * 2**20
    assert seconds < WHOLE_SECONDS
    assert figures.rounds[-1].so_far[figures.answer.trial or 0] == figures.answer.speedup
