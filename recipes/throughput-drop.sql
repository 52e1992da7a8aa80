-- title = "throughput dropped"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 530
-- scope = "rank"
-- needs = "the samples or tokens of a few hundred steps"
-- what = "{now:,.0f} {unit} per second, {drop:.0%} less than the {before:,.0f} before step {step}{where}"
-- why = [
--   "measured on the fastest fifth of each {block} steps, which are least affected by other work on the machine; it was {before:,.0f} for most of the last {seen} steps",
--   "a step takes {wall_now:.1f} ms ({wall_before:.1f} before) and has {size_now:,.0f} {unit} ({size_before:,.0f} before)",
--   "on this machine {busy_before:.0f} threads wanted a CPU before, {busy:.0f} since",
--   "the training thread waited for a CPU {waited_before:.0%} of the time before, {waited:.0%} since",
--   "CPUs in use: by this job {own_before:.1f} before, {own:.1f} since; by all others {others_before:.1f} before, {others:.1f} since",
-- ]
-- next = ["probe {endpoint} diagnose slow", "probe {endpoint} profile --steps 3 -o slow.json"]
-- false_positives = "parameters that are no longer frozen (`info`); changed data; another job on the same machine that slows all phases equally, adds runnable threads, makes training wait for a CPU, or takes CPUs from it (one severity level lower; `info` if that explains half of the drop)"
-- explains = ["low-mfu"]
-- effect = true
-- uses = ["trainings", "thaws"]
-- [parameters.drop]
-- value = 0.5
-- unit = "ratio"
-- source = "practice: within 5 % is healthy, a drop of 50 % is a warning, of 80 % an alarm"
-- [parameters.severe]
-- value = 0.8
-- unit = "ratio"
-- source = "practice: 80 % is an alarm"
-- [parameters.lasts]
-- value = 10.0
-- unit = "s"
-- source = "ours: anything shorter may be due to other work on the machine"
-- [parameters.block]
-- value = 20
-- unit = "steps"
-- source = "ours"
-- [parameters.starved]
-- value = 0.5
-- unit = "ratio of the time"
-- source = "ours: a thread that waits for a CPU half of the time is slowed by others; then only more CPU time per step can be the job's own doing"
-- [zone]
-- of = "rate"
-- words = "not more than {drop:.0%} below what is usual of what is shown"
-- sql = '''
-- WITH seen AS (
--     SELECT wall_s - COALESCE(held_s, 0) - COALESCE(eval_s, 0) - COALESCE(checkpoint_s, 0) AS wall_s, CASE WHEN by_tokens THEN tokens ELSE samples END AS size, (MAX(step) OVER () - step) // $block AS ago
--     FROM python.steps, (SELECT COUNT(tokens) > 0.5 * COUNT(*) AS by_tokens FROM python.steps WHERE rank = $rank)
--     WHERE rank = $rank AND t_ns // 1000000 >= $from_ms AND t_ns // 1000000 < $to_ms AND NOT COALESCE(sampled, false)
-- ), blocks AS (
--     SELECT ago, QUANTILE_CONT(size / wall_s, 0.8) AS rate FROM seen WHERE size IS NOT NULL AND wall_s > 0 GROUP BY ago HAVING COUNT(*) >= $block / 2
-- )
-- SELECT $from_ms AS ms, (1 - $drop) * GREATEST(QUANTILE_CONT(rate, 0.75), MEDIAN(rate) FILTER (ago > oldest - 5)) AS low, NULL AS high
-- FROM blocks, (SELECT MAX(ago) AS oldest FROM blocks) HAVING COUNT(*) >= 8
-- '''
WITH ends AS (
    SELECT MAX(step) AS last, MAX(t_ns) AS last_ns, MIN(step) AS first, COUNT(tokens) > 0.5 * COUNT(*) AS by_tokens FROM python.steps
), seen AS (
    SELECT step, wall_s - COALESCE(held_s, 0) - COALESCE(eval_s, 0) - COALESCE(checkpoint_s, 0) AS wall_s, CASE WHEN by_tokens THEN tokens ELSE samples END AS size, forward_s, backward_s, optimizer_s, data_s, other_s, t_ns, (last - step) // $block AS ago
    FROM python.steps, ends, (SELECT MAX(begun) AS begun FROM trainings) WHERE step > GREATEST(ends.first, begun) + 10 AND NOT COALESCE(sampled, false)
), blocks AS (
    SELECT ago, ago < 3 OR COALESCE(MAX(t_ns) > ANY_VALUE(last_ns) - 1e9 * $lasts, false) AS lately, MIN(step) AS step, QUANTILE_CONT(size / wall_s, 0.8) AS rate, MEDIAN(wall_s) AS wall, MEDIAN(size) AS size, MEDIAN(forward_s) AS forward, MEDIAN(backward_s) AS backward, MEDIAN(optimizer_s) AS optimizer, MEDIAN(data_s) AS data, MEDIAN(other_s) AS other FROM seen, ends
    WHERE size IS NOT NULL AND wall_s > 0 GROUP BY ago HAVING COUNT(*) >= $block / 2
), now AS (
    SELECT MAX(rate) AS best, MEDIAN(rate) AS rate, MEDIAN(wall) AS wall, MEDIAN(size) AS size, MEDIAN(forward) AS forward, MEDIAN(backward) AS backward, MEDIAN(optimizer) AS optimizer, COUNT(*) AS n FROM blocks WHERE lately
), old AS (
    SELECT GREATEST(QUANTILE_CONT(rate, 0.75), MEDIAN(rate) FILTER (ago > oldest - 5)) AS rate, MEDIAN(wall) AS wall, MEDIAN(size) AS size, QUANTILE_CONT(forward, 0.25) AS forward, QUANTILE_CONT(backward, 0.25) AS backward, QUANTILE_CONT(optimizer, 0.25) AS optimizer, COUNT(*) AS n FROM blocks, (SELECT MAX(ago) AS oldest FROM blocks) WHERE NOT lately
), phases AS (
    -- Which phase has most of the time that a step takes longer, in the middle of the blocks before and since.
    SELECT ARG_MAX(phase, more) AS phase, MAX(more) AS more FROM (
        SELECT phase, MEDIAN(seconds) FILTER (lately) - MEDIAN(seconds) FILTER (NOT lately) AS more FROM (
            SELECT lately, UNNEST(['loading data', 'forward', 'backward', 'the optimizer''s step', 'the program''s own code between the phases']) AS phase, UNNEST([data, forward, backward, optimizer, other]) AS seconds FROM blocks)
        GROUP BY phase)
), since AS (
    SELECT COALESCE(MIN(blocks.ago), 1000000) AS ago FROM blocks, now, old WHERE blocks.rate > (now.rate + old.rate) / 2
), change AS (
    SELECT MIN(b.step) AS step FROM blocks b, since WHERE b.ago < since.ago
), machine AS (
    SELECT *, COALESCE(busy > 1.3 * busy_before + 1, false) AS busier FROM (
        SELECT MEDIAN(runnable) FILTER (m.step < change.step) AS busy_before, MEDIAN(runnable) FILTER (m.step >= change.step) AS busy, AVG(runnable) FILTER (m.step >= change.step) >= AVG(runnable) FILTER (m.step < change.step) AS wanted,
            MEDIAN(waited) FILTER (m.step < change.step) AS waited_before, MEDIAN(waited) FILTER (m.step >= change.step) AS waited,
            (MAX(cpu_ns) FILTER (m.step < change.step) - MIN(cpu_ns) FILTER (m.step < change.step)) / NULLIF(MAX(m.step) FILTER (m.step < change.step) - MIN(m.step) FILTER (m.step < change.step), 0) AS cost_before,
            (MAX(cpu_ns) FILTER (m.step >= change.step) - MIN(cpu_ns) FILTER (m.step >= change.step)) / NULLIF(MAX(m.step) FILTER (m.step >= change.step) - MIN(m.step) FILTER (m.step >= change.step), 0) AS cost,
            AVG(own) FILTER (m.step < change.step) AS own_before, AVG(own) FILTER (m.step >= change.step) AS own, AVG(others) FILTER (m.step < change.step) AS others_before, AVG(others) FILTER (m.step >= change.step) AS others
        FROM (SELECT *, (cpu_wait_ns - LAG(cpu_wait_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS waited, (cpu_ns - LAG(cpu_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS own,
            (machine_cpu_ns - cpu_ns - LAG(machine_cpu_ns - cpu_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS others FROM process.memory WINDOW w AS (ORDER BY t_ns)) m, change)
), judged AS (
    SELECT COALESCE(LEAST(now.forward / old.forward, now.backward / old.backward, now.optimizer / old.optimizer) > 1 + 0.3 * (old.rate / now.rate - 1), false) OR busier AS alike,
        busier AND busy > 0.5 * busy_before * old.rate / now.rate OR COALESCE((1 - waited) / (1 - waited_before) < 1 - 0.5 * (1 - now.rate / old.rate), false)
            OR COALESCE(LN(own_before / NULLIF(own, 0)) >= 0.5 * LN(old.rate / now.rate) AND others - others_before >= 0.5 * (own_before - own) AND wanted, false)
            OR COALESCE(waited >= $starved AND COALESCE(cost < SQRT(old.rate / now.rate) * cost_before, true), false) AS explained, now.best < (1 - $severe) * old.rate AS severe FROM now, old, machine
), thawed AS (
    SELECT COUNT(*) > 0 AS yes FROM thaws, change WHERE thaws.before <= change.step + $block AND thaws.step >= change.step - $block
)
SELECT NULL AS unknown, change.step, now.rate AS now, old.rate AS before, 1 - now.rate / old.rate AS drop,
    CASE WHEN by_tokens THEN 'tokens' ELSE 'samples' END AS unit, 1e3 * now.wall AS wall_now, 1e3 * old.wall AS wall_before, now.size AS size_now, old.size AS size_before,
    CASE WHEN more > 0.5 * (now.wall - old.wall) AND now.wall > old.wall THEN format('; most of it in {}, by {:.1f} ms a step', phase, 1e3 * more) ELSE '' END AS "where",
    (SELECT COUNT(*) FROM seen) AS seen, busy_before, busy, waited_before, waited, own_before, own, others_before, others, CASE WHEN thawed.yes OR explained OR alike AND NOT severe THEN 'info' WHEN alike OR NOT severe THEN 'notice' ELSE 'alarm' END AS severity
FROM now, old, ends, change, machine, judged, phases, thawed WHERE now.n >= 3 AND old.n >= 5 AND now.best < (1 - $drop) * old.rate
UNION ALL BY NAME
SELECT 'samples and tokens of too few steps are known' AS unknown FROM old WHERE n < 5
