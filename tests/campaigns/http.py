"""Fuzzes HTTP: requests generated from the OpenAPI schema in every role, and random bytes for the reader.

Part `schema`: schemathesis generates valid and invalid requests for each route and role, against a real
server of a real job. Each answer must have a documented status and shape and must not be an internal error;
without a token nothing is disclosed. Part `parser`: hypothesis generates heads, most with one fault. The
agent's reader must accept exactly what a second, simple implementation of RFC 9112 accepts, in whatever
pieces they arrive, and read nothing beyond the body; the server must agree.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import closing
from typing import Any
from urllib.request import Request, urlopen

import hypothesis
from hypothesis import strategies as st

from campaigns import http_heads
from campaigns.campaign import Campaign
from harness import DEPLOYED, PATIENCE_S, ROOT, Job, Place, end_process
from probe.base import wire
from probe.base.errors import BadRequest, ProbeError, TooLarge
from server.beside import until

ROUNDS = 76
"""Each route in each role once, and a quarter of the rounds for the reader."""
EXAMPLES = 20
"""Requests per round of part `schema`: one role, one route."""
HEADS = 300
"""Heads per round of part `parser`."""
ASKED_OF_THE_SERVER = 25
"""Number of these that are also sent to the server."""
CHECKS = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
PROGRAM = "holds_secrets"
"""A job that sleeps between its steps and leaves the machine to the campaign."""
ROLES = ("viewer", "operator", "nobody")
NOT_TRIED = frozenset({"/v1/detach", "/metrics"})
"""/v1/detach would stop the agent; /metrics is text, which has no schema."""
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals with which no action may end a job."""
EXPLAINED = frozenset({503, 504})
"""Statuses with a stated reason: a query that ended its process, an agent that does not answer."""


class Target:
    """A job with its agent, and a server with TCP."""

    def __init__(self, faulty: bool) -> None:
        self.place = Place()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        settings = {"PROBE_LISTEN": f"127.0.0.1:{self.port}", "PROBE_ALLOW_EVAL": "1"}
        self.log = self.place.directory / "server.log"
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "campaigns.http_server", *(["faulty"] if faulty else [])],
                env=self.place.environ(PYTHONPATH=paths, **settings),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        until(lambda: self.place.server_pid() == self.server.pid, "the server listens")
        self.url = f"http://127.0.0.1:{self.port}"
        names = {"viewer": "token.viewer", "operator": "token"}
        self.headers: dict[str, dict[str, str]] = {"nobody": {}}
        for role, name in names.items():
            token = (self.place.directory / name).read_text().strip()
            self.headers[role] = {"Authorization": f"Bearer {token}"}
        self.job = self._job()

    def _job(self) -> Job:
        environ = self.place.watched(**DEPLOYED)
        job = Job(PROGRAM, environ=environ, folder=self.place.directory)
        job.wait_for("READY")
        return job

    def see_to_the_job(self) -> None:
        """Restart the job if an action has ended it."""
        if self.job.status() is not None:
            self.job.kill()
            self.job = self._job()

    def endpoints(self) -> list[str]:
        """Endpoints for the requests."""
        named = [PROGRAM, f"{PROGRAM}/0", f"{PROGRAM}/7", "nobody"]
        return [str(self.job.pid), *named, "", "/etc", "1"]

    def close(self) -> None:
        """End everything and remove it."""
        self.job.kill()
        end_process(self.server.pid)
        self.server.wait(PATIENCE_S)
        self.place.remove()


def main() -> int:
    """Run the campaign."""
    campaign = Campaign("http", __doc__, rounds=ROUNDS)
    warnings.simplefilter("ignore")
    target = Target(faulty=campaign.control and campaign.part != "parser")
    try:
        schema = _Schema(campaign, target) if campaign.part != "parser" else None
        for number in campaign:
            target.see_to_the_job()
            if schema is not None and (campaign.part == "schema" or number % 4 < 3):
                schema.round(number)
            else:
                _parser_round(campaign, target, number)
            status = target.job.status()
            if status is not None and -status in CRASHES:
                campaign.found(number, f"the job died: {signal.Signals(-status).name}, {target.job.errors()}")
            if target.server.poll() is not None:
                campaign.found(number, f"the server ended ({target.server.returncode})")
                break
        log = target.log.read_text()
        if "Traceback" in log:
            campaign.found(campaign.rounds - 1, f"a traceback in the server's log: {log[-1500:]}")
    finally:
        target.close()
    return campaign.end()


def _repeatable(campaign: Campaign, number: int, examples: int) -> Any:
    """Hypothesis with this round's seed, so that findings are reproducible."""

    def decorate(test: Any) -> Any:
        settings = hypothesis.settings(
            max_examples=examples, deadline=None, database=None, print_blob=False,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        return hypothesis.seed(campaign.dice(number).randrange(10**9))(settings(test))

    return decorate


# Requests from the description ----------------------------------------------------


class _Schema:
    """Requests generated by schemathesis from `/openapi.json`."""

    def __init__(self, campaign: Campaign, target: Target) -> None:
        try:
            import schemathesis
        except ImportError:
            raise SystemExit("schemathesis is missing: pip install '.[campaign]' in .venv") from None
        from schemathesis import checks

        self._campaign, self._target = campaign, target
        described = Request(f"{target.url}/openapi.json", headers=target.headers["viewer"])
        with urlopen(described, timeout=PATIENCE_S) as answer:
            schema = schemathesis.openapi.from_dict(json.load(answer))
        schema.config.update(base_url=target.url)
        self._schema = schema
        checks.load_all_checks()
        self._checks = checks.CHECKS.get_by_names(list(CHECKS))
        found = [one.ok() for one in schema.get_all_operations()]
        self._operations = [one for one in found if one.path not in NOT_TRIED]
        print(f"{len(self._operations)} routes", flush=True)

    def round(self, number: int) -> None:
        """Test one route in one role."""
        own = number if self._campaign.part == "schema" else number // 4 * 3 + number % 4
        operation = self._operations[own // len(ROLES) % len(self._operations)]
        role = ROLES[own % len(ROLES)]
        told: list[str] = []
        both = st.one_of(operation.as_strategy(), operation.as_strategy(), self._wrong(operation))

        @_repeatable(self._campaign, number, EXAMPLES)
        @hypothesis.given(both, st.data())
        def ask(case: Any, data: st.DataObject) -> None:
            self._aim(case, data)
            told[:] = self._judged(case, role)
            assert not told

        try:
            ask()
        except AssertionError:
            for what in told:
                self._campaign.found(number, f"{role}: {what}")

    @staticmethod
    def _wrong(operation: Any) -> Any:
        from schemathesis import GenerationMode

        wrong = operation.body or operation.query  # a route without parameters has no invalid requests
        return operation.as_strategy(generation_mode=GenerationMode.NEGATIVE) if wrong else st.nothing()

    def _aim(self, case: Any, data: st.DataObject) -> None:
        """Direct most requests at the existing job."""
        place = case.body if isinstance(case.body, dict) else case.query
        if isinstance(place, dict) and "endpoint" in place and data.draw(st.integers(0, 3)):
            place["endpoint"] = data.draw(st.sampled_from(self._target.endpoints()))

    def _judged(self, case: Any, role: str) -> list[str]:
        """Send the request and return what is wrong with the answer."""
        from requests import RequestException
        from schemathesis.core.failures import Failure, FailureGroup

        self._campaign.count(f"requests as {role}")
        case.headers = dict(self._target.headers[role])
        asked = f"query={dict(case.query or {})!r:.300} body={case.body!r:.500}"
        shown = f"{case.method} {case.formatted_path} {asked}"
        try:
            answer = case.call(timeout=PATIENCE_S)
        except (RequestException, ValueError, UnicodeError) as error:
            # requests cannot send everything; part `parser` tests odd bytes
            self._campaign.count(f"not sent: {type(error).__name__}")
            return []
        self._campaign.count(f"answered {answer.status_code}")
        wrong = []
        if role == "nobody" and answer.status_code not in (400, 401, 403, 413, 429):
            wrong.append(f"{answer.status_code} without a token: {shown}")
        if answer.status_code >= 500 and answer.status_code not in EXPLAINED:
            text = answer.content.decode(errors="replace")
            if '"code":"error"' in text.replace(" ", "") or '"code"' not in text:
                wrong.append(f"{answer.status_code} {text[:300]}: {shown}")
        try:
            case.validate_response(answer, checks=self._checks)
        except (FailureGroup, Failure) as error:
            many = error.exceptions if isinstance(error, FailureGroup) else [error]
            wrong += [f"{answer.status_code} {str(one)[:500]}: {shown}" for one in many]
        return wrong


# Any bytes --------------------------------------------------------------------------


def _parser_round(campaign: Campaign, target: Target, number: int) -> None:
    told: list[str] = []
    asked = [0]

    @_repeatable(campaign, number, HEADS)
    @hypothesis.given(http_heads.requests(), st.data())
    def read(request: http_heads.Written, data: st.DataObject) -> None:
        campaign.count("heads")
        right = http_heads.verdict(request.raw)
        campaign.count(f"heads to be {right}")
        got = _agents(_lenient(request.raw) if campaign.control else request.raw, request, data)
        shown = f"{right}: {request.raw!r:.600}"
        must = _REFUSALS.get(right, right)
        told[:] = [] if got == must else [f"the agent's reader: {got}, must be {shown}"]
        if not told and asked[0] < ASKED_OF_THE_SERVER and right != "incomplete":
            asked[0] += 1
            campaign.count("heads asked of the server")
            status = _servers(target, request.raw)
            if (status in (400, 413)) != (right in ("refused", "too large")):
                told.append(f"the server answers {status} to what is {shown}")
        assert not told

    try:
        read()
    except AssertionError:
        for what in told:
            campaign.found(number, what)


_REFUSALS = {"too large": "refused", "not JSON": "refused"}
"""These verdicts count as refused, because a request may have two faults."""


def _lenient(raw: bytes) -> bytes:
    """The fault of the control: bare LF line ends are repaired before reading."""
    return raw.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _agents(raw: bytes, request: http_heads.Written, data: st.DataObject) -> str:
    """The verdict of `wire.read_request` on the bytes, sent in pieces."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=3)))
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        ours = _Pieces(ours, raw, [*cuts, len(raw)])
        try:
            found = wire.read_request(ours, PATIENCE_S)
        except TooLarge:
            return "refused"
        except BadRequest as error:
            return "incomplete" if "cut short" in error.message else "refused"
        except ProbeError as error:
            return f"refused oddly ({error.code})"
    if found.body is not None and request.body is not None and found.body != request.body:
        return f"taken with another body ({found.body!r})"
    return "taken"


class _Pieces:
    """A connection that delivers its bytes in these pieces and then ends; never more than requested."""

    def __init__(self, connection: socket.socket, raw: bytes, ends: list[int]) -> None:
        starts = [0, *ends]
        self._pieces = [raw[start:end] for start, end in zip(starts, ends, strict=False) if end > start]
        self.settimeout = connection.settimeout

    def recv(self, size: int) -> bytes:
        """The next piece."""
        return self._pieces.pop(0)[:size] if self._pieces else b""


def _servers(target: Target, raw: bytes) -> int:
    """The server's status for a head without a token: 401 or 403 if it accepted the head."""
    with socket.create_connection(("127.0.0.1", target.port), PATIENCE_S) as connection:
        try:
            connection.sendall(raw)
            answer = connection.recv(1 << 16)
        except ConnectionError:
            return 400
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 2 else 400


if __name__ == "__main__":
    sys.exit(main())
