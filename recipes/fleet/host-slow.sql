-- title = "host slower than its peers"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 20
-- needs = "timed steps of runs on several hosts"
-- what = "{host} was the slowest host in {slowest} of {runs} runs, by {excess:.0%} at the median"
-- why = [
--   "forward time of its ranks against the median of the other hosts' ranks in the same run, every tenth step",
--   "by chance it would be the slowest in {expected:.1f}: P(at least {slowest} of {runs}) = {p:.2g} (binomial, 1/hosts of each run); {hosts} hosts x {p:.2g} = {corrected:.2g}",
--   "slow in: {names}",
-- ]
-- next = [
--   "probe fleet URL query \"SELECT run, host, MEDIAN(forward_s) FROM python.steps WHERE run IN (SELECT run FROM archive.processes WHERE host = '{host}') GROUP BY ALL ORDER BY ALL\"",
-- ]
-- false_positives = "ranks with more work by design, such as the first or last stage of a pipeline, always placed on this host"
-- [parameters.least]
-- value = 0.1
-- unit = "ratio"
-- source = "ours: smaller differences cost less than a swap of the host"
-- [parameters.runs]
-- value = 3
-- unit = "runs"
-- source = "ours: fewer are one bad day"
-- [parameters.alpha]
-- value = 0.01
-- unit = "probability"
-- source = "ours: one false accusation in a hundred reports, after Bonferroni's correction for the number of hosts"
WITH ranks AS (
    SELECT run, attempt, host, rank, MEDIAN(forward_s) AS forward_s FROM python.steps
    WHERE step % 10 = 5 AND NOT COALESCE(sampled, false) AND forward_s IS NOT NULL GROUP BY ALL
), hosts AS (
    SELECT run, attempt, host, MEDIAN(forward_s) AS forward_s FROM ranks GROUP BY ALL
), compared AS (
    SELECT a.run, a.attempt, a.host, a.forward_s / MEDIAN(b.forward_s) - 1 AS excess, COUNT(*) + 1 AS hosts,
        a.forward_s > MAX(b.forward_s) AS slowest
    FROM hosts a JOIN hosts b ON a.run = b.run AND a.attempt = b.attempt AND a.host <> b.host
    GROUP BY a.run, a.attempt, a.host, a.forward_s
), counted AS (
    SELECT host, COUNT(*) AS runs, COUNT(*) FILTER (slowest AND excess >= $least) AS slowest, MEDIAN(excess) AS excess,
        AVG(1.0 / hosts) AS share, string_agg(DISTINCT run, ', ' ORDER BY run) FILTER (slowest AND excess >= $least) AS names
    FROM compared GROUP BY host
), judged AS (
    SELECT *, runs * share AS expected, COUNT(*) OVER () AS hosts,
        list_sum([exp(lgamma(runs + 1) - lgamma(k + 1) - lgamma(runs - k + 1) + k * ln(share)
            + (runs - k) * ln(1 - share)) FOR k IN range(slowest, runs + 1)]) AS p
    FROM counted
)
SELECT host, host AS subject, slowest, runs, excess, expected, p, hosts, hosts * p AS corrected, left(names, 200) AS names
FROM judged WHERE slowest >= $runs AND excess >= $least AND hosts * p < $alpha
UNION ALL BY NAME
SELECT 'no run on several hosts has timed steps' AS unknown WHERE NOT EXISTS (SELECT 1 FROM compared)
ORDER BY excess DESC
