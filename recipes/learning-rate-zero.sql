-- title = "learning rate is zero"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 350
-- scope = "rank"
-- needs = "the learning rate of a few hundred steps"
-- what = "learning rate has been {lr:.3g} since step {step}, but training continues: nothing is learned"
-- why = [
--   "its highest value was {highest:.3g}; the last {small} steps used less than a millionth of that",
--   "{schedule}",
-- ]
-- next = [
--   "probe {endpoint} lr",
--   "probe {endpoint} query \"SELECT step // 100 * 100 AS step, MIN(lr), MAX(lr) FROM python.steps GROUP BY 1 ORDER BY 1\"",
--   "probe {endpoint} stop --checkpoint last.pt",
-- ]
-- false_positives = "the last one or two steps at 0, as in cosine schedules; a first parameter group frozen by a rate of 0 while others train (left out)"
-- explains = ["layer-not-learning", "plateau", "slow-decrease"]
-- dated = true
-- [parameters.steps]
-- value = 50
-- unit = "steps"
-- source = "ours"
-- [parameters.ratio]
-- value = 1e-6
-- unit = "ratio of the highest rate"
-- source = "ours; practice calls a rate below 1e-8 too low in any case"
-- [zone]
-- of = "lr"
-- words = "not below {ratio:.3g} of the highest rate"
-- sql = '''
-- SELECT $from_ms AS ms, $ratio * MAX(lr) AS low, NULL AS high FROM python.steps WHERE rank = $rank AND isfinite(lr) HAVING COUNT(*) >= $steps
-- '''
WITH seen AS (
    SELECT step, lr, MAX(lr) FILTER (isfinite(lr)) OVER () AS highest FROM python.steps WHERE lr IS NOT NULL
), alive AS (
    SELECT COALESCE(MAX(step) FILTER (isfinite(lr) AND lr > $ratio * highest), -1) AS last FROM seen
), dead AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(lr) AS lr, MAX(highest) AS highest FROM seen, alive WHERE step > last
), stepped AS (
    SELECT ARG_MAX(scheduler, t_ns) AS scheduler, ARG_MAX(count, t_ns) AS count, ARG_MAX(length, t_ns) AS length, ARG_MAX(last_step, t_ns) AS last_step FROM python.schedulers WHERE leads
), elsewhere AS (
    -- The rate of a step is that of the first group: others may train, or another optimizer.
    SELECT COUNT(*) > 0 AS trains FROM python.optimizers o, dead WHERE o.step >= dead.step AND o.lr > $ratio * GREATEST(COALESCE(highest, 0), 1e-9)
)
SELECT NULL AS unknown, step, lr, highest, n, CASE WHEN isfinite(lr) THEN n END AS small,
    CASE WHEN isfinite(lr) THEN 'a schedule that ends before training does: too few steps configured, or step() is called too often' || COALESCE(format(' ({} of length {:.0f} was stepped {} times in {} steps)', scheduler, length, count, last_step + 1), '') END AS schedule
FROM dead, elsewhere, stepped WHERE n >= $steps AND NOT trains
UNION ALL BY NAME
SELECT 'the learning rate of fewer than 50 steps is known' AS unknown FROM seen HAVING COUNT(*) < $steps
