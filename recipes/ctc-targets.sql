-- title = "targets that a CTC loss cannot reach"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 133
-- scope = "rank"
-- needs = "a CTC loss with its targets and lengths on the host, from a few steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "on average over the last {n} sampled steps, from step {step} to {last}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, function, shape, blank_ratio, short_ratio FROM python.loss_functions WHERE blank_ratio IS NOT NULL ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "targets that were padded with the blank, with lengths that count the padding: the same mistake; a few sequences that are too short in a large corpus (left out below the share)"
-- explains = ["plateau", "slow-decrease"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.blank]
-- value = 0.001
-- unit = "ratio of the targets"
-- source = "the blank stands for no label (Graves et al. 2006, section 3.1): no target is one"
-- [parameters.short]
-- value = 0.05
-- unit = "ratio of the sequences"
-- source = "ours: a few are usual in real corpora"
WITH seen AS (
    SELECT * FROM python.loss_functions WHERE blank_ratio IS NOT NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY function, layer ORDER BY step DESC) <= 8
), judged AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, AVG(blank_ratio) AS blank, AVG(short_ratio) AS short FROM seen GROUP BY function, layer HAVING COUNT(*) >= $least
), facts AS (
    SELECT 'blank' AS subject, 'the blank of the CTC loss is among its targets' AS fact,
        format('{:.1f} % of the targets have the number of the blank: this label is never read, and the loss can become negative; give the blank a number of its own, in the loss, the network and the decoder', 100 * blank) AS evidence, * FROM judged WHERE blank > $blank
    UNION ALL BY NAME
    SELECT 'short' AS subject, format('{:.0f} % of the sequences have fewer steps than targets', 100 * short) AS fact,
        'CTC needs at least one step for each target: the loss of these is infinite, or 0 with zero_infinity=True, and nothing is learned from them' AS evidence, * FROM judged WHERE short > $short
)
SELECT NULL AS unknown, * FROM facts
UNION ALL BY NAME
SELECT format('targets of a CTC loss were sampled on {} steps, {} are needed', COUNT(DISTINCT step), $least) AS unknown FROM seen HAVING COUNT(DISTINCT step) < $least AND COUNT(*) > 0
