-- title = "mistake in the program's source"
-- severity = "notice"
-- symptoms = ["loss", "gradients", "data"]
-- order = 560
-- scope = "rank"
-- needs = "the source of the program, in files that have not changed since it started"
-- what = "{said} ({place})"
-- why = [
--   "{place} in {function}: {why}",
--   "read in the source; that the line runs, or that the loss suffers from it, was not measured",
--   "instead: {remedy}",
--   "not read: {unread}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT area, file, line, function, rule, said, remedy FROM python.code WHERE rule IS NOT NULL ORDER BY file, line\"",
-- ]
-- false_positives = "code that does this on purpose (overfits one batch, shares layers, draws outputs at random, uses ranks that differ, trains on episodes without an end), or compensates for it in code that is not read: an installed package, or code generated at run time"
-- explains = ["plateau", "slow-decrease", "learning-rate-too-high", "divergence", "oscillation", "loss-spike", "gradients-exploding", "learning-rate-zero", "learning-rate-too-low", "schedule-pace", "validation-rising", "train-validation-gap"]
WITH consequences(rule, explains) AS (
    VALUES ('gradients-not-cleared', 'plateau, slow-decrease, learning-rate-too-high, divergence, oscillation, loss-spike, gradients-exploding'),
        ('schedule-at-the-wrong-level', 'plateau, slow-decrease, learning-rate-zero, learning-rate-too-low, schedule-pace'),
        ('moved-alone', 'plateau, slow-decrease, validation-rising, train-validation-gap'),
        ('augmented-apart', 'plateau, slow-decrease, validation-rising, train-validation-gap'),
        ('left-in-eval-mode', 'plateau, slow-decrease, validation-rising, train-validation-gap')
), files AS (
    SELECT COUNT(*) FILTER (state = 'read') AS n, coalesce(
            ANY_VALUE(parse_filename(file) || ' has changed since the process started') FILTER (state = 'changed after the start'),
            ARG_MIN(parse_filename(file) || ': ' || said, t_ns) FILTER (state = 'not read')
        ) AS unread
    FROM python.code WHERE rule IS NULL
), remarks AS (
    SELECT parse_filename(file) || ':' || line AS place, coalesce(function, 'the script') AS function, said, why, remedy, file, line,
        coalesce(explains, 'plateau, slow-decrease') AS explains
    FROM python.code LEFT JOIN consequences USING (rule)
    WHERE rule IS NOT NULL AND area <> 'numerics'  -- nan-origin mentions these
    ORDER BY file, line LIMIT 10
)
SELECT NULL AS unknown, place AS subject, place, function, said, why, remedy, unread, explains FROM remarks, files
UNION ALL BY NAME
SELECT coalesce(unread, 'no source file of the program was read') AS unknown
FROM files WHERE (n = 0 OR unread IS NOT NULL) AND NOT EXISTS (FROM remarks)
