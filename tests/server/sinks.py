"""Where alerts arrive in tests: a webhook and a mail server, of this process, that keep what they get."""

from __future__ import annotations

import contextlib
import email
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from email.header import decode_header, make_header
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Taken(NamedTuple):
    """One message: when it came, its title, its text."""

    at: float
    title: str
    text: str


class Sink:
    """What came; `refuse` is how many more are not taken."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.refuse = 0
        self.url = ""


@contextlib.contextmanager
def _serving(server: socketserver.TCPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def webhook() -> Iterator[Sink]:
    """An HTTP server that takes JSON: `sink.url` is what Apprise calls it."""
    sink = Sink()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            refused, sink.refuse = sink.refuse > 0, max(0, sink.refuse - 1)
            if not refused:
                sink.taken.append(Taken(time.monotonic(), body["title"], body["message"]))
            self.send_response(503 if refused else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        sink.url = f"json://127.0.0.1:{port}/secret-path"
        yield sink


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextlib.contextmanager
def mail_server() -> Iterator[Sink]:
    """An SMTP server that takes everything."""
    sink = Sink()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            self.say("220 sink")
            while line := self.rfile.readline():
                word = line.split()[0].upper() if line.split() else b""
                if word == b"DATA":
                    self.say("354 go on")
                    self._take()
                self.say("221 bye" if word == b"QUIT" else "250 sink")
                if word == b"QUIT":
                    return

        def _take(self) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            message = email.message_from_bytes(b"".join(lines))
            parts = [part for part in message.walk() if part.get_content_type() == "text/plain"]
            text = b"".join(part.get_payload(decode=True) for part in parts).decode()
            title = str(make_header(decode_header(str(message["Subject"]))))
            sink.taken.append(Taken(time.monotonic(), title, text))

    with _serving(_Server(("127.0.0.1", 0), Handler)) as port:
        sink.url = f"mailto://127.0.0.1:{port}?from=probe@example.org&to=somebody@example.org&mode=insecure"
        yield sink


@contextlib.contextmanager
def deaf_server() -> Iterator[str]:
    """A mail server that accepts connections and never says a word."""
    done = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            done.wait()

    with _serving(_Server(("127.0.0.1", 0), Handler)) as port:
        yield f"mailto://127.0.0.1:{port}?from=probe@example.org&to=somebody@example.org&mode=insecure"
        done.set()
