"""Reading an archive in tests, row by row, as any reader of its catalog would."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import duckdb

from probe.archive import dataset
from probe.archive.catalog import Catalog
from probe.archive.store import Store
from probe.base.errors import ObjectMissing


def read(store: Store, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    """The rows of a table in the order of process and number; listed again while files change."""
    while True:
        files = Catalog(store).files(table)
        if not files:
            return []
        with tempfile.TemporaryDirectory() as folder:
            try:
                paths = []
                for number, one in enumerate(files):
                    paths.append(f"{folder}/{number}.parquet")
                    Path(paths[-1]).write_bytes(store.get(one.name))
            except ObjectMissing:
                continue
            source = f"read_parquet({paths}, hive_partitioning = false, union_by_name = true)"
            return duckdb.execute(
                f"SELECT {columns} FROM {source}"
                f" ORDER BY process, {dataset.NUMBER}"
            ).fetchall()
