-- title = "optimizer steps and backward calls do not match"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 208
-- scope = "rank"
-- needs = "steps of an optimizer, and for some checks the batches of a DataLoader"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "seen in the last {n} steps, up to step {last}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, micro_steps, loss, samples FROM python.steps ORDER BY step DESC LIMIT 20\"",
--   "probe {endpoint} query \"SELECT step, loader, epoch, COUNT(*) FROM python.batches GROUP BY ALL ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "loss terms with weights 1/n and a separate backward each (`info`); an optimizer designed to be stepped several times with one gradient; full-batch gradients on purpose"
-- explains = ["learning-rate-too-high", "learning-rate-too-low", "no-warm-up", "plateau", "slow-decrease", "oscillation"]
-- [parameters.least]
-- value = 20
-- unit = "steps"
-- source = "ours"
-- [parameters.share]
-- value = 0.9
-- unit = "ratio of the backwards"
-- source = "ours: something that happens nearly every time is not an accident"
-- [parameters.many]
-- value = 8
-- unit = "backwards per step"
-- source = "ours: fewer may be a small data set"
WITH seen AS (
    SELECT step, micro_steps, LEAD(micro_steps) OVER (ORDER BY step) AS next FROM python.steps WHERE micro_steps IS NOT NULL ORDER BY step DESC LIMIT 60
), twice AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, COUNT(*) FILTER (micro_steps > 0 AND next IS NOT NULL) AS made, COUNT(*) FILTER (micro_steps > 0 AND next = 0) AS again,
        COUNT(*) FILTER (micro_steps = 0) AS without FROM seen
), feeding AS (
    SELECT step, loader, MIN(epoch) AS epoch, MAX(epoch) AS last_epoch, MIN(place) AS place, COUNT(*) AS batches FROM python.batches WHERE state = 'done' AND epoch IS NOT NULL GROUP BY step, loader
), whole AS (
    SELECT f.step, f.loader, f.batches, f.epoch, s.micro_steps FROM feeding f JOIN python.steps s USING (step)
    WHERE s.micro_steps >= $many AND f.batches >= s.micro_steps AND f.epoch = f.last_epoch AND f.place = 0
), once AS (
    SELECT loader, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MEDIAN(micro_steps) AS micro_steps FROM whole GROUP BY loader
    HAVING COUNT(*) >= 2 AND COUNT(DISTINCT epoch) = COUNT(*) AND COUNT(*) >= 0.8 * (SELECT COUNT(*) - 1 FROM python.steps)
), parts AS (
    SELECT l.step, COUNT(*) AS losses, MIN(l.share) AS share, MAX(l.share) AS most, ANY_VALUE(s.micro_steps) AS micro_steps FROM python.losses l JOIN python.steps s USING (step)
    WHERE l.step > 2 AND l.share IS NOT NULL GROUP BY l.step
), divided AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, MODE(micro_steps) AS micro_steps, MODE(ROUND(1 / share)::BIGINT) AS divisor,
        COUNT(*) FILTER (losses = micro_steps AND most - share < 1e-6 AND ABS(1 / share - ROUND(1 / share)) < 1e-3) AS alike,
        COUNT(*) FILTER (losses = micro_steps AND ROUND(1 / share) <> micro_steps) AS apart, MAX(micro_steps) AS highest
    FROM parts WHERE micro_steps > 1
)
SELECT NULL AS unknown, 'twice' AS subject, format('the optimizer''s step is called {:.1f} times for each backward: the same gradient is applied again', n / made) AS fact,
    format('{} of {} steps found no backward since the step before', without, n) AS evidence, n, step, last
FROM twice WHERE n >= $least AND made > 0 AND again >= $share * made
UNION ALL BY NAME
SELECT NULL AS unknown, 'once' AS subject, format('the optimizer''s step is called once per epoch: {:.0f} backwards for one step', micro_steps) AS fact,
    format('each step covers one pass over {} from first to last batch; step and zero_grad may be outside the loop over the batches', loader) AS evidence, n, step, last FROM once
UNION ALL BY NAME
SELECT NULL AS unknown, 'divided' AS subject, 'info' AS severity, format('each loss is divided by {}, but {} of them are accumulated for one step: the gradient is {:.2g} times that of their mean', divisor, micro_steps, micro_steps / divisor::DOUBLE) AS fact,
    format('in {} of {} steps, from the graphs of their losses; the number of micro-steps and the divisor may come from two settings', apart, n) AS evidence, n, step, last
FROM divided WHERE n >= $least AND alike >= $share * n AND apart >= $share * n AND divisor > 1 AND divisor <> micro_steps AND highest <> divisor
UNION ALL BY NAME
SELECT format('{} steps are known, {} are needed', n, $least) AS unknown FROM twice WHERE n < $least AND NOT EXISTS (SELECT 1 FROM once)
