"""Measures the page of `probe JOB web` in Chromium, on a live recording with an hour of 10 steps/s.

    python bench/page.py [--seconds N]

Prints a Markdown table: time to paint and draw, frame times while the mouse moves over the curves, the delay
behind the job, and the processor time of the server with its query workers and of the command, without and
with the page open. Needs playwright and a Chromium. `--write` runs the recording process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "server"), str(ROOT / "tests")]

from browser import CHROMIUM, NEEDED  # noqa: E402

STEPS, PER_S = 36_000, 10
PORTION_STEPS = 1000
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
FRAMES = """async () => {
    const box = document.querySelector("canvas").getBoundingClientRect(), frames = [];
    let before = performance.now();
    for (let n = 0; n < 120; n += 1) {
        const at = { clientX: box.left + 80 + n * 8, clientY: box.top + 50, bubbles: true };
        document.querySelector("canvas").dispatchEvent(new PointerEvent("pointermove", at));
        await new Promise(requestAnimationFrame);
        frames.push(performance.now() - before);
        before = performance.now();
    }
    return frames.sort((a, b) => a - b);
}"""


def write() -> None:
    """Write the hour, then steps in real time until stdin ends."""
    from writer import Writer  # type: ignore[import-not-found]

    from probe.base import clock
    from probe.base.settings import Settings
    from probe.server.recordings.registry import Registry
    from probe.server.recordings.sealer import Sealer

    writer = Writer({"job": "hour"})
    sealer = Sealer(Registry(writer.directory), Settings())
    append = writer.recording.rings["python.steps"].append
    began_ns = clock.wall_ns() - STEPS * 10**9 // PER_S
    step = 0
    while step < STEPS or not select_stdin():
        at_ns = began_ns + step * 10**9 // PER_S
        if step >= STEPS and at_ns > clock.wall_ns():
            time.sleep(0.02)
            continue
        append(*writer.step_row(step, at_ns, 2.0 + (step % 997) / 997 + 30 * (step == 17_000)))
        step += 1
        if step <= STEPS and step % PORTION_STEPS == 0:
            sealer.round()
        if step == STEPS:
            print(f"READY {began_ns}", flush=True)
    writer.recording.close()


def select_stdin() -> bool:
    """Whether stdin has ended."""
    import select

    return bool(select.select([sys.stdin], [], [], 0)[0])


def processes_of(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from processes_of(int(child))


def cpu_s(pid: int) -> float:
    """Processor time of a process and its children, ended and live."""
    ticks = 0
    for one in processes_of(pid):
        fields = Path(f"/proc/{one}/stat").read_bytes().rpartition(b")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks * TICK_S


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--seconds", type=int, default=60, help="of each part")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if CHROMIUM is None:
        sys.exit(f"bench/page.py {NEEDED}")
    if arguments.write:
        write()
        return
    from overhead import places

    with places() as (_, environ):
        paths = [str(ROOT), str(ROOT / "cli"), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(paths)
        recorder = subprocess.Popen(
            [sys.executable, __file__, "--write"], env=environ, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert recorder.stdout is not None
            began_ns = int(recorder.stdout.readline().removeprefix("READY "))
            measure(environ, began_ns, arguments.seconds)
        finally:
            recorder.kill()
            recorder.wait()


def measure(environ: dict[str, str], began_ns: int, seconds: int) -> None:
    """Measure the page on the recording of job `hour`."""
    from playwright.sync_api import sync_playwright

    from probe.base.settings import Settings
    from probe.boot.launch import ensure_server

    ensure_server(Path(environ["PROBE_DIR"]), Settings(environ), wait_s=120.0)
    command = [sys.executable, "-m", "probe_cli", "hour", "web"]
    web = subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert web.stdout is not None
        link = web.stdout.readline().strip()
        server = int(json.loads((Path(environ["PROBE_DIR"]) / "server.json").read_text())["pid"])
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(link)
            page.locator("canvas[aria-label^='loss over time: last loss ']").wait_for(timeout=60_000)
            drawn_ms = page.evaluate("performance.now()")
            painted_ms = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
            page.locator(".verdict").first.wait_for(timeout=120_000)
            judged_ms = page.evaluate("performance.now()")
            frames = page.evaluate(FRAMES)
            time.sleep(15)
            late: list[float] = []
            watched = spent((server, web.pid), seconds, lambda: late.append(behind_s(page, began_ns)))
            browser.close()
            time.sleep(15)  # measured after the page: before it, the server was still sealing the hour
            idle = spent((server, web.pid), seconds)
    finally:
        web.send_signal(signal.SIGINT)
        web.wait(30)
    report(painted_ms, drawn_ms, judged_ms, frames, late, idle, watched)


def spent(pids: tuple[int, int], seconds: int, each_second: Any = None) -> list[float]:
    """Share of a core used by each process."""
    before, began = [cpu_s(pid) for pid in pids], time.monotonic()
    while time.monotonic() < began + seconds:
        time.sleep(1)
        if each_second is not None:
            each_second()
    took_s = time.monotonic() - began
    return [(cpu_s(pid) - one) / took_s for pid, one in zip(pids, before, strict=True)]


def behind_s(page: Any, began_ns: int) -> float:
    """Time since the end of the step that the page shows."""
    words = page.locator("#status").inner_text()
    step = int(words.partition("step ")[2].partition(",  ")[0].partition(", the")[0].replace(",", ""))
    return time.time() - (began_ns / 1e9 + step / PER_S)


def report(
    painted_ms: float, drawn_ms: float, judged_ms: float, frames: list[float], late: list[float],
    idle: list[float], watched: list[float],
) -> None:
    """Print the table."""
    rows = {
        "first paint": f"{painted_ms:.0f} ms", "curves of an hour drawn": f"{drawn_ms:.0f} ms",
        "verdicts shown": f"{judged_ms / 1000:.1f} s",
        "frame while the mouse moves, median": f"{median(frames):.0f} ms",
        "frame while the mouse moves, longest": f"{frames[-1]:.0f} ms",
        "behind the job, median": f"{median(late):.1f} s", "behind the job, most": f"{max(late):.1f} s",
    }
    for place, name in enumerate(("server and its query workers", "`probe web`")):
        rows[f"{name}, no page open"] = f"{100 * idle[place]:.2f} % of a core"
        rows[f"{name}, page open"] = f"{100 * watched[place]:.2f} % of a core"
    print("| what | measured |\n|---|---|")
    for what, measured in rows.items():
        print(f"| {what} | {measured} |")


if __name__ == "__main__":
    main()
