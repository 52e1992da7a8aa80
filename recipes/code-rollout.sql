-- title = "mistake in the code of episodes or ranks"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 564
-- scope = "rank"
-- needs = "the source of the program, in files that have not changed since it started"
-- what = "{said} ({place})"
-- why = [
--   "{place} in {function}: {why}",
--   "read in the source; that the line runs, or that the loss suffers from it, was not measured",
--   "instead: {remedy}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT file, line, function, rule, said, remedy FROM python.code WHERE rule IS NOT NULL ORDER BY file, line\"",
-- ]
-- false_positives = "a script whose ranks differ on purpose, a task whose episodes never end, and a function that is only ever called where its ranks agree"
-- explains = ["plateau", "slow-decrease"]
WITH files AS (
    SELECT COUNT(*) FILTER (state = 'read') AS n,
        ANY_VALUE(parse_filename(file)) FILTER (state = 'changed after the start') AS changed,
        ARG_MIN(parse_filename(file) || ' was not read: ' || said, t_ns) FILTER (state = 'not read') AS problem
    FROM python.code WHERE rule IS NULL
), remarks AS (
    SELECT parse_filename(file) || ':' || line AS place, coalesce(function, 'the script') AS function, said, why, remedy, file, line
    FROM python.code WHERE area = 'rollout' AND rule IS NOT NULL ORDER BY file, line LIMIT 5
)
SELECT NULL AS unknown, place AS subject, place, function, said, why, remedy FROM remarks
UNION ALL BY NAME
SELECT coalesce(changed || ' has changed since the process started', problem, 'no source file of the program was read') AS unknown
FROM files WHERE (n = 0 OR changed IS NOT NULL OR problem IS NOT NULL) AND NOT EXISTS (FROM remarks)
