-- title = "time outside of the training"
-- severity = "info"
-- symptoms = ["slow"]
-- order = 525
-- scope = "rank"
-- needs = "the phases of some fifty steps"
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
-- false_positives = "reinforcement learning and simulations, whose environments run there; data that are read without a DataLoader; validation that is as long as the training on purpose"
-- explains = ["low-mfu"]
-- [parameters.share]
-- value = 0.4
-- unit = "ratio of the time"
-- source = "ours: below, another phase takes more"
-- [parameters.least]
-- value = 0.002
-- unit = "s per step"
-- source = "ours: steps so short that the loop itself dominates them are left out"
WITH recent AS (
    SELECT *, wall_s - COALESCE(held_s, 0) AS own_s FROM python.steps WHERE other_s IS NOT NULL AND NOT COALESCE(sampled, false) ORDER BY step DESC LIMIT 200
), sums AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, SUM(own_s) AS wall, COALESCE(SUM(data_s), 0) / SUM(own_s) AS data, COALESCE(SUM(forward_s), 0) / SUM(own_s) AS forward, COALESCE(SUM(backward_s), 0) / SUM(own_s) AS backward,
        COALESCE(SUM(optimizer_s), 0) / SUM(own_s) AS optimizer, COALESCE(SUM(eval_s), 0) / SUM(own_s) AS eval, COALESCE(SUM(checkpoint_s), 0) / SUM(own_s) AS saving, COALESCE(SUM(comm_s), 0) / SUM(own_s) AS comm, SUM(other_s) / SUM(own_s) AS other,
        COALESCE(MEDIAN(other_s), 0) AS usual FROM recent
)
SELECT NULL AS unknown, 'other' AS subject, sums.*, format('{:.0f} % of the time is spent outside of loading, forward, backward and the optimizer''s step: {:.1f} ms of each step', 100 * other, 1000 * usual) AS fact,
    'the script''s own code between these: logging, statistics, copies to Python numbers, metrics, reading data without a DataLoader' AS hint
FROM sums WHERE n >= 50 AND other >= $share AND usual >= $least
UNION ALL BY NAME
SELECT NULL AS unknown, 'evaluation' AS subject, sums.*, format('{:.0f} % of the time is spent in evaluation, not in training', 100 * eval) AS fact, 'evaluate less often, or on a part of the data' AS hint
FROM sums WHERE n >= 50 AND eval >= $share
UNION ALL BY NAME
SELECT NULL AS unknown, 'saving' AS subject, sums.*, format('{:.0f} % of the time is spent in saving checkpoints, not in training', 100 * saving) AS fact, 'save less often' AS hint
FROM sums WHERE n >= 50 AND saving >= $share
UNION ALL BY NAME
SELECT 'phases of fewer than 50 steps are known' AS unknown FROM sums WHERE n < 50
