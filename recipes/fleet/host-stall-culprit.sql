-- title = "host causes stalls"
-- severity = "alarm"
-- symptoms = ["hang"]
-- order = 10
-- needs = "verdicts on stalls of runs on several hosts"
-- what = "{host} was the cause of {hits} of {stalls} stalls of runs that it was part of, {expected:.1f} would be its share"
-- why = [
--   "it had {share:.1%} of these runs' ranks: P(at least {hits} of {stalls}) = sum of C({stalls}, k) {share:.4f}^k {rest:.4f}^({stalls}-k) = {p:.2g}",
--   "looked at {hosts} hosts: {hosts} x {p:.2g} = {corrected:.2g}, below {alpha}",
--   "runs: {runs}",
-- ]
-- next = [
--   "probe fleet URL query \"SELECT run, rank, state, what FROM probe.verdicts WHERE host = '{host}' AND severity = 'alarm' ORDER BY t_ns\"",
-- ]
-- false_positives = "one job that always gives this host's ranks the same unlucky part; a host in one long run that stalled again and again"
-- [parameters.alpha]
-- value = 0.01
-- unit = "probability"
-- source = "ours: one false accusation in a hundred reports, after Bonferroni's correction for the number of hosts"
-- [parameters.least]
-- value = 3
-- unit = "stalls"
-- source = "ours: two are a coincidence that nobody acts on"
WITH ranks AS (
    SELECT run, attempt, host, COUNT(*) AS ranks FROM archive.processes GROUP BY run, attempt, host
), parts AS (
    SELECT *, ranks / SUM(ranks) OVER (PARTITION BY run, attempt) AS share,
        COUNT(*) OVER (PARTITION BY run, attempt) AS hosts_of_run
    FROM ranks
), stalls AS (  -- the alarm is written at the rank that is the cause; those that wait get a notice
    SELECT DISTINCT run, attempt, rank, host FROM probe.verdicts
    WHERE severity = 'alarm' AND recipe IS NULL AND state IN ('missing rank', 'deadlock suspected', 'lock wait',
        'holds the GIL', 'blocked in C', 'busy without a step', 'uninterruptible', 'waiting for data', 'stopped',
        'straggler', 'retrying', 'swapping', 'starved of CPU')
), counted AS (
    SELECT p.host, COUNT(*) AS stalls, COUNT(*) FILTER (s.host = p.host) AS hits, AVG(p.share) AS share,
        string_agg(DISTINCT s.run, ', ' ORDER BY s.run) FILTER (s.host = p.host) AS runs
    FROM stalls s JOIN parts p USING (run, attempt) WHERE p.hosts_of_run > 1 GROUP BY p.host
), judged AS (
    -- Stalls with unequal shares have a tail at most as heavy as with their mean (Hoeffding 1956)
    SELECT *, stalls * share AS expected, COUNT(*) OVER () AS hosts,
        list_sum([exp(lgamma(stalls + 1) - lgamma(k + 1) - lgamma(stalls - k + 1) + k * ln(share)
            + (stalls - k) * ln(1 - share)) FOR k IN range(hits, stalls + 1)]) AS p
    FROM counted
)
SELECT host, host AS subject, hits, stalls, share, 1 - share AS rest, expected, p, hosts, hosts * p AS corrected,
    left(runs, 200) AS runs
FROM judged WHERE hits >= $least AND hits > expected + 1 AND hosts * p < $alpha
UNION ALL BY NAME
SELECT 'no run on several hosts had a stall' AS unknown WHERE NOT EXISTS (SELECT 1 FROM counted)
ORDER BY p
