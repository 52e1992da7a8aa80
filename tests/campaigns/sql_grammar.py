"""Random statements for the campaign `sql`, generated from the catalog of the installed DuckDB.

Functions, settings, types and keywords come from that catalog, so a new DuckDB release adds statements
without a change here. The same random generator (`dice`) gives the same statements.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import duckdb

from probe.recording.tables import TABLES
from server import hostile_sql

DEEPEST = 4
VALUES = (
    "NULL", "0", "1", "-1", "3.5", "9223372036854775807", "-170141183460469231731687303715884105728", "1e308",
    "'NaN'::DOUBLE", "'x'", "''", "'é💥'", "repeat('ab', 300)", "true", "DATE '2024-02-29'", "TIMESTAMP 'infinity'",
    "INTERVAL 1 MONTH", "'\\xFF'::BLOB", "'101'::BIT", "[1, NULL, 3]", "['a', 'b']", "{'a': 1, 'b': [2]}",
    "MAP {'k': 1}", "uuid()", "range(20)", "[[1], []]", "'{\"a\": [1, 2]}'::JSON", "TIME '23:59:59.999999'",
    "union_value(n := 1)", "current_query()", "'$.a[*]'", "2", "0.25", "[0.5]", "'a'",
)
ODD = ("lambda x: x", "lambda a, b: a", "COLUMNS(*)", "DEFAULT", "*", "ROW()", "?", "$1", "step", "rank")
OF_TYPE = {
    "BOOLEAN": ("true", "false", "NULL::BOOLEAN"), "VARCHAR": ("'x'", "''", "'é💥'", "repeat('ab', 300)", "'%Y-%m'", "'a,b'"),
    "INTEGER": ("0", "1", "-7", "2147483647"), "BIGINT": ("0", "3", "-1", "9223372036854775807"), "DOUBLE": ("0.5", "1e308"),
    "HUGEINT": ("7::HUGEINT", "-170141183460469231731687303715884105728"), "FLOAT": ("1.5::FLOAT", "'-inf'::FLOAT"),
    "DATE": ("DATE '2024-02-29'", "DATE '-infinity'"), "TIMESTAMP": ("TIMESTAMP '2024-02-29 12:00'", "TIMESTAMP 'infinity'"),
    "TIME": ("TIME '23:59:59.999999'",), "INTERVAL": ("INTERVAL 1 MONTH", "INTERVAL '-3 days'"), "BLOB": ("'\\xFF'::BLOB",),
    "BIT": ("'101'::BIT",), "UUID": ("uuid()",), "JSON": ("'{\"a\": [1, 2]}'::JSON", "'[]'::JSON"), "LAMBDA": ("lambda x: x",),
    "STRUCT": ("{'a': 1, 'b': [2]}",), "MAP": ("MAP {'k': 1}",), "UNION": ("union_value(n := 1)",), "DECIMAL": ("3.14",),
    "VARIANT": ("{'a': 1}::VARIANT",),
}
"""Matching values by type; a key is the start of the type's name."""
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "||", "=", "<>", "<", "IS DISTINCT FROM", "AND", "OR", "LIKE", "~~*",
             "SIMILAR TO", "&", "|", "<<", ">>", "->", "->>", "IN", "^@", "@>", "&&", "COLLATE", "AT TIME ZONE")
CASTS = ("INTEGER", "HUGEINT", "UTINYINT", "DECIMAL(38, 37)", "VARCHAR", "BLOB", "BIT", "DATE", "TIMESTAMP_NS", "TIMETZ",
         "INTERVAL", "UUID", "JSON", "VARIANT", "INTEGER[]", "VARCHAR[3]", "STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)",
         "UNION(n INTEGER, s VARCHAR)", "ENUM('a', 'b')", "FLOAT[2]", "TIMESTAMP WITH TIME ZONE", "BIGNUM", "GEOMETRY",
         "POINTER", "TABLE", "AGGREGATE_STATE<sum(INTEGER)>", "\"NULL\"", "LAMBDA")
READERS = (
    "read_text('{}')", "read_blob('{}')", "read_csv('{}', header = false, columns = {{'x': 'VARCHAR'}})",
    "read_csv_auto('{}')", "read_json('{}', columns = {{'x': 'VARCHAR'}})", "read_ndjson_objects('{}')", "'{}'",
    "read_json_objects('{}', format = 'unstructured')", "sniff_csv('{}')", "glob('{}')", "read_text(['{}'])",
    "query('SELECT * FROM read_text(''{}'')')", "query_table('{}')", "parquet_metadata('{}')", "read_duckdb('{}')",
    "(SELECT content FROM read_text('{}'))", "(VALUES (1)) t, LATERAL read_text('{}')", "read_text(VARIABLE '{}')",
)
WRITES = (
    "COPY (SELECT 1 AS x) TO '{out}'", "COPY (SELECT 1 AS x) TO '{out}' (FORMAT {format})", "EXPORT DATABASE '{out}'",
    "ATTACH '{out}' AS other", "ATTACH '{secret}' AS other (TYPE {format})", "COPY python.losses FROM '{secret}'",
    "INSTALL '{out}'", "LOAD '{secret}'", "CREATE TABLE t AS FROM read_text('{secret}')", "IMPORT DATABASE '{secret}'",
    "CREATE SECRET s (TYPE s3, KEY_ID 'k', SECRET '{secret}')", "CREATE PERSISTENT SECRET s IN local_file (TYPE http)",
    "CREATE VIEW v AS FROM read_text('{secret}')", "CREATE MACRO m(a) AS TABLE FROM read_text(a)", "DROP VIEW python.steps",
    "INSERT INTO python.losses SELECT * FROM python.losses", "DELETE FROM {table}", "UPDATE {table} SET rank = 1",
    "CREATE OR REPLACE TEMP TABLE t AS FROM {table}", "SET VARIABLE v = (SELECT content FROM read_text('{secret}'))",
    "COPY (FROM read_text('{secret}')) TO '/dev/stdout'", "VACUUM {table}", "CHECKPOINT", "BEGIN; COMMIT; DELETE FROM {table}",
    "PREPARE p AS FROM read_text('{secret}')", "EXECUTE p('{secret}')", "CALL enable_logging(storage = 'file')",
    "CREATE TRIGGER t AFTER INSERT ON {table} FOR EACH ROW SELECT 1", "ALTER DATABASE memory SET x = 1",
    "COMMIT", "ROLLBACK; FROM read_text('{secret}')", "USE other", "DETACH memory", "UPDATE EXTENSIONS",
)
FORMATS = ("csv", "parquet", "json", "sqlite", "postgres", "duckdb", "arrow", "blob")
WRAPS = (
    "{}", "EXPLAIN {}", "EXPLAIN ANALYZE {}", "EXPLAIN (FORMAT json, ANALYZE) {}", "DESCRIBE {}", "SUMMARIZE {}", "({})",
    "WITH w AS MATERIALIZED ({}) FROM w", "SELECT * FROM ({}) s POSITIONAL JOIN ({}) t", "{} UNION ALL BY NAME {}",
    "FROM ({}) s SELECT to_json(s), hash(s), typeof(s)", "SELECT (FROM ({}) LIMIT 1)", "SELECT EXISTS ({}), ARRAY({})",
    "CREATE TABLE t AS {}", "PREPARE p AS {}", "COPY ({}) TO '/dev/null'", "PIVOT ({}) ON 1 USING count(*)",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('{!q}'))", "SELECT * FROM query('{!q}')",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 40) SELECT * FROM r, ({}) s",
)


class Places(NamedTuple):
    """Paths planted for the campaign: files a statement may try to read, and a target for writes."""

    secrets: list[str]
    out: str


class Function(NamedTuple):
    """One overload of a function in DuckDB's catalog."""

    name: str
    parameters: list[str]
    types: list[str]


class Grammar:
    """Generates statements of every kind from one DuckDB catalog."""

    def __init__(self, places: Places) -> None:
        self.places = places
        with duckdb.connect(":memory:") as connection:
            found = connection.execute(
                "SELECT function_type, function_name, parameters, parameter_types FROM duckdb_functions() ORDER BY ALL"
            ).fetchall()
            settings = "SELECT name FROM duckdb_settings() ORDER BY name"
            self.settings = [str(row[0]) for row in connection.execute(settings).fetchall()]
            types = connection.execute("SELECT DISTINCT type_name FROM duckdb_types() ORDER BY ALL").fetchall()
        self.casts = [*CASTS, *(str(row[0]) for row in types)]
        self._by_kind: dict[str, list[Function]] = {}
        for kind, name, parameters, kinds in found:
            one = Function(name, list(parameters or ()), [str(one) for one in kinds or ()])
            self._by_kind.setdefault(kind, []).append(one)
        self.of_tables = self._by_kind["table"] + self._by_kind.get("table_macro", [])
        self.pragmas = self._by_kind["pragma"]
        self.values = self._by_kind["scalar"] + self._by_kind["macro"]
        self.sums = self._by_kind["aggregate"] + self._by_kind.get("window", [])
        self.tables = [table.full_name for table in TABLES]
        self.corpus = [sql for _, sql in hostile_sql.everything()]
        self.kinds: list[Callable[[random.Random, int], str]] = [
            self.read_file, self.table_function, self.expression, self.setting, self.pragma, self.aggregate,
            self.write, self.join, self.cast, self.wrapped, self.mutated, self.settings_of_reader,
        ]

    def statement(self, dice: random.Random, number: int) -> tuple[str, str]:
        """Return kind and text of a round's statement. Rounds cycle through the kinds; kinds built on a
        DuckDB list (table functions, pragmas, settings) cycle through that list."""
        kind = self.kinds[number % len(self.kinds)]
        return kind.__name__, kind(dice, number // len(self.kinds))

    # Pieces -----------------------------------------------------------------

    def value(self, dice: random.Random, depth: int = 0) -> str:
        """An expression."""
        chance = dice.random()
        if chance < 0.03:
            return dice.choice(ODD)
        if depth >= DEEPEST or chance < 0.36:
            return dice.choice(VALUES)
        if chance < 0.4:
            return f"'{self.path(dice)}'"
        if chance < 0.7:
            return self.call(dice, dice.choice(self.values), depth)
        if chance < 0.85:
            return f"({self.value(dice, depth + 1)})::{dice.choice(self.casts)}"
        if chance < 0.95:
            return f"({self.value(dice, depth + 1)} {dice.choice(OPERATORS)} {self.value(dice, depth + 1)})"
        return f"(SELECT {self.value(dice, depth + 1)} FROM {self.source(dice, depth + 1)} LIMIT 1)"

    def call(self, dice: random.Random, function: Function, depth: int) -> str:
        """A call of the function, usually with the right number of arguments."""
        count = len(function.types) if dice.random() < 0.9 else dice.randrange(6)
        kinds = [*function.types, *["ANY"] * count][: min(count, 8)]
        words = [self.of_type(dice, kind, depth + 1) for kind in kinds]
        return f'{self.name(function)}({", ".join(words)})'

    def of_type(self, dice: random.Random, kind: str, depth: int) -> str:
        """An expression, usually of this type."""
        chance = dice.random()
        fitting = next((words for start, words in OF_TYPE.items() if kind.startswith(start)), None)
        if chance < 0.15 or (fitting is None and not kind.endswith("]")):
            return self.value(dice, depth)
        if depth < DEEPEST and chance < 0.4:
            return f"TRY_CAST({self.call(dice, dice.choice(self.values), depth)} AS {kind})"
        if kind.endswith("[]"):
            return f"[{self.of_type(dice, kind[:-2], depth + 1)}, NULL]"
        return dice.choice(fitting) if fitting else f"NULL::{kind}"

    @staticmethod
    def name(function: Function) -> str:
        """The function's name, quoted if it is an operator."""
        return function.name if function.name.isidentifier() else f'"{function.name}"'

    def path(self, dice: random.Random) -> str:
        """The path of a planted file, sometimes spelled differently (URL, glob, symlink under /proc)."""
        path = dice.choice(self.places.secrets)
        folder, _, name = path.rpartition("/")
        spelled = (path, path, path, f"file://{path}", f"{folder}/*", f"{folder}/./{name}", f"/proc/self/root{path}",
                   f"{folder}/{name[:-1]}?", "/proc/self/environ", f"{folder}/**", f"../../../..{path}", f"{path}\x00.csv")
        return dice.choice(spelled)

    def source(self, dice: random.Random, depth: int = 0) -> str:
        """The text after FROM: a table, a table function, a file reader, a range or a subquery."""
        chance = dice.random()
        if depth >= DEEPEST or chance < 0.4:
            return dice.choice(self.tables)
        if chance < 0.6:
            return self.called(dice, dice.choice(self.of_tables))
        if chance < 0.7:
            return dice.choice(READERS).format(self.path(dice))
        if chance < 0.8:
            return f"range({self.value(dice, depth + 2)})"
        return f"({self.select(dice, depth + 1)})"

    def select(self, dice: random.Random, depth: int = 0) -> str:
        """A query."""
        items = ", ".join(self.value(dice, depth + 1) for _ in range(dice.randrange(1, 4)))
        text = f"SELECT {dice.choice(('', 'DISTINCT ', 'ALL '))}{dice.choice((items, '*', 'COLUMNS(*)'))}"
        text += f" FROM {self.source(dice, depth + 1)}"
        if dice.random() < 0.3:
            text += f" WHERE TRY_CAST({self.value(dice, depth + 1)} AS BOOLEAN)"
        if dice.random() < 0.2:
            text += f" GROUP BY {dice.choice(('ALL', '1', 'CUBE (1, 2)', self.value(dice, depth + 2)))}"
        if dice.random() < 0.2:
            text += f" QUALIFY {self.window(dice)} {dice.choice(OPERATORS)} {self.value(dice, depth + 2)}"
        if dice.random() < 0.2:
            text += f" ORDER BY {dice.choice(('ALL', '1', 'random()', self.value(dice, depth + 2)))}"
        if dice.random() < 0.3:
            text += f" LIMIT {dice.choice(('1', '10%', '0', '(SELECT 3)', '1 OFFSET 1000000000'))}"
        return text

    def called(self, dice: random.Random, function: Function) -> str:
        """A call of a table function with some positional and some named arguments."""
        words = [self.argument(dice, kind) for kind in function.types[: dice.randrange(4)]]
        for name in dice.sample(function.parameters, min(len(function.parameters), dice.randrange(3))):
            words.append(f"{name} = {self.value(dice, DEEPEST - 1)}")
        return f'{self.name(function)}({", ".join(words)})'

    def argument(self, dice: random.Random, kind: str) -> str:
        """An argument for a table function; often a path if the type allows one."""
        if kind in ("VARCHAR", "ANY", "VARIANT", "ANY[]", "VARCHAR[]") and dice.random() < 0.6:
            path = f"'{self.path(dice)}'"
            return f"[{path}]" if kind.endswith("]") else path
        return dice.choice(self.tables) if kind == "TABLE" else self.value(dice, DEEPEST - 1)

    def window(self, dice: random.Random) -> str:
        """An aggregate over a window."""
        frame = dice.choice(("", "ROWS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES",
                             "ORDER BY 1 RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING", "PARTITION BY 1 ORDER BY 1", "ORDER BY 1", ""))
        return f"{self.call(dice, dice.choice(self.sums), 2)} OVER ({frame})"

    # Kinds of statements ------------------------------------------------------

    def read_file(self, dice: random.Random, turn: int) -> str:
        """A query that reads a planted file with one of `READERS`."""
        secret = self.places.secrets[turn % len(self.places.secrets)]
        path = secret if turn % 2 else self.path(dice)
        return f"SELECT * FROM {READERS[turn % len(READERS)].format(path)}"

    def table_function(self, dice: random.Random, turn: int) -> str:
        """A query of a table function; cycles through all of them."""
        return f"SELECT * FROM {self.called(dice, self.of_tables[turn % len(self.of_tables)])}"

    def expression(self, dice: random.Random, turn: int) -> str:
        """A scalar function or macro in a nested expression."""
        first = self.values[dice.randrange(len(self.values))]
        return f"SELECT {self.call(dice, first, 1)}, {self.value(dice)}"

    def setting(self, dice: random.Random, turn: int) -> str:
        """Set, reset or read a setting; cycles through all of them."""
        name = self.settings[turn % len(self.settings)]
        value = dice.choice((f"'{self.places.out}'", f"'{self.path(dice)}'", "true", "false", "'1TB'", "-1", "''", "NULL",
                             f"['{self.path(dice)}']", "DEFAULT", "'/'"))
        form = dice.choice(("SET {0} = {1}", "SET GLOBAL {0} = {1}", "SET SESSION {0} TO {1}", "RESET {0}", "PRAGMA {0} = {1}",
                            "PRAGMA {0}", "SELECT current_setting('{0}')", "SELECT set_config('{0}', {1}, false)",
                            "SELECT * FROM duckdb_settings() WHERE name = '{0}'", "SHOW {0}", "CALL pragma_{0}({1})"))
        return form.format(name, value)

    def pragma(self, dice: random.Random, turn: int) -> str:
        """A pragma; cycles through all of them."""
        one = self.pragmas[turn % len(self.pragmas)]
        words = ", ".join(self.argument(dice, kind) for kind in one.types)
        return dice.choice((f"PRAGMA {one.name}({words})", f"PRAGMA {one.name}", f"CALL {one.name}({words})",
                            f"SELECT * FROM pragma_{one.name}({words})", f"PRAGMA {one.name} = {words or 1}"))

    def aggregate(self, dice: random.Random, turn: int) -> str:
        """An aggregate with an optional FILTER, OVER or WITHIN GROUP clause, and a window."""
        one = self.sums[dice.randrange(len(self.sums))]
        more = dice.choice(("", " FILTER (WHERE step > 3)", " EXPORT_STATE", " OVER ()", " WITHIN GROUP (ORDER BY step)"))
        return f"SELECT {self.call(dice, one, 2)}{more}, {self.window(dice)} FROM {dice.choice(self.tables)} GROUP BY ALL"

    def write(self, dice: random.Random, turn: int) -> str:
        """A statement that would write a file, attach a database or load an extension."""
        words = {"out": self.places.out, "secret": self.path(dice), "table": dice.choice(self.tables),
                 "format": dice.choice(FORMATS)}
        return WRITES[turn % len(WRITES)].format(**words)

    def join(self, dice: random.Random, turn: int) -> str:
        """A join of several sources."""
        kind = dice.choice(("JOIN", "LEFT JOIN", "FULL JOIN", "ASOF JOIN", "SEMI JOIN", "ANTI JOIN", "CROSS JOIN",
                            "NATURAL JOIN", "POSITIONAL JOIN", ", LATERAL"))
        on = dice.choice(("", " USING (step)", " USING (rank, step)", f" ON {self.value(dice, 2)}"))
        return f"SELECT * FROM {self.source(dice)} a {kind} {self.source(dice)} b{on} LIMIT 50"

    def cast(self, dice: random.Random, turn: int) -> str:
        """A value in nested casts."""
        text = dice.choice(VALUES)
        for _ in range(dice.randrange(1, 5)):
            how = dice.choice(("CAST({} AS {})", "TRY_CAST({} AS {})"))
            text = how.format(text, dice.choice(self.casts))
        return f"SELECT {text}"

    def wrapped(self, dice: random.Random, turn: int) -> str:
        """A query inside a statement that runs, explains or stores queries."""
        inner = self.select(dice, 1) if turn % 3 else f"SELECT * FROM {dice.choice(READERS).format(self.path(dice))}"
        form = WRAPS[turn % len(WRAPS)]
        return form.replace("{!q}", inner.replace("'", "''")).replace("{}", inner)

    def mutated(self, dice: random.Random, turn: int) -> str:
        """A known hostile statement with words removed, doubled, or replaced by words of another one."""
        words = dice.choice(self.corpus).split(" ")
        other = dice.choice(self.corpus).split(" ")
        for _ in range(dice.randrange(1, 4)):
            place = dice.randrange(len(words))
            words[place : place + dice.randrange(2)] = dice.choice(([], [dice.choice(other)], words[place:][:4], ["("]))
            words = words or ["SELECT"]
        return " ".join(words)[: 32 << 10]

    def settings_of_reader(self, dice: random.Random, turn: int) -> str:
        """A call of a file reader with options that refer to other files."""
        reader = dice.choice(("read_csv", "read_json", "read_parquet", "read_text"))
        options: dict[str, Any] = {
            "filename": "true", "hive_partitioning": "true", "union_by_name": "true", "store_rejects": "true",
            "compression": "'gzip'", "columns": "{'x': 'VARCHAR'}", "encryption_config": f"{{footer_key: '{self.path(dice)}'}}",
            "allow_empty": "true", "files_to_sniff": "-1", "schema": "MAP {0: {name: 'x', type: 'INT', default_value: 1}}",
        }
        chosen = dice.sample(sorted(options), dice.randrange(4))
        words = ", ".join(f"{name} = {options[name]}" for name in chosen)
        places = ", ".join(f"'{self.path(dice)}'" for _ in range(dice.randrange(1, 4)))
        return f"FROM {reader}([{places}]{', ' if words else ''}{words})"
