"""The answer to a query, as the server gives it. Pure but for `query`; the command's main thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from probe.base.errors import ServerUnavailable
from probe_cli.core.session import Session


class Answer(NamedTuple):
    """Columns and rows of one query."""

    columns: list[tuple[str, str]]
    """(name, SQL type)"""
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float | None
    notes: list[str]

    @classmethod
    def query(
        cls, session: Session, sql: str, limit: int | None = None, timeout_s: float | None = None
    ) -> Answer:
        """Run one SELECT on the session's endpoint; None leaves a bound to the server."""
        body = {"endpoint": session.address.endpoint, "sql": sql, "limit": limit, "timeout_s": timeout_s}
        return cls.parse(session.request("POST", "/v1/query", body=body, timeout_s=timeout_s))

    @classmethod
    def parse(cls, body: dict[str, Any]) -> Answer:
        """The answer in a response body; raises `ServerUnavailable` for an invalid body."""
        try:
            columns = [(str(column["name"]), str(column["type"])) for column in body["columns"]]
            rows = [list(row) for row in body["rows"]]
            if any(len(row) != len(columns) for row in rows):
                raise TypeError("a row does not match the columns")
            notes = [str(note) for note in body.get("notes") or ()]
            return cls(columns, rows, bool(body["truncated"]), body.get("elapsed_ms"), notes)
        except (KeyError, TypeError) as error:
            raise ServerUnavailable(f"invalid query response: {error}") from None

    def records(self) -> list[dict[str, Any]]:
        """Each row as a dictionary by column name."""
        names = [name for name, _ in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]
