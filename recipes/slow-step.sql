-- title = "steps became slower"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 510
-- scope = "rank"
-- needs = "a few hundred steps, before and after"
-- what = "steps take {now_ms:.1f} ms, {times:.2f} times the {before_ms:.1f} ms before step {step}: {blame}"
-- why = [
--   "{phase}: {phase_now:.1f} ms now, {phase_before:.1f} ms before; that is {phase_share:.0%} of the slowdown",
--   "in ms, before and now: data {data}, forward {forward}, backward {backward}, optimizer {optimizer}, communication {comm}, other {other}",
--   "tokens in a batch: {tokens_before:.0f} before, {tokens_now:.0f} now",
--   "on this machine {busy_before:.0f} threads wanted a CPU before, {busy:.0f} since",
--   "the training thread waited for a CPU {waited_before:.0%} of the time before, {waited:.0%} since",
--   "CPUs in use: by this job {own_before:.1f} before, {own:.1f} since; by all others {others_before:.1f} before, {others:.1f} since",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step // 20 * 20 AS step, MEDIAN(wall_s), MEDIAN(data_s), MEDIAN(forward_s), MEDIAN(backward_s), MEDIAN(optimizer_s), MEDIAN(other_s) FROM python.steps GROUP BY 1 ORDER BY 1 DESC LIMIT 20\"",
--   "probe {endpoint} backtrace",
--   "probe {endpoint} profile --steps 3 -o slow.json",
-- ]
-- false_positives = "larger batches, or parameters that are no longer frozen (`info`); another job on the same machine that slows all phases equally (`info` below four times, or where other processes fill the machine), or whose extra runnable threads, CPU waits or CPU use explain half of the slowdown (`info`); several optimizers that take turns (`info`)"
-- explains = ["throughput-drop", "low-mfu"]
-- effect = true
-- uses = ["trainings", "adversarial", "thaws"]
-- [parameters.times]
-- value = 1.3
-- unit = "times"
-- source = "practice: 10 % either way is healthy, twice is an alarm; 1.3 is what people notice"
-- [parameters.quick]
-- value = 0.2
-- unit = "quantile"
-- source = "ours: the fastest steps of a block are those not delayed by other work on the machine"
-- [parameters.apart]
-- value = 0.4
-- unit = "ratio"
-- source = "ours: a phase is the cause when the others together account for less than this share of the slowdown"
-- [parameters.recent]
-- value = 60
-- unit = "steps"
-- source = "ours"
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
-- [parameters.crowded]
-- value = 0.25
-- unit = "ratio of the machine's CPU time"
-- source = "ours: all phases are slower where other processes take that much and less than a tenth is idle: the machine is shared, and no phase is to blame"
WITH ends AS (
    SELECT MAX(step) AS last, MAX(t_ns) AS last_ns, MIN(step) AS first FROM python.steps
), seen AS (
    SELECT step, wall_s - COALESCE(held_s, 0) - COALESCE(eval_s, 0) - COALESCE(checkpoint_s, 0) AS wall_s, data_s, forward_s, backward_s, optimizer_s, comm_s, other_s, tokens,
        (last - step) // $block AS ago, t_ns FROM python.steps, ends, (SELECT MAX(begun) AS begun FROM trainings)
    WHERE step > GREATEST(ends.first, begun) + 10 AND NOT COALESCE(sampled, false) AND wall_s > 0
), blocks AS (
    SELECT ago, ago < $recent // $block OR COALESCE(MAX(t_ns) > ANY_VALUE(last_ns) - 1e9 * $lasts, false) AS lately, MIN(step) AS step, QUANTILE_CONT(wall_s, $quick) AS wall, MEDIAN(tokens) AS tokens FROM seen, ends GROUP BY ago HAVING COUNT(*) >= $block / 2
), now AS (
    SELECT MIN(wall) AS wall, MEDIAN(wall) AS usual, COUNT(*) AS n FROM blocks WHERE lately
), old AS (
    SELECT LEAST(QUANTILE_CONT(wall, 0.25), MEDIAN(wall) FILTER (ago > oldest - 5)) AS wall, COUNT(*) AS n
    FROM blocks, (SELECT MAX(ago) AS oldest FROM blocks) WHERE NOT lately
), since AS (
    SELECT COALESCE(MIN(ago), 1000000) AS ago FROM blocks, now, old WHERE blocks.wall < old.wall + 0.4 * (now.usual - old.wall)
), steady AS (
    SELECT MEDIAN(wall) AS wall, COALESCE(1.4826 * MAD(wall), 0) AS spread, COUNT(*) AS n FROM blocks, since WHERE blocks.ago >= since.ago
), change AS (
    SELECT MIN(step) AS step FROM blocks, since WHERE blocks.ago < since.ago
), parts AS (
    SELECT seen.step >= change.step AS after, MEDIAN(wall_s) AS wall, MEDIAN(data_s) AS data, MEDIAN(forward_s) AS forward, MEDIAN(backward_s) AS backward,
        MEDIAN(optimizer_s) AS optimizer, MEDIAN(comm_s) AS comm, MEDIAN(other_s) AS other, MEDIAN(tokens) AS tokens
    FROM seen, change GROUP BY after
), phases AS (
    SELECT u.name AS phase, b.v AS before, a.v AS now
    FROM (SELECT unnest(['waiting for data', 'forward', 'backward', 'the optimizer', 'communication', 'other (logging, clipping, the loop itself)']) AS name, unnest([1, 2, 3, 4, 5, 6]) AS i) u
    JOIN (SELECT unnest([data, forward, backward, optimizer, comm, other]) AS v, unnest([1, 2, 3, 4, 5, 6]) AS i FROM parts WHERE NOT after) b USING (i)
    JOIN (SELECT unnest([data, forward, backward, optimizer, comm, other]) AS v, unnest([1, 2, 3, 4, 5, 6]) AS i FROM parts WHERE after) a USING (i)
), sides AS (
    SELECT b.wall AS before, a.wall AS now, a.wall / b.wall AS times, a.tokens AS tokens_now, b.tokens AS tokens_before,
        format('{:.1f} {:.1f}', 1e3 * COALESCE(b.data, 0), 1e3 * COALESCE(a.data, 0)) AS data, format('{:.1f} {:.1f}', 1e3 * COALESCE(b.forward, 0), 1e3 * COALESCE(a.forward, 0)) AS forward,
        format('{:.1f} {:.1f}', 1e3 * COALESCE(b.backward, 0), 1e3 * COALESCE(a.backward, 0)) AS backward, format('{:.1f} {:.1f}', 1e3 * COALESCE(b.optimizer, 0), 1e3 * COALESCE(a.optimizer, 0)) AS optimizer,
        format('{:.1f} {:.1f}', 1e3 * COALESCE(b.comm, 0), 1e3 * COALESCE(a.comm, 0)) AS comm, format('{:.1f} {:.1f}', 1e3 * COALESCE(b.other, 0), 1e3 * COALESCE(a.other, 0)) AS other
    FROM parts a, parts b WHERE a.after AND NOT b.after
), worst AS (
    SELECT phase, before, now FROM phases WHERE now IS NOT NULL AND before IS NOT NULL ORDER BY now - before DESC LIMIT 1
), judged AS (
    SELECT sides.*, change.step, worst.phase, worst.before AS phase_before, worst.now AS phase_now,
        (worst.now - worst.before) / (sides.now - sides.before) AS phase_share, COALESCE((sides.now - worst.now) / NULLIF(sides.before - worst.before, 0) <= 1 + $apart * (sides.times - 1), false) AS alone,
        COALESCE(tokens_now > 1.1 * tokens_before AND tokens_now / tokens_before > times / 1.2, false) AS larger, busy_before, busy,
        -- Backward goes deeper where more parameters require a gradient.
        EXISTS (SELECT 1 FROM thaws, change c WHERE thaws.before <= c.step + $block AND thaws.step >= c.step - $block) AS thawed,
        COALESCE(busy > 1.3 * busy_before + 1 AND busy > 0.5 * busy_before * sides.times, false)
            OR COALESCE((1 - waited) / (1 - waited_before) < 1 - 0.5 * (1 - 1 / sides.times), false)
            OR COALESCE(LN(own_before / NULLIF(own, 0)) >= 0.5 * LN(sides.times) AND others - others_before >= 0.5 * (own_before - own) AND wanted, false)
            OR COALESCE(waited >= $starved AND COALESCE(cost < SQRT(sides.times) * cost_before, true), false) AS machine, waited_before, waited, own_before, own, others_before, others,
        COALESCE(others / NULLIF(others + own + idle, 0) >= $crowded AND idle / NULLIF(others + own + idle, 0) < 0.1, false) AS crowded
    FROM sides LEFT JOIN worst ON true, change, now, old, steady, (
        SELECT MEDIAN(runnable) FILTER (m.step < change.step) AS busy_before, MEDIAN(runnable) FILTER (m.step >= change.step) AS busy, AVG(runnable) FILTER (m.step >= change.step) >= AVG(runnable) FILTER (m.step < change.step) AS wanted,
            MEDIAN(waited) FILTER (m.step < change.step) AS waited_before, MEDIAN(waited) FILTER (m.step >= change.step) AS waited,
            (MAX(cpu_ns) FILTER (m.step < change.step) - MIN(cpu_ns) FILTER (m.step < change.step)) / NULLIF(MAX(m.step) FILTER (m.step < change.step) - MIN(m.step) FILTER (m.step < change.step), 0) AS cost_before,
            (MAX(cpu_ns) FILTER (m.step >= change.step) - MIN(cpu_ns) FILTER (m.step >= change.step)) / NULLIF(MAX(m.step) FILTER (m.step >= change.step) - MIN(m.step) FILTER (m.step >= change.step), 0) AS cost,
            AVG(own) FILTER (m.step < change.step) AS own_before, AVG(own) FILTER (m.step >= change.step) AS own, AVG(others) FILTER (m.step < change.step) AS others_before, AVG(others) FILTER (m.step >= change.step) AS others, AVG(idle) FILTER (m.step >= change.step) AS idle
        FROM (SELECT *, (machine_idle_ns - LAG(machine_idle_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS idle, (cpu_wait_ns - LAG(cpu_wait_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS waited, (cpu_ns - LAG(cpu_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS own,
            (machine_cpu_ns - cpu_ns - LAG(machine_cpu_ns - cpu_ns) OVER w) / NULLIF(t_ns - LAG(t_ns) OVER w, 0) AS others FROM process.memory WINDOW w AS (ORDER BY t_ns)) m, change)
    WHERE now.n >= $recent // $block AND old.n >= 5 AND now.wall > $times * old.wall AND now.wall - steady.wall > 3 * steady.spread AND now.wall > $times * steady.wall AND steady.n >= 3 AND sides.times >= 1.2
)
SELECT NULL AS unknown, step, times, 1e3 * now AS now_ms, 1e3 * before AS before_ms, phase, 1e3 * phase_now AS phase_now, 1e3 * phase_before AS phase_before, phase_share,
    data, forward, backward, optimizer, comm, other, CASE WHEN larger THEN tokens_before END AS tokens_before, tokens_now, busy_before, busy, waited_before, waited, own_before, own, others_before, others,
    CASE WHEN larger THEN 'the batches became larger' WHEN thawed THEN 'parameters that were frozen are trained since then' WHEN phase IS NULL THEN 'phases are not known'
        WHEN machine THEN 'the machine has more to do'
        WHEN alone THEN format('{} does', phase)
        ELSE 'all phases are slower, as on a shared or throttled machine' END AS blame,
    CASE WHEN larger OR thawed OR machine OR (NOT alone AND (times < 4 OR crowded OR adversarial.yes)) THEN 'info' ELSE 'notice' END AS severity
FROM judged, adversarial
UNION ALL BY NAME
SELECT 'too few steps to compare' AS unknown FROM old WHERE n < 5
