-- title = "backward runs repeatedly on the same loss"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 209
-- scope = "rank"
-- needs = "steps with two or more backward calls, each on a loss"
-- what = "backward runs {times:.3g} times on the same loss in each step: its gradients add up, as if the loss had {times:.3g} times its weight"
-- why = [
--   "in {same} of the last {n} steps with several backward calls, two in a row had exactly the same loss",
--   "for example {loss:.9g} twice in step {seen}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, micro_step, loss FROM python.losses ORDER BY step DESC, micro_step LIMIT 20\"",
--   "probe {endpoint} checkpoint before-restart.pt",
-- ]
-- false_positives = "gradient accumulation over copies of one batch"
-- explains = ["gradients-exploding", "learning-rate-too-high", "divergence", "clipping"]
-- [parameters.recent]
-- value = 100
-- unit = "steps with several backward calls"
-- source = "ours"
-- [parameters.least]
-- value = 20
-- unit = "steps with several backward calls"
-- source = "ours"
-- [parameters.share]
-- value = 0.95
-- unit = "ratio of those steps"
-- source = "ours: losses of different batches are bitwise equal only by accident"
WITH in_order AS (
    SELECT step, micro_step, loss, LAG(loss) OVER (PARTITION BY step ORDER BY micro_step) AS before FROM python.losses
    WHERE finite AND step IS NOT NULL
), steps AS (
    SELECT step, COUNT(*) AS calls, COUNT(DISTINCT loss) AS losses,
        BOOL_OR(loss = before AND loss <> 0) AS same, MAX(loss) FILTER (loss = before) AS loss
    FROM in_order GROUP BY step HAVING COUNT(*) > 1 ORDER BY step DESC LIMIT $recent
), counted AS (
    SELECT COUNT(*) AS n, COUNT(*) FILTER (same) AS same, AVG(calls / losses) AS times, MIN(step) FILTER (same) AS step,
        MAX(step) FILTER (same) AS seen, ARG_MAX(loss, step) FILTER (same) AS loss, COUNT(DISTINCT loss) AS different
    FROM steps
)
SELECT NULL AS unknown, * FROM counted WHERE n >= $least AND same >= $share * n AND different > n / 2
UNION ALL BY NAME
SELECT 'no loss of a backward call is known' AS unknown WHERE NOT EXISTS (SELECT 1 FROM python.losses)
