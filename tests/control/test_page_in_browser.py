"""Page of a study in a real browser: desktop, phone, dark and print; and a page of 5,000 trials."""

import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.views.figures import figures_of
from autotune.views.page import page
from tests.control.replayed import Replayed
from tests.control.test_figures import tuned
from tests.support.browsing import open_browser
from tests.support.waiting import stopwatch

MANY = 5_000
WHOLE_SECONDS = 20.0
"""Limit of a page of so many trials in a test beside others; by itself it takes less than two."""
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


def test_page_can_be_read_on_desktop_phone_in_the_dark_and_on_paper(
    played: Replayed, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(tuned(played)))
    for width, scheme, media in (
        (1280, "light", "screen"),
        (390, "light", "screen"),
        (1280, "dark", "screen"),
        (800, "dark", "print"),
    ):
        opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.set_default_timeout(60_000)
        told: list[str] = []
        opened.on("console", lambda message, told=told: told.append(message.text))
        opened.on("request", lambda request, told=told: told.append(request.url))
        opened.goto(file.as_uri())
        opened.emulate_media(media=media, color_scheme=scheme)
        assert told == [file.as_uri()], "nothing is loaded, and nothing is complained of"
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, (width, media)
        poor = [one for one in opened.evaluate(CONTRASTS) if one[0] < LOWEST_CONTRAST]
        assert not poor, (width, scheme, media, poor)
        opened.close()


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


def test_page_of_thousands_of_trials_stays_small(played: Replayed) -> None:
    tuned(played)
    many(played)
    taken = stopwatch()
    figures = figures_of(played.repository, played.study())
    markup = page(figures)
    seconds = taken()
    assert len(figures.trials) == MANY + 12
    assert len(markup.encode()) <= 2 * 2**20
    assert seconds < WHOLE_SECONDS
    assert figures.rounds[-1].so_far[figures.answer.trial or 0] == figures.answer.speedup


def many(played: Replayed) -> None:
    """Insert so many more trials between the search and the rounds, as if the search had made them."""
    draw = random.Random(1)
    connection = sqlite3.connect(str(played.repository.database.url.database))
    with connection:
        last = "(select max(id) from autotune_attempt where purpose = 'search')"
        [[start]] = connection.execute(f"select {last}").fetchall()
        for table, column in (("autotune_block", "attempt_id"), ("autotune_attempt", "id")):
            connection.execute(
                f"update {table} set {column} = -({column} + {MANY}) where {column} > {start}"
            )
            connection.execute(f"update {table} set {column} = -{column} where {column} < 0")
        columns = [row[1] for row in connection.execute("pragma table_info(autotune_attempt)")]
        [model] = connection.execute(
            f"select * from autotune_attempt where id = {start}"
        ).fetchall()
        for number in range(1, MANY + 1):
            row = dict(zip(columns, model, strict=True))
            knobs = json.loads(row["knobs"])
            knobs |= {"bucket_cap_mb": draw.choice([1, 5, 25, 100]), "log_interval": number}
            failed = not number % 50
            row |= {
                "id": start + number,
                "trial": 100 + number,
                "knobs": json.dumps(knobs),
                "state": "OOM" if failed else "PRUNED" if number % 3 else "COMPLETE",
                "cause": "out of memory" if failed else "",
                "throughput": None if failed else 60.0 * draw.lognormvariate(0.0, 0.1),
                "raw_throughput": None,
                "ratio": None,
                "peak_bytes": draw.randint(10**8, 10**9),
            }
            marks = ", ".join("?" * len(columns))
            connection.execute(f"insert into autotune_attempt values ({marks})", list(row.values()))
    connection.close()
