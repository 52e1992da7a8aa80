"""The page in a real Chromium, over real jobs: each view, a hang and a NaN that come while somebody watches,
a dead run, several ranks, a viewer, and names that are markup. In none may a script of a job's run, a request
leave the machine, or the policy be broken.

`PAGE_PICTURES=1` writes the pictures of the documents (docs/pictures).
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from browser import CHROMIUM, NEEDED
from harness import ROOT, SERVER, Job, Place, run_probe
from page.served import Served, served
from ranks import running_ranks

api = pytest.importorskip("playwright.sync_api", reason="the page in a browser: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NEEDED)
PATIENCE_MS = 45_000
WORDS, SCRIPT = "<img src=x onerror=hacked=1>", "<script>hacked=1</script>"
DEADLINE = {"PROBE_QUERY_TIMEOUT_S": "20"}
"""Of a query: on a machine that has other things to do, one may need more than the usual 5 s, and an answer
that says so is one more line in the browser's console."""
VIEWS = ("Run", "Step", "Ranks", "Stacks", "Learning", "SQL", "Actions", "Compare")
PICTURES = ROOT / "docs" / "pictures" if os.environ.get("PAGE_PICTURES") else None
LARGEST_PICTURE_BYTES = 250_000
WIDE_PX, HIGH_PX = 1100, 720
WITHOUT_REST = {"REST_S": "0"} if PICTURES else {}
"""In the environment of jobs: in a picture, a step is what a step takes."""
SETTLE = """async (folders) => {
    document.activeElement.blur();
    scrollTo(0, 0);
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
        for (const [here, anywhere] of folders)
            texts.currentNode.data = texts.currentNode.data.replaceAll(here, anywhere);
    for (let frames = 0; frames < 3; frames += 1) await new Promise(requestAnimationFrame);
}"""
ZONES = (
    "the 128 losses before, or as far as those rise anyway (loss-spike)",
    "up to 10 times the median and 3 times the highest of the 128 norms before (gradients-exploding)",
    "not below 1e-06 of the highest rate (learning-rate-zero)",
    "not more than 50% below what is usual of what is shown (throughput-drop)",
    "until 5% of the host's memory is left (host-memory-near-limit)",
)
"""What is said of the shaded part of each curve."""
WATCH = """
window.broken = [];
addEventListener("securitypolicyviolation",
    (event) => broken.push(`${event.violatedDirective} ${event.blockedURI}`));
"""
NAMELESS = """() => {
    const all = document.querySelectorAll("button, a, input, select, textarea, canvas, summary, [tabindex]");
    const named = (one) => one.getAttribute("aria-label") || one.labels?.[0]?.textContent.trim()
        || one.textContent.trim() || one.title;
    const reached = (one) => one.matches(":not(canvas), [role=img][tabindex='0']");
    return [...all].filter((one) => one.checkVisibility() && !(named(one) && reached(one)))
        .map((one) => one.outerHTML);
}"""
"""What a screen reader has no name for, and pictures that the keyboard does not reach."""
TRIES_TO_ACT = """async () => {
    const own = localStorage.getItem("probe-session");
    const headers = { "Content-Type": "application/json", Authorization: `Bearer ${own}` };
    const body = JSON.stringify({ endpoint: "ddp", action: "lr", arguments: { scale: 0.5 } });
    return (await (await fetch("/v1/act", { method: "POST", headers, body })).json()).error.message;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:
        options = ["no-sandbox", "disable-gpu", "disable-dev-shm-usage", "disable-background-networking"]
        found = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[f"--{option}" for option in options]
        )
        yield found
        found.close()


class Tab:
    """A tab that has opened a link, and all that it asked and complained about."""

    def __init__(self, browser: Any, site: Served, dark: bool = False) -> None:
        self.site = site
        self.context = browser.new_context(
            viewport={"width": WIDE_PX, "height": HIGH_PX}, accept_downloads=True,
            color_scheme="dark" if dark else "light",
        )
        self.context.add_init_script(WATCH)
        self.context.set_default_timeout(PATIENCE_MS)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("console", lambda line: self.said.append(line.text) if line.type == "error" else None)
        self.page.goto(site.link)

    def see(self, text: str | re.Pattern[str], where: str = "body") -> Any:
        """Wait until this text is shown."""
        found = self.page.locator(where).get_by_text(text).first
        try:
            found.wait_for()
        except api.TimeoutError:
            shown = self.page.locator("body").inner_text()
            raise AssertionError(f"{text} is not in {where}:\n{shown}\n{self.said}") from None
        return found

    def view(self, name: str) -> None:
        """Go to a view and wait until it has asked."""
        self.page.locator("#views").get_by_role("link", name=name, exact=True).click()
        self.page.locator("#views [aria-current]").get_by_text(name, exact=True).wait_for()
        self.page.wait_for_function("() => !document.getElementById('view').textContent.startsWith('asking')")
        assert self.page.evaluate(NAMELESS) == [], name

    def text(self) -> str:
        """All text of the view."""
        return str(self.page.locator("main").inner_text())

    def picture(self, name: str, *, high: int = HIGH_PX, of: str = "") -> None:
        """A picture for the documents, if they were asked for: of the page, or of one part of it. The folders
        of this machine are shown as those of anybody."""
        if PICTURES is None:
            return
        PICTURES.mkdir(exist_ok=True)
        self.page.mouse.move(5, 5)
        self.page.set_viewport_size({"width": WIDE_PX, "height": high})
        self.page.evaluate(SETTLE, [[sys.prefix, "~/gpt/.venv"], [str(ROOT), "~/gpt"]])
        shown = self.page.locator(of) if of else self.page
        shown.screenshot(path=PICTURES / f"{name}.png", animations="disabled")
        self.page.set_viewport_size({"width": WIDE_PX, "height": HIGH_PX})
        assert (PICTURES / f"{name}.png").stat().st_size < LARGEST_PICTURE_BYTES

    def check(self, *allowed: str) -> None:
        """Nothing ran, nothing was broken, nobody else was asked; `allowed`: complaints that were caused."""
        assert self.page.evaluate("[window.hacked, broken]") == [None, []]
        ours = (f"{self.site.origin}/", f"blob:{self.site.origin}/")
        others = [url for url in self.asked if not url.startswith(ours)]
        assert others == []
        assert [line for line in self.said if not any(one in line for one in allowed)] == []
        assert self.page.locator("main img, main script, main iframe").count() == 0


@contextlib.contextmanager
def opened(browser: Any, place: Place, *words: str, dark: bool = False) -> Iterator[Tab]:
    """`probe … web …` and a tab that opened its link; it must end cleanly."""
    with served(place, *words, **DEADLINE) as site:
        tab = Tab(browser, site, dark)
        try:
            yield tab
        finally:
            tab.context.close()
        assert site.end() == 0


def has_loss(tab: Tab) -> None:
    """Wait until the curve of the loss is drawn."""
    tab.page.locator("canvas[aria-label^='loss over time: last loss ']").wait_for()


def zoom_is_shared_and_can_be_sent(tab: Tab) -> None:
    """A part chosen in one curve is that of all, of the other views, and of whoever opens the address."""
    page = tab.page
    curve = page.locator("canvas[aria-label^='resident memory']")
    curve.hover(position={"x": 500, "y": 20})
    readout = page.locator("output").inner_text()
    assert all(name in readout for name in ("step ", "loss ", "lr ", "resident ")), readout
    page.mouse.down()
    curve.hover(position={"x": 900, "y": 30})
    page.mouse.up()
    tab.see(re.compile("^a part of the run, in buckets of"))
    address = page.url
    from_ms, to_ms = (int(re.search(rf"[?&]{name}=(\d+)", address)[1]) for name in ("from", "to"))
    assert from_ms < to_ms
    page.keyboard.press("2")
    tab.see(re.compile(" only Show all$"))
    other = tab.context.new_page()
    other.goto(address)
    other.get_by_text(re.compile("^a part of the run, in buckets of")).wait_for()
    assert other.url == address
    other.close()
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function("() => !location.hash.includes('from=')")
    tab.view("Run")
    has_loss(tab)


@pytest.mark.campaign  # daily: the last journey here, and what the gateway lets through, in test_web
def test_a_training_is_seen_steered_and_asked(
    browser: Any, place: Place, fork: Callable[..., Job], tmp_path: Path
) -> None:
    said = {"PROBE_NAME": "train", "PROBE_TOTAL_STEPS": "90000", **WITHOUT_REST}
    size = "short" if PICTURES else "tiny"
    job = fork("gpt_with_schedule", "--size", size, "--forever", **said, **SERVER, **DEADLINE)
    job.wait_for("READY")
    with opened(browser, place, "train", "web") as tab:
        page = tab.page
        tab.see("running", "#status")
        has_loss(tab)
        tab.see(re.compile(r"of 90,000 \(PROBE_TOTAL_STEPS\), .+ left at the usual rate, .+ so far"), "#ends")
        tab.see(re.compile(r"of 90,000, .+ left"), "#status")
        for zone in ZONES:
            tab.see(re.compile(f"shaded: .*{re.escape(zone)}"), "figcaption")
        assert "key=" not in page.url and page.evaluate("document.cookie") == ""
        before = page.locator("#status").inner_text()
        page.wait_for_function("before => document.getElementById('status').innerText !== before", arg=before)
        assert page.locator("canvas[role=img]").count() == 5
        page.locator(".verdict").first.wait_for()
        page.locator("canvas").first.focus()
        page.keyboard.press("End")
        tab.see(re.compile(r"step [\d,]+ .*loss [\d.]+"), "output")
        page.locator("details.verdict[open]").first.locator("summary").click()
        zoom_is_shared_and_can_be_sent(tab)

        page.keyboard.press("2")  # views by their number
        tab.see("Slowest steps")
        tab.see("forward", "table")
        tab.see("blocks.0", "table")
        modules = page.locator("[aria-label='modules as a tree']")
        assert modules.locator("summary").first.inner_text().startswith("GPT")
        row = modules.locator("details:not([open]) > summary", has_text=re.compile("^[01]"))
        name = row.locator("code").inner_text()
        assert modules.get_by_text("mlp_norm").count() == 1, "the block that takes less time is closed"
        row.focus()
        page.keyboard.press("Enter")
        modules.get_by_text("mlp_norm").nth(1).wait_for()
        assert modules.locator("details[open] > summary > code").filter(has_text=name).count() == 1
        tab.picture("step", high=1500)
        tab.view("Ranks")
        tab.see("ranks over steps")
        tab.view("Stacks")
        tab.see("gpt_with_schedule.py")
        page.get_by_role("button", name=re.compile("^Sample")).click()
        flames = page.locator("canvas.flame")
        flames.wait_for()
        flames.focus()
        page.keyboard.press("ArrowDown")
        tab.see(re.compile(r"100 % of all"), "figure output")
        tab.picture("flames", high=1500, of="section:has(canvas.flame)")
        tab.view("Learning")
        page.get_by_role("button", name="Record histograms").click()
        page.locator("canvas[aria-label^='gradient at step']").wait_for()
        tab.see("kurtosis", "table")
        tab.picture("learning", high=1000)
        tab.see(re.compile("parameters in the order of the model|no gradients were measured"))

        tab.view("SQL")
        editor = page.get_by_label(re.compile("^SQL;"))
        editor.fill("SELECT step, loss FROM python.steps WHERE step < 3 ORDER BY step")
        page.keyboard.press("Control+Enter")
        tab.see("3 rows in")
        assert page.locator("table td").all_inner_texts()[::2] == ["0", "1", "2"]
        with page.expect_download() as csv:
            page.get_by_role("button", name="CSV").click()
        csv.value.save_as(tmp_path / "rows.csv")
        with page.expect_download() as parquet:
            page.get_by_role("button", name="PARQUET").click()
        parquet.value.save_as(tmp_path / "rows.parquet")
        assert duckdb.sql(f"SELECT count(*), max(step) FROM '{tmp_path}/rows.parquet'").fetchall() == [(3, 2)]
        assert (tmp_path / "rows.csv").read_text().startswith("step,loss\n0,")
        tab.picture("sql")
        editor.fill("SELECT nothing FROM python.steps")
        page.get_by_role("button", name="Run", exact=True).click()
        tab.see(re.compile("nothing"), "[role=alert] pre")
        shared = page.url
        assert "sql=SELECT" in shared
        queries = len([url for url in tab.asked if "/v1/query" in url])
        page.goto(shared)
        page.reload()
        page.get_by_role("button", name="CSV").wait_for()
        assert editor.input_value() == "SELECT nothing FROM python.steps"
        now = len([url for url in tab.asked if "/v1/query" in url])
        assert now == queries, "a link fills in, and runs nothing"

        tab.view("Actions")
        tab.see(re.compile("watches histograms"), "table")
        page.get_by_role("button", name="Change the rate").click()
        dialog = page.locator("dialog")
        assert "multiplied by 0.5 after the current step" in dialog.inner_text()
        dialog.get_by_role("button", name="Cancel").click()
        assert "lr {" not in tab.text(), "nothing was done"
        page.get_by_role("button", name="Change the rate").click()
        dialog.get_by_role("button", name="Change the rate").click()
        tab.see(re.compile("^(done|standing)$"), "table")
        assert "owner, user id" in tab.text()
        page.get_by_role("button", name="Undo").click()
        dialog.get_by_role("button", name="Undo").click()
        tab.see("undone", "table")
        tab.picture("actions")
        tab.view("Run")
        tab.see(re.compile("lr .*0.5"), "table")
        if PICTURES is not None:
            page.locator(".verdict").first.wait_for()
            tab.picture("run", high=1480)

        tab.view("Compare")
        page.get_by_label("the other run").select_option(str(job.pid))
        tab.see("median step", "table")
        page.locator("canvas").first.focus()
        page.keyboard.press("+")
        page.wait_for_function("() => /from_step=[0-9]+&to_step=[0-9]+/.test(location.hash)")
        page.keyboard.press("Escape")
        page.wait_for_function("() => !location.hash.includes('from_step')")

        page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })")
        page.wait_for_timeout(2500)
        asked = len(tab.asked)
        page.wait_for_timeout(4500)
        assert len(tab.asked) == asked, "a hidden tab asks nothing"
        tab.check("Failed to load resource")  # of the SQL that is wrong
    if PICTURES is not None:  # the file that `flamegraph` makes is one
        path = str(PICTURES / "flamegraph.svg")
        assert run_probe(place, "train", "flamegraph", "--seconds", "3", "-o", path).returncode == 0


@pytest.mark.campaign  # daily: test_no_file_of_the_page_makes_markup_of_data_or_loads_from_elsewhere
def test_words_of_a_job_stay_words_and_a_nan_a_hang_and_a_death_are_seen_as_they_come(
    browser: Any, place: Place, fork: Callable[..., Job]
) -> None:
    job = fork("hostile_words", PROBE_NAME=WORDS, PROBE_STALL_S="1", **SERVER, **DEADLINE)
    job.wait_for("READY")
    with opened(browser, place, str(job.pid), "web") as tab:
        page = tab.page
        tab.see("running", "#status")
        has_loss(tab)
        tab.view("Step")
        tab.see(WORDS, "table")
        tab.see(WORDS, "[aria-label='modules as a tree']")
        tab.see(SCRIPT, "[aria-label='modules as a tree']")
        tab.view("Learning")
        page.get_by_role("button", name="Record histograms").click()
        page.locator("option", has_text=WORDS).first.wait_for(state="attached")
        page.get_by_label("parameter or module").select_option(f"{WORDS}.weight")
        page.locator("canvas[aria-label^='weight at step']").wait_for()
        tab.view("SQL")
        page.get_by_label(re.compile("^SQL;")).fill("SELECT name, text FROM python.events")
        page.get_by_role("button", name="Run", exact=True).click()
        tab.see(WORDS, "table")
        tab.see(SCRIPT, "table")
        tab.view("Run")
        has_loss(tab)
        assert job._process.stdin is not None
        job._process.stdin.write(b"nan\n")
        job._process.stdin.flush()
        tab.see(re.compile("NaN or infinite|not finite|nan", re.IGNORECASE), ".verdict")
        tab.picture("nan")
        job._process.stdin.write(b"hang\n")
        job._process.stdin.flush()
        job.wait_for("HANGING")
        tab.see("stalled", "#status")
        tab.see(re.compile("no step|sleep|blocked", re.IGNORECASE), ".verdict")
        tab.picture("hang")
        tab.view("Stacks")
        tab.see(WORDS)
        tab.see(re.compile(re.escape(SCRIPT)))
        tab.view("Ranks")
        for view in VIEWS:
            tab.view(view)
        tab.view("Run")
        tab.check()
        job.kill()
        tab.see(re.compile("killed|dead"), "#status")
        tab.see(re.compile("SIGKILL|killed"), ".verdict")
        for view in VIEWS:
            tab.view(view)
            assert page.locator("#problem").is_hidden(), (view, page.locator("#problem").inner_text())
        tab.check()


def test_somebody_who_may_only_look_sees_who_waits_for_whom_and_can_change_nothing(
    browser: Any, place: Place
) -> None:
    environ = {**WITHOUT_REST, **SERVER, **DEADLINE}
    slow = ("--fault", "compute", "--rank", "2", "--at", "5", "--length", "0.3", "--pace-ms", "20")
    with (
        running_ranks(place, 4, "faulty_ranks", *slow, "--forever", name="ddp", **environ),
        opened(browser, place, "ddp", "web", "--look-only", dark=True) as tab,
    ):
        tab.see("4 running", "#status")
        tab.see("read-only", "#status")
        ground = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(17, 21, 26)", "dark"
        has_loss(tab)
        tab.view("Ranks")
        tab.page.locator("canvas[aria-label*='4 rows']").wait_for()
        tab.see(re.compile("rank 2 is slower than the others: .* in forward"), ".verdict")
        tab.see("ranks 0-1,3 wait for it", ".verdict")
        waits = tab.page.locator("[aria-label=ranks] tr td:nth-child(7)").all_inner_texts()
        assert len(waits) == 4 and all(wait.endswith(" ms") for wait in waits), waits
        assert min(waits, key=lambda wait: float(wait[:-3])) == waits[2], "it waits for nobody"
        tab.picture("ranks")
        tab.view("Stacks")
        tab.see("Where the ranks are")
        tab.see("ranks 0-3", ".tree")
        tab.picture("stacks")
        tab.view("Actions")
        tab.see("read-only", "main")
        assert tab.page.get_by_role("button").count() == 0
        answer = tab.page.evaluate(TRIES_TO_ACT)
        assert "needs the role operator" in answer
        tab.check("403")
