"""A hundred snippets of ten clients at once, through the server: none lost, none twice, none overtaken."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from harness import Job, Place, run_probe
from probe.base import wire
from probe.recording import places

CLIENTS = 10
EACH = 10


def send(place: Place, pid: int, code: str) -> socket.socket:
    """Hand one snippet to the server; the answer is read later."""
    connection = wire.connect_unix(places.server_socket(place.directory), 60.0)
    body = {"endpoint": str(pid), "code": code, "wait_s": 60.0, "timeout_s": 30.0}
    connection.sendall(wire.request_bytes("POST", "/v1/eval", body))
    return connection


def answer(connection: socket.socket) -> dict[str, Any]:
    parts = []
    with connection:
        while part := connection.recv(1 << 16):
            parts.append(part)
    found: dict[str, Any] = wire.decode_answer(b"".join(parts))
    return found


def test_a_hundred_snippets_of_ten_clients_run_once_each_and_in_order(
    place: Place, start: Callable[..., Job]
) -> None:
    job = start("gpt_with_schedule", "--forever", PROBE_NAME="gpt")
    assert run_probe(place, "ps").returncode == 0, "the server is there"

    def queue(client: int) -> list[socket.socket]:
        """Each third only reads the client's marks; the others leave one."""
        return [
            send(place, job.pid, f"[number for who, number in notes if who == {client}]" if number % 3 == 2
                 else f"notes.append(({client}, {number}))")
            for number in range(EACH)
        ]

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(CLIENTS) as pool:
        queued = [[stack.enter_context(one) for one in of_one] for of_one in pool.map(queue, range(CLIENTS))]
        answers = [[answer(one) for one in of_one] for of_one in queued]

    for of_one in answers:
        for number, found in enumerate(of_one):
            assert found["error"] is None, found
            if number % 3 == 2:
                before = [mark for mark in range(number) if mark % 3 != 2]
                assert (found["class"], found["value"]) == ("reading", str(before))
            else:
                assert (found["class"], found["where"]) == ("changing", "step boundary")
    notes = json.loads(run_probe(place, "eval", "import json; print(json.dumps(notes))").stdout)
    marks = [number for number in range(EACH) if number % 3 != 2]
    assert len(notes) == CLIENTS * len(marks)
    for client in range(CLIENTS):
        assert [number for who, number in notes if who == client] == marks
    done = run_probe(
        place, "query", "--format", "json",
        "SELECT count(*), count(DISTINCT eval_id) FROM probe.evals"
        " WHERE outcome = 'ok' AND code LIKE 'notes.append%'",
    )
    assert json.loads(done.stdout)["rows"] == [[len(notes), len(notes)]], "each is on record once"
