-- title = "failures of one cause in a week"
-- severity = "info"
-- symptoms = ["hang"]
-- order = 50
-- needs = "processes that failed or died"
-- what = "{failures} of {ended} runs in the week of {week}: {cause}"
-- why = [
--   "per week before that: {before:.2f} of {ended_before:.1f} runs, over {weeks} weeks",
--   "at that rate {expected:.2f} were to be expected: P(at least {failures}) = {p:.2g} (Poisson)",
--   "runs: {names}",
-- ]
-- next = [
--   "probe fleet URL query \"SELECT run, attempt, rank, host, how, verdict FROM archive.processes WHERE state IN ('failed', 'dead') ORDER BY ended_ns DESC\"",
-- ]
-- false_positives = "one user who tried the same broken script many times"
-- [parameters.weeks]
-- value = 4
-- unit = "weeks"
-- source = "ours: a month is what a week is compared with"
-- [parameters.alpha]
-- value = 0.01
-- unit = "probability"
-- source = "ours: with more than that a week is like the others, and the finding is information"
-- [parameters.least]
-- value = 3
-- unit = "runs"
-- source = "ours: one failure more is no trend"
WITH runs AS (  -- of each run the process that failed first: the others are its victims
    SELECT run, attempt, MAX(ended_ns) AS ended_ns,
        arg_min(COALESCE(verdict, how, state), ended_ns) FILTER (state IN ('failed', 'dead')) AS cause
    FROM archive.processes WHERE ended_ns IS NOT NULL GROUP BY run, attempt
), dated AS (
    SELECT run, attempt, cause, date_trunc('week', make_timestamp(ended_ns // 1000))::DATE AS week FROM runs
), now AS (
    SELECT MAX(week) AS week, (MAX(week) - MIN(week)) // 7 AS known FROM dated
), totals AS (
    SELECT COUNT(*) FILTER (d.week = n.week) AS ended,
        COUNT(*) FILTER (d.week < n.week AND d.week >= n.week - 7 * $weeks::INTEGER) AS ended_before
    FROM dated d, now n
), counted AS (
    SELECT cause, n.week, least(n.known, $weeks) AS weeks, COUNT(*) FILTER (d.week = n.week) AS failures,
        COUNT(*) FILTER (d.week < n.week AND d.week >= n.week - 7 * $weeks::INTEGER) AS earlier,
        string_agg(DISTINCT run, ', ' ORDER BY run) FILTER (d.week = n.week) AS names
    FROM dated d, now n WHERE cause IS NOT NULL GROUP BY cause, n.week, n.known
), judged AS (
    SELECT *, greatest(earlier, 0.5) / greatest(ended_before, 1) * ended AS expected FROM counted, totals WHERE failures > 0
), weighed AS (
    SELECT *, 1 - COALESCE(list_sum([exp(k * ln(expected) - expected - lgamma(k + 1)) FOR k IN range(0, failures)]), 0) AS p
    FROM judged
)
SELECT left(cause, 160) AS cause, cause AS subject, strftime(week, '%Y-%m-%d') AS week, failures, ended,
    earlier / NULLIF(weeks, 0) AS before, ended_before / NULLIF(weeks, 0) AS ended_before, weeks, expected, p,
    left(names, 200) AS names,
    CASE WHEN failures >= $least AND weeks > 0 AND p < $alpha THEN 'notice' ELSE 'info' END AS severity
FROM weighed
UNION ALL BY NAME
SELECT 'no process has an end' AS unknown WHERE NOT EXISTS (SELECT 1 FROM runs)
ORDER BY failures DESC, cause
