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
    SELECT COUNT(*) FILTER (state = 'read') AS n, COUNT(*) FILTER (state = 'changed after the start') AS changed, ARG_MIN(said, t_ns) FILTER (state = 'not read') AS problem
    FROM python.code WHERE rule IS NULL
), remarks AS (
    SELECT parse_filename(file) || ':' || line AS place, coalesce(function, 'the script') AS function, said, why, remedy, file, line
    FROM python.code WHERE area = 'rollout' AND rule IS NOT NULL ORDER BY file, line LIMIT 5
)
SELECT NULL AS unknown, place AS subject, place, function, said, why, remedy FROM remarks
UNION ALL BY NAME
SELECT CASE WHEN changed > 0 THEN 'the source files have changed since the process started' WHEN problem IS NOT NULL THEN 'the source was not read: ' || problem ELSE 'no source file of the program was read' END AS unknown FROM files WHERE n = 0
