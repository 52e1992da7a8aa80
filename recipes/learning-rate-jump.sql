-- title = "learning rate jumps"
-- severity = "notice"
-- symptoms = ["loss", "nan"]
-- order = 340
-- scope = "rank"
-- needs = "the learning rate of a few hundred steps"
-- what = "learning rate jumped from {before:.3g} to {lr:.3g} at step {step}, by a factor of {times:.1f}"
-- why = [
--   "it had not risen for {quiet} steps; the highest rate until then was {highest:.3g}",
--   "loss: {loss_before:.4g} before (median of 50 steps), {loss_after:.4g} after",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, lr, loss, grad_norm FROM python.steps WHERE step BETWEEN {step} - 5 AND {step} + 5 ORDER BY step\"",
--   "probe {endpoint} lr",
--   "probe {endpoint} lr --scale {back:.2g}",
-- ]
-- false_positives = "a rate raised on purpose: `info` unless the loss rises; warm restarts of a scheduler up to an earlier rate (SGDR, arXiv 1608.03983, where the loss rises for a while): `info` unless the loss does not recover"
-- explains = ["loss-spike", "divergence", "oscillation", "learning-rate-too-high", "learning-rate-zero", "gradients-exploding", "gradient-exploding-layer", "dead-units", "saturated-units", "plateau", "slow-decrease", "nan-origin", "loss-nan", "amp-overflow"]
-- dated = true
-- uses = ["trainings"]
-- [parameters.times]
-- value = 1.5
-- unit = "times"
-- source = "practice: a rate that rose by more than 1.5 times explains a spike (LLM training guides); ours: and it had not been rising before, as in a warm-up"
-- [parameters.quiet]
-- value = 20
-- unit = "steps without a rise"
-- source = "ours"
-- [zone]
-- of = "lr"
-- words = "up to {times:.3g} times the rate before, where it has not risen for {quiet} steps"
-- sql = '''
-- WITH rates AS (
--     SELECT t_ns // 1000000 AS ms, step, lr, begun, ROW_NUMBER() OVER (PARTITION BY begun ORDER BY step) AS i
--     FROM python.steps s ASOF JOIN trainings t ON s.rank = t.rank AND s.step >= t.begun WHERE s.rank = $rank AND lr IS NOT NULL
-- ), firsts AS (
--     SELECT MIN(ms) AS ms, ARG_MIN(begun, ms) AS begun, ARG_MIN(i, ms) AS i, MIN(step) AS step, MAX(step) AS last FROM rates WHERE ms >= $from_ms AND ms < $to_ms GROUP BY (ms - $from_ms) // $width_ms
-- ), before AS (
--     SELECT now.ms, now.begun, now.step, now.last, COUNT(lr) AS known, ARG_MAX(lr, rates.i) AS before, LIST(lr ORDER BY rates.i) = LIST_REVERSE_SORT(LIST(lr)) AS quiet
--     FROM (SELECT *, UNNEST(RANGE(1, $quiet + 2)) AS back FROM firsts) now LEFT JOIN rates ON rates.begun = now.begun AND rates.i = now.i - back GROUP BY now.ms, now.begun, now.step, now.last
-- )
-- SELECT ms, NULL AS low, CASE WHEN known > $quiet AND quiet AND before > 0 AND ms >= COALESCE(fell, 0)
--     AND NOT EXISTS (SELECT 1 FROM probe.actions a WHERE a.action = 'lr' AND a.step BETWEEN before.step - 2 AND before.last) THEN $times * before END AS high
-- FROM before LEFT JOIN (SELECT begun, MIN(ms) AS fell FROM (SELECT begun, ms, lr < LAG(lr) OVER (PARTITION BY begun ORDER BY i) AS less FROM rates) WHERE less GROUP BY begun) USING (begun)
-- '''
WITH seen AS (
    SELECT step, lr, loss, LAG(lr) OVER w AS before, MAX(lr) OVER (ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
    FROM python.steps WHERE lr IS NOT NULL AND step >= (SELECT MAX(begun) FROM trainings) WINDOW w AS (ORDER BY step)
), rises AS (
    SELECT *, lr > before AS rises FROM seen WHERE before IS NOT NULL
), quiet AS (
    SELECT *, COUNT(*) OVER w AS known, COALESCE(COUNT(*) FILTER (rises) OVER w, 0) AS risen FROM rises
    WINDOW w AS (ORDER BY step ROWS BETWEEN $quiet PRECEDING AND 1 PRECEDING)
), jump AS (
    SELECT * FROM quiet WHERE rises AND known >= $quiet AND risen = 0 AND before > 0 AND lr >= $times * before
        AND step NOT IN (SELECT step + d FROM probe.actions, range(3) t(d) WHERE action = 'lr' AND step IS NOT NULL)
        AND step >= COALESCE((SELECT MIN(step) FROM rises WHERE lr < before), 0)
    ORDER BY lr > 1.2 * highest DESC, step DESC LIMIT 1
), restarts AS (
    SELECT COUNT(*) > 0 AS designed FROM python.schedulers
    WHERE leads IS NOT FALSE AND scheduler IN ('CosineAnnealingWarmRestarts', 'CyclicLR')
), around AS (
    SELECT MEDIAN(s.loss) FILTER (s.step < jump.step) AS loss_before, MEDIAN(s.loss) FILTER (s.step >= jump.step) AS loss_after
    FROM jump JOIN python.steps s ON s.step BETWEEN jump.step - 50 AND jump.step + 50 WHERE isfinite(s.loss)
)
-- `info` until an optimizer was looked at since: before that, the rate may be one of another optimizer, in a training that begins.
SELECT NULL AS unknown, step, lr, before, lr / before AS times, highest, known AS quiet, loss_before, loss_after,
    CASE WHEN worse THEN before / lr END AS back, CASE WHEN worse AND COALESCE((SELECT MAX(step) FROM python.optimizers) >= judged.step, true) THEN 'notice' ELSE 'info' END AS severity
FROM (
    SELECT *, CASE WHEN designed AND lr <= 1.01 * highest THEN NOT COALESCE(isfinite(loss_after), false)
        ELSE COALESCE(loss_after > loss_before + 0.2 * ABS(loss_before), NOT COALESCE(isfinite(loss_after), false)) END AS worse
    FROM jump, around, restarts
) judged
UNION ALL BY NAME
SELECT 'the learning rate of fewer than 30 steps is known' AS unknown FROM seen HAVING COUNT(*) < 30
