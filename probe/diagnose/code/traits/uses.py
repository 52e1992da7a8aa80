"""What is made from a value. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Value


def made_from(computation: Computation, value: Value, through: frozenset[str] | None, most: int = 400) -> Iterator[Value]:
    """The values that are made from one, each once: its users, and theirs where their operation is one of
    `through` (None: of all). Not more than `most`."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) <= most:
        for user in computation.users(waiting.pop()):
            if id(user) in seen:
                continue
            seen.add(id(user))
            yield user
            if through is None or user.op in through or user.op in ("either", "list", "tuple"):
                waiting.append(user)
