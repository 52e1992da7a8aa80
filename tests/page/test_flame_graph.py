"""A flame graph in a real Chromium, opened from disk: zoom, search and details by mouse and by keyboard, the
key of a difference, and names that are markup, of which nothing may run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, NEEDED
from probe_cli.render.flame_graph import difference, merged, svg

api = pytest.importorskip("playwright.sync_api", reason="a graph in a browser: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NEEDED)
PATIENCE_MS = 45_000
HOSTILE = (
    "</title><script>hacked=1</script>", "]]><script>hacked=1</script>", '"><img src=x onerror=hacked=1>',
    "&lt;b&gt;", "\x1b[31m\ud800\n", "${hacked=1}",
)
MAIN, STEP, READ, WAIT = "main (a.py:1)", "step (a.py:9)", "read_file (data.py:3)", "wait (lock.py:2)"
STACKS = {
    "rank 0": Counter({(MAIN, STEP): 60, (MAIN, READ): 30, (MAIN, *HOSTILE): 10}),
    "rank 1": Counter({(MAIN, STEP): 10, (MAIN, READ): 88, (MAIN, WAIT, READ): 2}),
}
KINDS = "new Set(Array.from(document.querySelectorAll('*'), (one) => one.localName)).size"


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A tab in which scripts' failures and requests are noted."""
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1220, "height": 700})
        page.set_default_timeout(PATIENCE_MS)
        page.said, page.asked = [], []
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        yield page
        browser.close()


def opened(page: Any, path: Path, text: Iterator[str]) -> None:
    """Write a graph and open it from disk."""
    path.write_text("".join(text), encoding="utf-8", errors="backslashreplace")
    page.goto(path.as_uri())
    page.locator("input[type=search]").wait_for()


def frame(page: Any, name: str) -> Any:
    """The frame that is titled so, as far as it is shown."""
    return page.locator(".frame:visible").filter(has=page.locator("title", has_text=name)).first


def width(page: Any, name: str) -> float:
    return float(frame(page, name).locator("rect").get_attribute("width"))


def details(page: Any) -> str:
    return str(page.locator(".details").text_content())


def test_a_graph_is_zoomed_and_searched_by_mouse_and_keyboard(page: Any, tmp_path: Path) -> None:
    opened(page, tmp_path / "x.svg", svg(merged(STACKS), "gpt", "200 samples"))
    assert "/: search" in details(page)
    before = width(page, "rank 1")
    frame(page, "rank 1").click()
    assert width(page, "rank 1") == 1180 > before and width(page, "all") == 1180
    assert frame(page, "rank 0").count() == 0 and "rank 1: 50 %" in details(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert details(page).startswith(READ), "the widest that it calls"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert width(page, READ) == 1180
    page.keyboard.press("Escape")
    assert width(page, "rank 1") == before
    page.locator(".frame:visible").first.hover()

    page.keyboard.press("/")
    page.keyboard.type("READ_file")
    assert "3 frames found, 60 % of the width" in details(page)
    assert page.locator(".found").count() == 3
    page.keyboard.press("Enter")
    assert details(page).startswith(READ)
    page.locator("input").fill("")
    assert page.locator(".found").count() == 0
    frame(page, STEP).click()
    page.locator(".reset").click()
    assert width(page, "rank 0") == before
    assert page.said == [] and page.asked[-1].startswith("file:") and len(page.asked) == 1


def test_a_difference_says_what_its_colours_mean(page: Any, tmp_path: Path) -> None:
    root = difference({"rank 1": STACKS["rank 1"]}, {"rank 0": STACKS["rank 0"]})
    opened(page, tmp_path / "d.svg", svg(root, "gpt", "200 samples", ("rank 1", "rank 0")))
    shown = page.evaluate("document.documentElement.textContent")
    assert "more time in rank 1" in shown and "equal" in shown and "more in rank 0" in shown
    frame(page, "rank 1: 88 %").hover()
    assert details(page) == f"{READ}: rank 1: 88 %, rank 0: 30 % (+58.0 points)"
    more, less = (frame(page, name).locator("rect").get_attribute("fill") for name in ("rank 1: 88 %", STEP))
    red, _, blue = (int(more[place : place + 2], 16) for place in (1, 3, 5))
    less_red, _, less_blue = (int(less[place : place + 2], 16) for place in (1, 3, 5))
    assert red > blue and less_blue > less_red, "orange and blue, which differ for everybody"


def test_what_a_program_calls_its_functions_runs_nowhere_in_its_graph(page: Any, tmp_path: Path) -> None:
    page.said.clear()
    opened(page, tmp_path / "h.svg", svg(merged(STACKS), HOSTILE[0], HOSTILE[2]))
    elements = page.evaluate(KINDS)
    for name in HOSTILE[:4]:
        page.locator("input").fill(name)
        assert page.locator(".found").count() == 1
        page.keyboard.press("Enter")
        assert details(page).startswith(name[:20])
    frame(page, HOSTILE[0]).click()
    assert page.evaluate("window.hacked") is None and page.said == []
    assert page.evaluate("document.querySelectorAll('script').length") == 1
    assert elements == page.evaluate(KINDS)
