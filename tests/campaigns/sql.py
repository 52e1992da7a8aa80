"""Fuzzes SQL: statements from a grammar over all of DuckDB, against a real server with planted secrets.

After each statement that ended oddly, and after every fourth, the next query must be right, the server the
same process, the planted files unchanged, and no answer may contain their contents. The control weakens the
sandbox of the query workers.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import time
from typing import Any

from campaigns.campaign import Campaign
from campaigns.sql_grammar import Grammar, Places
from campaigns.sql_loosened import SECRET
from harness import PATIENCE_S, ROOT, Place, end_process
from probe.base import wire
from probe.base.errors import AgentUnreachable, ProbeError
from probe.recording.places import server_socket
from server.beside import Writer, until

ROUNDS = 3000
DEADLINE_S = 0.5
NEXT_S = 5.0
"""Deadline of the query with a known result. Queries run at low priority: half a second may not suffice."""
SLACK_S = 8.0
"""A worker is killed a second after the deadline and a new one starts, on a possibly busy machine."""
CHECKED_EVERY = 4
STEPS = 500
NEXT = "SELECT count(*), max(step), sum(loss) > 0 FROM python.steps"
RIGHT = [[STEPS, STEPS - 1, True]]


class Target:
    """A recorded process, its server, and the planted files."""

    def __init__(self, loosened: bool) -> None:
        self.place = Place()
        self.planted = self.place.directory / "planted"
        self.planted.mkdir()
        word = secrets.token_hex(16)
        self.words = [f"kept-{word}-{number}" for number in range(4)]
        self.writer = Writer(self.place, {})
        self.writer.tell(f"write {STEPS}")
        files = [self.planted / "secret.csv", self.place.directory / "secret.json"]
        files.append(self.writer.folder / "notes.txt")
        for path, text in zip(files, self.words, strict=False):
            path.write_text(text + "\n")
        self.out = str(self.planted / "out")
        program = "campaigns.sql_loosened" if loosened else "probe.server"
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        self.log = self.place.directory / "server.log"
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", program],
                env=self.place.environ(
                    PYTHONPATH=paths, PROBE_LISTEN="127.0.0.1:0", PROBE_MONITOR="0", **{SECRET: self.words[3]}
                ),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        until(lambda: self.place.server_pid() == self.server.pid, "the server listens")
        tokens = [self.place.directory / name for name in ("token", "token.viewer")]
        self.words += [path.read_text().strip() for path in tokens]
        self.files = [*files, *tokens]
        self.forbidden = [form for word in self.words for form in _forms(word)]
        self.before = self.state()

    def state(self) -> dict[str, Any]:
        """The state that no statement may change."""
        files = [*self.files, self.writer.folder / "meta.json"]
        found: dict[str, Any] = {str(path): path.read_bytes() for path in files}
        found["planted"] = sorted(os.listdir(self.planted))
        names = os.listdir(self.place.directory)
        found["directory"] = sorted(name for name in names if not name.startswith("."))
        return found

    def ask(self, sql: str, timeout_s: float = DEADLINE_S) -> Any:
        """Run a query; returns the answer or the error."""
        body = {"endpoint": str(self.writer.pid), "sql": sql, "timeout_s": timeout_s}
        socket = server_socket(self.place.directory)
        try:
            return wire.call(socket, "POST", "/v1/query", body, timeout_s=PATIENCE_S)
        except ProbeError as error:
            return error

    def close(self) -> None:
        """End everything and remove it."""
        self.writer.kill()
        end_process(self.server.pid)
        self.server.wait(PATIENCE_S)
        self.place.remove()


def _forms(word: str) -> list[str]:
    """The encodings in which SQL could return a word."""
    data = word.encode()
    whole = base64.b64encode(data).decode()
    escaped = "".join(rf"\x{one:02x}" for one in data)
    return [word.lower(), word[::-1].lower(), data.hex(), whole[: len(whole) - 4].lower(), escaped]


def main() -> int:
    """Run the campaign."""
    campaign = Campaign("sql", __doc__, rounds=ROUNDS)
    target = Target(loosened=campaign.control)
    try:
        grammar = Grammar(Places([str(path) for path in target.files], target.out))
        print(
            f"{len(grammar.of_tables)} table functions, {len(grammar.pragmas)} pragmas, "
            f"{len(grammar.settings)} settings, {len(grammar.values)} scalar functions, "
            f"{len(grammar.sums)} aggregates (overloads counted)", flush=True,
        )
        if target.ask(NEXT)["rows"] != RIGHT:
            raise SystemExit("the very first query was wrong")
        for number in campaign:
            kind, sql = grammar.statement(campaign.dice(number), number)
            campaign.count(f"statements: {kind}")
            _round(campaign, target, number, kind, sql)
        if target.writer.process.poll() is not None or target.writer.steps() != STEPS:
            campaign.found(campaign.rounds - 1, "the recorded process ended, or took steps")
        log = target.log.read_text()
        if "Traceback" in log:
            campaign.found(campaign.rounds - 1, f"a traceback in the server's log: {log[-2000:]}")
    finally:
        target.close()
    return campaign.end()


def _round(campaign: Campaign, target: Target, number: int, kind: str, sql: str) -> None:
    shown = json.dumps(sql[:600])
    late = 0.0
    for _ in range(2):  # only a second late answer counts: a busy machine may be late once
        began = time.monotonic()
        answer = target.ask(sql)
        late = time.monotonic() - began
        if late < DEADLINE_S + SLACK_S:
            break
        campaign.count("late once")
    campaign.measure("answer, s", late)
    if late >= DEADLINE_S + SLACK_S:
        campaign.found(number, f"answered after {late:.1f} s: {shown}")
    said = answer.as_dict() if isinstance(answer, ProbeError) else answer
    text, asked = json.dumps(said, ensure_ascii=False).lower(), sql.lower()
    for word in target.forbidden:
        if word in text and word not in asked:
            campaign.found(number, f"an answer holds what is planted ({word}): {shown}")
    if isinstance(answer, ProbeError):
        campaign.count(f"answered: {answer.code}")
        if answer.status == 500 or isinstance(answer, AgentUnreachable) or "Traceback" in answer.message:
            campaign.found(number, f"{answer.status} {answer.message[:300]}: {shown}")
    else:
        campaign.count("answered: rows")
        campaign.count(f"with rows: {kind}")
    odd = isinstance(answer, ProbeError) and answer.code != "sql_invalid"
    if odd or number % CHECKED_EVERY == 0 or campaign.control:
        _next(campaign, target, number, shown)
    if target.server.poll() is not None:
        campaign.found(number, f"the server ended ({target.server.returncode}): {shown}")
        raise SystemExit(1)
    now = target.state()
    if now != target.before:
        changed = [name for name in now if now[name] != target.before.get(name)]
        campaign.found(number, f"changed on disk ({changed}): {shown}")
        target.before = now


def _next(campaign: Campaign, target: Target, number: int, shown: str) -> None:
    """Check that the next query is right; retries once if it was late on a busy machine."""
    began = time.monotonic()
    after = target.ask(NEXT, NEXT_S)
    campaign.measure("the next query, s", time.monotonic() - began)
    if isinstance(after, ProbeError) and after.code in ("query_timeout", "too_many"):
        campaign.count("the next query was late once")
        after = target.ask(NEXT, NEXT_S)
    if isinstance(after, ProbeError) or after["rows"] != RIGHT:
        campaign.found(number, f"the next query was wrong ({after}): {shown}")


if __name__ == "__main__":
    sys.exit(main())
