"""SQL completion: tables, columns of the tables that the text names, keywords.

Used by the SQL prompt and the shell's completion. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from probe.recording.tables import TABLES, Table, columns_of

_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "DESC", "HAVING", "QUALIFY", "WITH", "AS",
    "JOIN", "LEFT JOIN", "USING", "ON", "AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS NULL", "CASE",
    "WHEN", "THEN", "ELSE", "END", "DISTINCT", "UNION ALL", "DESCRIBE", "SUMMARIZE", "SHOW TABLES",
    "COUNT(*)", "AVG(", "SUM(", "MIN(", "MAX(", "MEDIAN(", "QUANTILE_CONT(",
)
_WORD = re.compile(r"[\w.]*$")


def candidates(before: str, own: Sequence[Table] = ()) -> Iterator[tuple[str, int]]:
    """Completions of the last word as (word, number of characters that it replaces): tables, including the
    job's `own`, columns (of the tables that the text names, else of all) and keywords."""
    match = _WORD.search(before)
    word = match[0] if match else ""
    lowered = word.lower()
    known = (*TABLES, *own)
    named = [table for table in known if table.full_name in before.lower()]
    tables = [table.full_name for table in known]
    columns = {column.name: None for table in named or known for column in columns_of(table)}
    for name in (*tables, *(columns if word else ())):
        if name.lower().startswith(lowered) and name.lower() != lowered:
            yield name, len(word)
    for keyword in _KEYWORDS if word else ():
        if keyword.lower().startswith(lowered) and keyword.lower() != lowered:
            yield keyword, len(word)
