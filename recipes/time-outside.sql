-- title = "time outside of training"
-- severity = "info"
-- symptoms = ["slow"]
-- order = 525
-- scope = "rank"
-- needs = "the phases of about fifty steps"
-- what = "{fact}"
-- why = [
--   "sums over the last {n} steps: {wall:.2f} s, of which loading {data:.0%}, forward {forward:.0%}, backward {backward:.0%}, the optimizer's steps {optimizer:.0%}, evaluation {eval:.0%}, saving {saving:.0%}, collectives called by the program {comm:.0%}, the rest {other:.0%}",
--   "{hint}",
-- ]
-- next = [
--   "probe {endpoint} backtrace",
--   "probe {endpoint} profile --steps 3 -o slow.json",
--   "probe {endpoint} query \"SELECT step, kind, duration_s, recognised_by FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "hour-long steps, each worth a checkpoint (its share is small); reinforcement learning and simulations, whose environments run there; data read without a DataLoader; validation as long as training on purpose"
-- explains = ["low-mfu"]
-- [parameters.share]
-- value = 0.4
-- unit = "ratio of the time"
-- source = "ours: below this, another phase may take more"
-- [parameters.saved]
-- value = 0.1
-- unit = "ratio of the time"
-- source = "practice: saving should take 1 % to 5 % of the time; the Young-Daly optimum is 1.3 % with 10 s per checkpoint and one failure per 8 h"
-- [parameters.known]
-- value = 0.02
-- unit = "ratio of the time"
-- source = "as above: `info` from here on"
-- [parameters.often]
-- value = 10.0
-- unit = "steps between two checkpoints"
-- source = "practice: at least a hundred steps apart, usually one per epoch or half hour"
-- [parameters.least]
-- value = 0.002
-- unit = "s per step"
-- source = "ours: steps so short that the loop itself dominates them are left out"
WITH recent AS (
    SELECT *, wall_s - COALESCE(held_s, 0) AS own_s FROM python.steps WHERE other_s IS NOT NULL AND NOT COALESCE(sampled, false) ORDER BY step DESC LIMIT 200
), sums AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, SUM(own_s) AS wall, COALESCE(SUM(data_s), 0) / SUM(own_s) AS data, COALESCE(SUM(forward_s), 0) / SUM(own_s) AS forward, COALESCE(SUM(backward_s), 0) / SUM(own_s) AS backward,
        COALESCE(SUM(optimizer_s), 0) / SUM(own_s) AS optimizer, COALESCE(SUM(eval_s), 0) / SUM(own_s) AS eval, COALESCE(SUM(checkpoint_s), 0) / SUM(own_s) AS saving, COALESCE(SUM(comm_s), 0) / SUM(own_s) AS comm, SUM(other_s) / SUM(own_s) AS other,
        COALESCE(MEDIAN(other_s), 0) AS usual FROM recent
), saves AS (
    SELECT COUNT(*) AS count, MEDIAN(duration_s) AS usual_s, ARG_MAX(recognised_by, i.t_ns) AS "by", ANY_VALUE(sums.n) AS steps, ANY_VALUE(sums.n) / GREATEST(COUNT(DISTINCT i.step), 1) AS every, COALESCE(COUNT(DISTINCT i.step) >= 5 AND ANY_VALUE(sums.n) / COUNT(DISTINCT i.step) <= $often, false) AS often
    FROM python.intervals i, sums WHERE kind = 'checkpoint' AND state = 'done' AND i.step BETWEEN sums.step AND sums.last
)
SELECT NULL AS unknown, 'other' AS subject, sums.*, format('{:.0f} % of the time is spent outside of data loading, forward, backward and the optimizer step: {:.1f} ms of each step', 100 * other, 1000 * usual) AS fact,
    'the script''s own code in between: logging, statistics, .item() and other copies to Python numbers, metrics, reading data without a DataLoader' AS hint
FROM sums WHERE n >= 50 AND other >= $share AND usual >= $least
UNION ALL BY NAME
SELECT NULL AS unknown, 'evaluation' AS subject, sums.*, format('{:.0f} % of the time is spent in evaluation, not in training', 100 * eval) AS fact, 'evaluate less often, or on a part of the data' AS hint
FROM sums WHERE n >= 50 AND eval >= $share
UNION ALL BY NAME
SELECT NULL AS unknown, 'saving' AS subject, sums.*, format('{:.0f} % of the time is spent in saving checkpoints, not in training', 100 * saving) AS fact, 'save less often' AS hint
FROM sums, saves WHERE n >= 50 AND saving >= $share AND NOT often
UNION ALL BY NAME
SELECT NULL AS unknown, 'saving' AS subject, sums.*, format('a checkpoint is written {}: {:.0f} % of the time goes into saving', CASE WHEN every < 1.5 THEN 'after every step' ELSE format('every {:.0f} steps', every) END, 100 * saving) AS fact,
    format('{} checkpoints of {:.0f} ms each in {} steps (recognised by {}): save every few hundred steps, or every half hour', count, 1000 * usual_s, steps, "by") AS hint, CASE WHEN saving >= $saved THEN 'notice' ELSE 'info' END AS severity
FROM sums, saves WHERE n >= 50 AND often AND saving >= $known
UNION ALL BY NAME
SELECT 'phases of fewer than 50 steps are known' AS unknown FROM sums WHERE n < 50
