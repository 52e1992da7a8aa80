"""Alerts: one message per incident and destination, retried until it is delivered or given up.

Runs on the server's event loop and never blocks it: each delivery is a child process with a deadline, so
neither the import of Apprise nor a mail server that hangs affects anything else. The outcome of each message
is a row of probe.alerts. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probe.base import clock
from probe.base.errors import DestinationInvalid, PackageMissing, TooMany
from probe.base.settings import Settings
from probe.boot import launch
from probe.diagnose.incidents import RESOLVED
from probe.diagnose.states import ALARM, INFO, NOTICE, OK
from probe.server.alerts import alert_sender
from probe.server.alerts.destinations import MOST_DESTINATIONS, Destination, Store, from_setting
from probe.server.recordings import server_journal
from probe.server.runtime import supervision

_log = logging.getLogger("probe.alerts")
PAUSES_S = (1.0, 5.0, 30.0, 60.0, 120.0, 300.0)
"""Pauses between attempts; after the last one the message is given up: about nine minutes, plus the time of
the attempts."""
TRY_S = 30.0
"""Limit of one delivery."""
AT_ONCE = 4
WAITING = 256
"""Messages in progress; further ones are dropped, with a row."""
PER_RUN = 20
PER_RUN_S = 600.0
"""Limit of messages about one run within this time: a storm of incidents must not become a storm of mail."""
_KINDS = {ALARM: "failure", NOTICE: "warning", INFO: "info", OK: "success"}
MISSING = PackageMissing(
    "alerts are delivered by Apprise, which is not installed",
    hint="Run pip install 'torch-probe[alerts]' with the Python that runs the server (`probe doctor`).",
)


class Message(NamedTuple):
    """A message. `folder`: the recording that gets the row; None for a test."""

    incident: str
    recipe: str
    severity: str
    event: str
    title: str
    body: str
    run: str
    folder: Path | None


class Delivery(NamedTuple):
    """The outcome of one message to one destination."""

    destination: str
    outcome: str
    attempts: int
    error: str | None


class Alerts:
    """The destinations of this server, and the messages in progress."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._given = from_setting(settings.notify)
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._sent: dict[str, deque[float]] = {}
        self.outcomes: Counter[str] = Counter()
        """Messages delivered, failed and dropped since the server started."""

    @property
    def destinations(self) -> list[Destination]:
        """Those in PROBE_NOTIFY, then those that were added."""
        return [*self._given, *self._store.config.destinations]

    @property
    def given(self) -> int:
        """How many of them come from PROBE_NOTIFY, and cannot be removed here."""
        return len(self._given)

    @property
    def busy(self) -> bool:
        """Whether messages are in progress."""
        return bool(self._tasks)

    # Changing the destinations --------------------------------------------------

    async def add(self, texts: Sequence[str]) -> None:
        """Add destinations that Apprise can deliver to. Raises `DestinationInvalid`, `PackageMissing`."""
        wanted = [Destination.parse(text) for text in texts]
        known = self._store.config.destinations
        new = [one for one in dict.fromkeys(wanted) if one not in known]
        if len(self.destinations) + len(new) > MOST_DESTINATIONS:
            hint = "Remove one: `probe monitor --remove 1`."
            raise TooMany(f"too many destinations (limit {MOST_DESTINATIONS})", hint=hint)
        answer = await _run_sender({"check": [one.url for one in wanted]}, TRY_S)
        if answer.get("error") == alert_sender.MISSING:
            raise MISSING
        for number in answer.get("bad") or ():
            raise DestinationInvalid(f"Apprise cannot deliver to {wanted[number].shown}")
        if "error" in answer:
            raise DestinationInvalid(f"the destinations could not be checked: {answer['error']}")
        kept = {one.url: one for one in [*known, *new]}  # the same URL with another severity: the newer one
        self._store.config.destinations = list(kept.values())
        await asyncio.to_thread(self._store.write)

    async def remove(self, names: Sequence[str]) -> None:
        """Remove destinations, by URL or number in the list (from 1). Raises `DestinationInvalid`."""
        every = self.destinations
        gone = set()
        for name in names:
            place = int(name) - 1 if name.isascii() and name.isdigit() else next(
                (at for at, one in enumerate(every) if one.url == name.strip()), -1
            )
            if not 0 <= place < len(every):
                raise DestinationInvalid("no such destination", hint="`probe monitor` lists them.")
            if place < self.given:
                raise DestinationInvalid(
                    f"{every[place].shown} comes from PROBE_NOTIFY",
                    hint="Change PROBE_NOTIFY and restart the server.",
                )
            gone.add(place)
        self._store.config.destinations = [
            one for at, one in enumerate(every) if at >= self.given and at not in gone
        ]
        await asyncio.to_thread(self._store.write)

    # Sending ----------------------------------------------------------------------

    def send(self, message: Message, known: frozenset[str] = frozenset()) -> None:
        """Send a message to all destinations that accept its severity, except those in `known` (as shown)."""
        severity = message.severity
        for destination in self.destinations:
            if not destination.wants(severity) or destination.shown in known:
                continue
            if len(self._tasks) >= WAITING or self._is_storm(message):
                self._note(message, Delivery(destination.shown, "dropped", 0, "too many messages at once"))
                continue
            self._spawn(self._deliver(message, destination))

    async def test(self, message: Message) -> list[Delivery]:
        """Send it to every destination, once. Raises `PackageMissing`."""
        found = await asyncio.gather(*(self._try(message, one) for one in self.destinations))
        if any(error == alert_sender.MISSING for error in found):
            raise MISSING
        return [
            Delivery(one.shown, "failed" if error else "delivered", 1, error)
            for one, error in zip(self.destinations, found, strict=True)
        ]

    def _is_storm(self, message: Message) -> bool:
        """Whether a run has used up its messages; those about resolved incidents are few and not counted."""
        if message.event == RESOLVED:
            return False
        sent = self._sent.setdefault(message.run, deque())
        now_s = time.monotonic()
        while sent and now_s - sent[0] > PER_RUN_S:
            sent.popleft()
        if len(sent) >= PER_RUN * len(self.destinations):
            return True
        sent.append(now_s)
        return False

    async def _deliver(self, message: Message, destination: Destination) -> None:
        error: str | None = None
        for attempt, pause_s in enumerate((*PAUSES_S, None), 1):
            error = await self._try(message, destination)
            if error is None:
                self._note(message, Delivery(destination.shown, "delivered", attempt, None))
                return
            _log.warning("%s: try %d: %s", destination.shown, attempt, error)
            if pause_s is None or error == alert_sender.MISSING:
                break
            await asyncio.sleep(pause_s)
        error = MISSING.message if error == alert_sender.MISSING else error
        self._note(message, Delivery(destination.shown, "failed", attempt, error))

    async def _try(self, message: Message, destination: Destination) -> str | None:
        """None when it was delivered, else why not."""
        request = {
            "url": destination.url, "title": message.title, "body": message.body,
            "kind": "success" if message.event == RESOLVED else _KINDS[message.severity],
        }
        async with self._slots:
            answer = await _run_sender(request, TRY_S)
        return None if answer.get("delivered") is True else str(answer.get("error"))

    def _note(self, message: Message, delivery: Delivery) -> None:
        self.outcomes[delivery.outcome] += 1
        if message.folder is None:
            return
        row = {
            "t_ns": clock.wall_ns(), "incident": message.incident, "recipe": message.recipe,
            "severity": message.severity, "event": message.event, **delivery._asdict(),
        }
        server_journal.note_rows(message.folder, "probe.alerts", [row])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel messages in progress: the next server sends them again."""
        await supervision.end_tasks(self._tasks)


async def _run_sender(request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The answer of the delivering process; never raises."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "probe.server.alerts.alert_sender", env=_environment(), cwd="/",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return {"error": f"the delivery process could not be started: {error.strerror}"}
    try:
        out, _ = await asyncio.wait_for(process.communicate(json.dumps(request).encode()), timeout_s)
        answer = json.loads(out)
        return answer if isinstance(answer, dict) else {"error": "the delivery process failed"}
    except asyncio.TimeoutError:
        return {"error": f"it took longer than {timeout_s:g} s"}
    except (ValueError, OSError):
        return {"error": "the delivery process failed"}
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())


def _environment() -> dict[str, str]:
    """The delivering process gets none of the server's settings, which may contain other destinations."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    paths = [*launch.import_paths(("probe",)), *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(paths)}
