"""An S3 server for tests (moto's), and a proxy before it that fails as networks and object stores do."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

from harness import PATIENCE_S

SERVER = """
import logging, sys, threading
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
BUCKET = "archive"


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """The port of an S3 server with an empty bucket, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        make = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(make, timeout=PATIENCE_S).close()
        yield port
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


class Proxy:
    """Forwards connections to a port; `faults` says how many of a hundred requests fail, `down` cuts all."""

    def __init__(self, target: int, address: str = "127.0.0.1") -> None:
        self.target = target
        self.serving: list[str] = []
        """Addresses whose requests are being answered."""
        self.faults, self.latency_s, self.down = 0, 0.0, False
        self.failed = {"503": 0, "cut before": 0, "cut after": 0}
        self._random = random.Random(11)
        self.address = address
        self._listener = socket.create_server((address, 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One request for each connection, so that each has a chance to fail."""
        with client, contextlib.suppress(OSError):
            client.settimeout(PATIENCE_S)
            request = _read_message(client)
            if not request or self.down:
                return
            caller = client.getpeername()[0]
            self.serving.append(caller)
            time.sleep(self.latency_s)
            self.serving.remove(caller)
            fault = ""
            if self._random.random() * 100 < self.faults:
                fault = self._random.choice(list(self.failed))
                self.failed[fault] += 1
            if fault == "503":
                client.sendall(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            if fault == "cut before":
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                server.settimeout(PATIENCE_S)
                server.sendall(re.sub(rb"\r\n(?i:connection): [^\r]*", b"", request, count=1).replace(
                    b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
                answer = b""
                while block := server.recv(1 << 16):
                    answer += block
            if fault == "cut after":  # it was done, and nobody is told
                client.sendall(answer[: self._random.randrange(len(answer))])
                return
            client.sendall(answer.replace(b"\r\n", b"\r\nx-proxy: 1\r\n", 1))


def _read_message(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        block = client.recv(1 << 16)
        if not block:
            return b""
        data += block
    head = data.partition(b"\r\n\r\n")[0]
    match = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    whole = len(head) + 4 + (int(match[1]) if match else 0)
    while len(data) < whole:
        block = client.recv(1 << 16)
        if not block:
            return b""
        data += block
    return data
