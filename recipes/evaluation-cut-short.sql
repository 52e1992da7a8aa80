-- title = "evaluation uses only part of the validation data"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 68
-- scope = "rank"
-- needs = "three evaluations with a DataLoader whose sampler has a known number of samples"
-- what = "{fact}"
-- why = [
--   "{looks} evaluations over {loader}, from step {step} to {last}: {evaluated:.0f} of its {whole:.0f} samples and {batches} batch(es) in the median evaluation; none read all samples",
--   "{evidence}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, kind, loader, batches, samples, whole_samples, recognised_by FROM python.intervals ORDER BY t_ns DESC LIMIT 10\"",
-- ]
-- false_positives = "a few batches on purpose, to save time or to inspect outputs (`info` with more than `few` batches, or if more than half is read)"
-- [parameters.evaluations]
-- value = 3
-- unit = "evaluations"
-- source = "ours: a sanity check before training reads a few batches once"
-- [parameters.share]
-- value = 0.95
-- unit = "ratio of the samples"
-- source = "ours: a dropped last batch is usually less than the rest"
-- [parameters.half]
-- value = 0.5
-- unit = "ratio of the samples"
-- source = "ours: drop_last cannot leave out more than half"
-- [parameters.few]
-- value = 2
-- unit = "batches"
-- source = "practice: intended limits (limit_val_batches, eval_iters) are 10 or more; a `return` or `break` inside the loop leaves 1"
WITH held AS (
    SELECT step, t_ns, loader, batches, samples::DOUBLE AS samples, whole_samples::DOUBLE AS whole FROM python.intervals
    WHERE kind = 'evaluation' AND state = 'done' AND loader IS NOT NULL AND samples IS NOT NULL AND whole_samples IS NOT NULL
), judged AS (
    SELECT loader, COUNT(*) AS looks, MIN(step) AS step, MAX(step) AS last, CAST(MEDIAN(batches) AS BIGINT) AS batches, MEDIAN(samples) AS evaluated, MAX(whole) AS whole
    FROM held GROUP BY loader HAVING COUNT(*) >= $evaluations AND MAX(samples / whole) < $share
)
SELECT NULL AS unknown, loader AS subject, judged.*, CASE WHEN batches <= $few AND evaluated <= $half * whole THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN batches = 1 THEN format('each evaluation stops after the first batch of its loader: {:.0f} of {:.0f} validation samples', evaluated, whole)
        ELSE format('each evaluation reads only a part of its loader: {:.0f} of {:.0f} validation samples, {} batches', evaluated, whole, batches) END AS fact,
    CASE WHEN evaluated <= $half * whole THEN 'a return or break inside the loop over the loader ends it there; the score covers only these samples, and so does any model selection based on it' ELSE 'drop_last in an evaluation loader leaves out the samples of the last batch' END AS evidence
FROM judged
UNION ALL BY NAME
SELECT format('{} evaluations over a loader of known length, {} are needed', (SELECT COUNT(*) FROM held), $evaluations) AS unknown WHERE (SELECT COUNT(*) FROM held) < $evaluations
