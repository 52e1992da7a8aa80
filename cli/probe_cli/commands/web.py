"""`probe JOB web`: serve the live page of a job to a browser.

The command serves the page on the loopback interface, and forwards its requests to the server over the unix
socket, or over TCP with a token, like every command. Ctrl-C ends the page and invalidates its links.
"""

from __future__ import annotations

import gc
import io
import os
import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from probe.base.errors import ServerUnavailable
from probe.base.wire import ROLE_HEADER
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session

if TYPE_CHECKING:
    from probe.base.wire import Reply
    from probe.page.gateway import Asked

EXAMPLES = (
    "probe JOB web",
    "probe JOB web --look-only --port 8123",
)
_LONGEST_REQUEST_S = 4000.0
"""Longer than an action may wait for the end of a step; the server has its own limits."""


def command(
    session: Session,
    port: Annotated[
        int | None, Option("--port", metavar="N", min=1, help="Port on this machine (default: any free one).")
    ] = None,
    look_only: Annotated[
        bool, Option("--look-only", help="Make the page read-only.")
    ] = False,
) -> None:
    """Show a live page of a job in the browser.

    Prints a link that works once, and serves the page until Ctrl-C. Enter prints another link.
    """
    from probe.page.gateway import Gateway
    from probe.page.link_keys import LinkKeys
    from probe.page.page_serving import HOST, listener, serve

    gc.enable()  # `main` disables it for commands that end at once
    found = session.request("GET", "/v1/ranks", {"endpoint": session.address.endpoint})
    endpoint = session.address.endpoint or str(found["ranks"][0]["pid"])
    viewer = look_only or session.request("GET", "/v1/health")["role"] == "viewer"
    keys = LinkKeys()
    with listener(0 if port is None else port) as listening:
        origin = f"http://{HOST}:{listening.getsockname()[1]}"

        def show_link() -> None:
            session.out.line(f"{origin}/#/run?job={quote(endpoint, safe='')}&key={keys.new_link()}")
            session.out.stream.flush()

        def ready() -> None:
            show_link()
            _explain(session, origin)
            threading.Thread(target=_more_links, args=(session, show_link), daemon=True, name="links").start()

        sampled = endpoint, lambda seconds: _sampled(session, endpoint, seconds)
        serve(Gateway(_forward(session, look_only), keys, sampled, viewer=viewer), listening, ready)
    session.note("the page has ended")


def _explain(session: Session, origin: str) -> None:
    """Explain on stderr how to use the link."""
    port = origin.rpartition(":")[2]
    session.note("open this link in a browser; it works once, Enter prints another, Ctrl-C ends the page")
    if "SSH_CONNECTION" in session.environ:
        tunnel = f"ssh -L {port}:127.0.0.1:{port} {os.uname().nodename}"
        session.note(f"from your own machine: {tunnel}, then the same link")


def _more_links(session: Session, show_link: Callable[[], None]) -> None:
    """Print a link for each line from the terminal."""
    if session.input.isatty():
        for _ in session.input:
            show_link()


def _sampled(session: Session, endpoint: str, seconds: int) -> bytes:
    """Run `probe ENDPOINT flamegraph` and return its speedscope file."""
    with tempfile.TemporaryDirectory(prefix="probe-web-") as folder:
        path = os.path.join(folder, "samples.json")
        words = ["-t", session.named or endpoint, "flamegraph", "--seconds", str(seconds), "-o", path]
        session.dispatch(words, session.beside(io.StringIO()))
        with open(path, "rb") as file:
            return file.read()


def _forward(session: Session, look_only: bool) -> Callable[[Asked], Reply]:
    """Forward requests to the session's server, from any thread; restarts a local server that has ended."""
    from probe.client.transport import open_transport

    more = {ROLE_HEADER: "viewer"} if look_only else {}
    opened = [open_transport(session.address, session.settings)]

    def forward(asked: Asked) -> Reply:
        headers = {**more, "Accept": asked.accept or "*/*", "Content-Type": "application/json"}
        request = (asked.method, asked.target, asked.body, headers, _LONGEST_REQUEST_S)
        try:
            return opened[0].forward(*request)
        except ServerUnavailable:
            if asked.method != "GET" and not asked.target.startswith("/v1/query"):
                raise  # the server may have carried it out
            opened[0] = open_transport(session.address, session.settings)
            return opened[0].forward(*request)

    return forward
