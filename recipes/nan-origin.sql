-- title = "origin of a NaN or infinity"
-- severity = "alarm"
-- symptoms = ["nan", "loss", "data", "gradients"]
-- order = 130
-- scope = "job"
-- needs = "NaN detection (PROBE_INSTRUMENTS with `nonfinite` and `losses`), and a NaN or infinity"
-- what = "{made} began in {direction_text}{place} in step {step}{micro}{because}"
-- why = [
--   "{evidence}",
--   "operation {op}",
--   "batch of {loader}: samples {indices}",
--   "samples whose input data contain NaN or infinity: {bad_samples}",
--   "may have this effect, by the source (that its argument had such a value was not seen): {suspects}",
--   "noticed by the {seen_by} of step {seen_step}",
--   "learning rate {lr:.3g}",
--   "{outcome}",
-- ]
-- next = [
--   "probe {endpoint} save-batch batch.pt",
--   "probe {endpoint} query \"SELECT step, micro_step, direction, module, param, op, cause, indices, inputs, evidence FROM python.nonfinite ORDER BY t_ns\"",
--   "probe {endpoint} skip-nonfinite on",
-- ]
-- false_positives = "a program that makes a loss infinite on purpose and skips that step itself"
-- explains = ["loss-nan", "optimizer-state", "amp-overflow"]
-- dated = true
-- [parameters.past]
-- value = 1000
-- unit = "steps"
-- source = "ours: an event with finite losses for longer than this is over; it stays in the answer with its step"
WITH after AS (
    SELECT MAX(step) AS last, MAX(step) FILTER (isfinite(loss)) AS good FROM python.losses
), events AS (
    SELECT *, COUNT(*) FILTER (cause IS DISTINCT FROM 'from another rank') OVER (PARTITION BY COALESCE(seen_step, step)) AS own
    FROM python.nonfinite
), known AS (
    SELECT events.*, last, good, COALESCE(good >= last - 3, false) AS survived, COALESCE(seen_step > good, good IS NULL, true) AS since,
        MAX(seen_step) OVER () AS newest, MAX(COALESCE(seen_step > good, good IS NULL, true)) OVER () AS any_since
    FROM events, after WHERE own = 0 OR cause IS DISTINCT FROM 'from another rank'
), judged AS (
    -- While losses are bad: the events since the last finite one, or else the last before it, which has not ended.
    SELECT *, NOT survived AND (since OR (NOT any_since AND seen_step IS NOT DISTINCT FROM newest)) AS lasts FROM known
), batches AS (
    SELECT rank, step, ARG_MAX(samples, t_ns) AS samples FROM python.batches WHERE samples IS NOT NULL GROUP BY ALL
), usual AS (
    SELECT rank, MEDIAN(samples) AS usual FROM batches GROUP BY rank
), source AS (
    SELECT array_to_string(list(said || ' (' || parse_filename(file) || ':' || line || ')' ORDER BY file, line)[:3], '; ') AS suspects,
        array_to_string(list(parse_filename(file) || ':' || line ORDER BY file, line)[:3], ' or ') AS places
    FROM (SELECT DISTINCT file, line, said FROM python.code WHERE area = 'numerics')  -- each rank has the rows of the program
), shown AS (
    SELECT * FROM judged WHERE direction IS DISTINCT FROM 'unknown' ORDER BY lasts DESC, CASE WHEN lasts THEN t_ns ELSE -t_ns END LIMIT 3
)
SELECT
    NULL AS unknown, event_id AS subject, step, rank,
    CASE kind WHEN 'nan' THEN 'NaN' ELSE 'an infinity' END AS made,
    CASE direction
        WHEN 'data' THEN 'the data' WHEN 'forward' THEN 'the forward' WHEN 'loss' THEN 'the computation of the loss'
        WHEN 'backward' THEN 'the backward' WHEN 'optimizer' THEN 'the step of the optimizer'
        WHEN 'parameter' THEN 'a weight' ELSE 'a place that is not known'
    END AS direction_text,
    CASE WHEN direction IN ('optimizer', 'parameter') AND param IS NOT NULL THEN ' at ' || param
         WHEN module IS NOT NULL THEN ' of ' || module ELSE '' END AS place,
    CASE WHEN micro_step > 0 THEN ', micro step ' || micro_step ELSE '' END AS micro,
    CASE WHEN cause IS NULL AND kind = 'nan' AND direction IN ('forward', 'loss') AND samples = 1 AND usual > 1
             THEN format(': its batch has one sample (usual: {:.0f}), and a standard deviation or variance over one value is NaN', usual)
         WHEN cause IS NULL AND direction = 'backward' AND module IS NULL AND places <> '' THEN ', perhaps at ' || places
         WHEN cause IS NULL THEN '' WHEN cause = direction THEN '' ELSE ': ' || cause END AS because,
    CASE WHEN direction = 'backward' AND module IS NULL AND cause IS NULL THEN suspects END AS suspects,
    replace(evidence, chr(10), '; ') AS evidence, op, loader, indices, bad_samples, seen_by, seen_step, lr,
    CASE WHEN last > seen_step AND good > seen_step THEN 'losses have been finite again since'
         WHEN last > seen_step THEN 'no loss has been finite since' END AS outcome,
    CASE WHEN lasts THEN 'alarm' ELSE 'notice' END AS severity,
    COALESCE(NOT lasts AND seen_step < last - $past, false) AS over
FROM shown LEFT JOIN batches USING (rank, step) LEFT JOIN usual USING (rank), source
UNION ALL BY NAME
SELECT format('a NaN or an infinity was seen in step {}, but not where it began: {}', seen_step, replace(evidence, chr(10), '; ')) AS unknown
FROM judged WHERE direction = 'unknown' AND lasts QUALIFY ROW_NUMBER() OVER (ORDER BY t_ns) = 1
