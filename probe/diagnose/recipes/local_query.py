"""Runs recipes on a private DuckDB connection: for the tables of a log, or of a test.

Not sandboxed: only for installed recipes on trusted rows. For recordings, `server.answers.recipe_runs` runs
recipes in a query worker. Any thread, one at a time per connection. May import duckdb, in functions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from probe.base.errors import SqlInvalid
from probe.diagnose.recipes.recipe import MOST_FINDINGS, Check, Recipe
from probe.recording.tables import TABLES, Table, columns_of

if TYPE_CHECKING:
    import duckdb


def make_tables(connection: duckdb.DuckDBPyConnection, tables: Iterable[Table] = TABLES) -> None:
    """Create all tables for queries, empty."""
    wanted = list(tables)
    made = [f'CREATE SCHEMA IF NOT EXISTS "{schema}"' for schema in sorted({one.schema for one in wanted})]
    for table in wanted:
        columns = ", ".join(f'"{column.name}" {column.type}' for column in columns_of(table))
        made.append(f'CREATE TABLE "{table.schema}"."{table.name}" ({columns})')
    connection.execute("; ".join(["BEGIN", *made, "COMMIT"]))  # one transaction: half the time


def run_on(
    connection: duckdb.DuckDBPyConnection, recipes: Iterable[Recipe], endpoint: str
) -> list[Check]:
    """Run recipes one by one; a recipe whose SQL fails is unknown and does not affect the others."""
    return [_run(connection, recipe, endpoint) for recipe in recipes]


def _run(connection: duckdb.DuckDBPyConnection, recipe: Recipe, endpoint: str) -> Check:
    import duckdb

    began = time.perf_counter()
    sql, parameters = recipe.statement()
    try:
        result = connection.execute(sql, parameters)
        columns = [item[0] for item in result.description or ()]
        rows = result.fetchmany(MOST_FINDINGS)
    except duckdb.Error as error:
        return recipe.not_run(f"its SQL failed: {error}", SqlInvalid.code, _since(began))
    return recipe.check(columns, rows, endpoint, _since(began))


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1e3, 3)
