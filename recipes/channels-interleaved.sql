-- title = "image channels are mixed"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 129
-- scope = "rank"
-- needs = "the model's inputs from a few sampled steps"
-- what = "the channels of the images are mixed: in {shape}, values {channels} places apart resemble each other more (correlation {channel_r:.2f}) than neighbours do ({neighbour_r:.2f})"
-- why = [
--   "in a picture, the correlation falls with the distance; here it is higher every {channels} places, as in memory where the {channels} channels of each pixel lie beside each other",
--   "input {name} of {module}, in all of the last {n} sampled steps, from step {step} to {last}: reshape() or view() gave pixels of interleaved channels the shape of planes",
--   "use permute(2, 0, 1), or permute(0, 3, 1, 2) for a batch, in place of reshape()",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, module, name, shape, neighbour_r, channel_r FROM python.model_inputs WHERE module <> 'batch' ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "images with a pattern that repeats every few pixels, as many as there are channels; channels that are not colours (boards and grids of fewer than 16 fields a side are left out)"
-- explains = ["plateau", "slow-decrease", "train-validation-gap"]
-- [parameters.least]
-- value = 5
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.side]
-- value = 16
-- unit = "pixels"
-- source = "ours: a picture has more; a board of 8 fields may repeat itself every few fields by chance"
-- [parameters.alike]
-- value = 0.4
-- unit = "correlation"
-- source = "ours: pictures have more at a distance of one pixel"
-- [parameters.more]
-- value = 0.1
-- unit = "correlation"
-- source = "ours: in a picture the difference is negative"
WITH seen AS (
    SELECT *, TRY_CAST(shape AS BIGINT[])[2] AS channels FROM python.model_inputs WHERE module <> 'batch' AND NOT COALESCE(gradless, false) AND neighbour_r IS NOT NULL
        AND LEAST(TRY_CAST(shape AS BIGINT[])[3], TRY_CAST(shape AS BIGINT[])[4]) >= $side
    QUALIFY ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step DESC) <= 6
)
SELECT NULL AS unknown, module || ' ' || name AS subject, module, name, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, MAX(channels) AS channels,
    MEDIAN(neighbour_r) AS neighbour_r, MEDIAN(channel_r) AS channel_r
FROM seen GROUP BY module, name
HAVING COUNT(*) >= $least AND COUNT(channel_r) = COUNT(*) AND MIN(channel_r) >= $alike AND MIN(channel_r - neighbour_r) >= $more
UNION ALL BY NAME
SELECT format('the inputs were sampled on {} steps, {} are needed', COUNT(DISTINCT step), $least) AS unknown FROM python.model_inputs HAVING COUNT(DISTINCT step) < $least
