-- title = "batches are padded far too long"
-- severity = "notice"
-- symptoms = ["slow", "memory"]
-- order = 523
-- scope = "rank"
-- needs = "token-id inputs [N, T] of the model, from a few sampled steps"
-- what = "{padding:.0%} of all positions are padding: batches are {length} tokens long, their longest samples {longest:.0f}"
-- why = [
--   "input {name} of {module}, {shape} ({dtype}): in the median of {n} sampled batches, the {unused:.0f} positions at one end hold the same token in every sample ({least:.0f} in the fullest batch)",
--   "all {n} batches have the same fixed length {length}; attention and all per-position layers spend most of their time on padding",
--   "pad each batch to its own longest sample (pad_sequence, or padding=\"longest\"), or group samples of similar length",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, shape, unused_ratio, padding_ratio FROM python.model_inputs WHERE unused_ratio IS NOT NULL ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} profile --steps 3 -o slow.json",
-- ]
-- false_positives = "a fixed shape on purpose, for a compiled graph or an accelerator that needs it; long samples that occur in fewer than one in a hundred batches"
-- explains = ["low-mfu"]
-- [parameters.least]
-- value = 5
-- unit = "batches"
-- source = "ours: the median of five"
-- [parameters.samples]
-- value = 64
-- unit = "samples"
-- source = "ours: among only a few samples none may be long"
-- [parameters.share]
-- value = 0.5
-- unit = "ratio of the positions"
-- source = "ours: more than half of the work is on positions that no sample reaches; batches padded to their longest sample have none of these"
WITH given AS (
    SELECT *, CAST(shape AS BIGINT[]) AS sizes FROM python.model_inputs WHERE module <> 'batch' AND unused_ratio IS NOT NULL AND NOT COALESCE(gradless, false) AND shape IS NOT NULL AND max - min > 1
), newest AS (
    SELECT * FROM given QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) <= 64
), inputs AS (
    SELECT module, name, ANY_VALUE(dtype) AS dtype, ARG_MAX(shape, step) AS shape, MIN(step) AS step, COUNT(*) AS n, SUM(sizes[1]) AS samples, COUNT(DISTINCT sizes[2]) AS lengths, MAX(sizes[2]) AS length,
        MEDIAN(unused_ratio) AS unused_ratio, MIN(unused_ratio) AS least_ratio, MEDIAN(padding_ratio) AS padding FROM newest GROUP BY module, name
)
SELECT NULL AS unknown, module || ' ' || name AS subject, module, name, dtype, shape, step, n, length, padding, length * unused_ratio AS unused, length * least_ratio AS least, length * (1 - unused_ratio) AS longest
FROM inputs WHERE n >= $least AND samples >= $samples AND lengths = 1 AND unused_ratio >= $share
    -- The numbers of the parts of packed rows begin alike in every sample; the words beside them fill the rows.
    AND NOT EXISTS (SELECT 1 FROM inputs beside WHERE beside.module = inputs.module AND beside.length = inputs.length AND beside.name <> inputs.name AND beside.unused_ratio < $share)
QUALIFY ROW_NUMBER() OVER (ORDER BY padding DESC) = 1
UNION ALL BY NAME
SELECT format('token ids were sampled in {} steps, {} are needed', COUNT(DISTINCT step), $least) AS unknown FROM given HAVING COUNT(DISTINCT step) < $least
