-- title = "only a part of the data is used"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 127
-- scope = "rank"
-- needs = "a tensor-backed data set or a Subset that its loader has passed over several times; or model inputs that were recognised as repeated samples"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "the model can memorize so few samples, and the training loss then says little about new ones: a debugging subset left in the code looks like this",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE name LIKE 'loader%.dataset%' OR name LIKE 'cut.%'\"",
--   "probe {endpoint} query \"SELECT step, shape, compared, again FROM python.model_inputs WHERE compared IS NOT NULL ORDER BY step DESC LIMIT 20\"",
-- ]
-- false_positives = "a small subset on purpose: few-shot training, learning curves, debugging; parts that other processes train on (each rank's share is accounted for)"
-- explains = ["train-validation-gap", "validation-rising", "batches-repeat"]
-- [parameters.share]
-- value = 0.1
-- unit = "ratio of the samples"
-- source = "ours: validation and test splits leave more than half for training"
-- [parameters.all_parts]
-- value = 0.25
-- unit = "ratio of the samples"
-- source = "ours: together with all other loaded parts, such as validation or unlabelled data"
-- [parameters.passes]
-- value = 5
-- unit = "uses of each sample"
-- source = "ours: fewer can be the first epochs"
-- [parameters.again]
-- value = 8
-- unit = "repeated samples"
-- source = "ours: this estimates the number of samples to within a factor of 1.5"
-- [parameters.near]
-- value = 2.0
-- unit = "times"
-- source = "as above"
WITH newest AS (
    SELECT name, ARG_MAX(number, t_ns) AS number FROM probe.facts WHERE (kind = 'hyperparameter' AND regexp_matches(name, '^(loader[0-9]*[.]dataset_(rows|whole|source)|world_size)$')) OR (kind = 'data' AND name LIKE 'cut.%') GROUP BY name
), world AS (
    SELECT COALESCE(MAX(number) FILTER (name = 'world_size'), 1) AS size FROM newest
), loaders AS (
    SELECT split_part(name, '.', 1) AS loader, MAX(number) FILTER (name LIKE '%_rows') AS rows, MAX(number) FILTER (name LIKE '%_whole') AS whole, MAX(number) FILTER (name LIKE '%_source') AS source FROM newest WHERE name LIKE 'loader%' GROUP BY 1
), parts AS (
    SELECT source, SUM(rows) / MAX(whole) AS share FROM loaders GROUP BY source
), classes AS (
    SELECT regexp_extract(name, '^(loader[0-9]*)[.]dataset$', 1) AS loader, ARG_MAX(value, t_ns) AS class FROM probe.facts WHERE kind = 'hyperparameter' AND regexp_matches(name, '^loader[0-9]*[.]dataset$') GROUP BY 1
), fed AS (
    SELECT regexp_extract(loader, '^(.*)#[0-9]+$', 1) AS class, SUM(samples)::DOUBLE AS samples, COUNT(DISTINCT step) AS steps, MIN(step) AS step, MAX(epoch) + 1.0 AS passes FROM python.batches WHERE state = 'done' GROUP BY loader
), cut_off AS (
    SELECT l.loader, l.rows, l.whole, MAX(fed.samples) AS samples, MAX(fed.passes) AS passes, MIN(fed.step) AS step
    FROM loaders l JOIN parts USING (source) JOIN classes USING (loader) JOIN fed USING (class), world
    WHERE l.rows * world.size <= $share * l.whole AND parts.share * world.size <= $all_parts AND fed.samples >= $passes * l.rows AND fed.steps > 0.5 * (SELECT COUNT(*) FROM python.steps)
    GROUP BY ALL
), looks AS (
    SELECT step, shape, compared, again, SUM(compared - again) OVER (PARTITION BY module, name ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS known, module, name
    FROM python.model_inputs WHERE compared IS NOT NULL AND again IS NOT NULL AND NOT COALESCE(gradless, false)
), drawn AS (
    -- A sample that is drawn is known with probability known / all.
    SELECT module, name, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, SUM(again)::DOUBLE AS again, SUM(compared)::DOUBLE AS compared, SUM(known * compared)::DOUBLE / NULLIF(SUM(again), 0) AS samples, MEDIAN(compared) AS batch, MAX(CAST(shape AS BIGINT[])[2]) AS length
    FROM looks GROUP BY module, name
), used AS (
    -- A model with several inputs: the one that repeats least. A table's categories repeat, and its numbers do not.
    SELECT drawn.*, batch * (SELECT SUM(GREATEST(micro_steps, 1)) FROM python.steps) / samples AS times FROM drawn
    WHERE again >= $again QUALIFY samples = MAX(samples) OVER (PARTITION BY module) AND NOT EXISTS (SELECT 1 FROM drawn o WHERE o.module = drawn.module AND o.n >= $again AND o.again < $again)
), variables AS (
    SELECT regexp_extract(name, '^cut[.](.*)[.](rows|whole)$', 1) AS variable, MAX(number) FILTER (name LIKE '%.rows') AS rows, MAX(number) FILTER (name LIKE '%.whole') AS whole FROM newest WHERE name LIKE 'cut.%' GROUP BY 1
)
SELECT NULL AS unknown, loader AS subject, step, format('training uses only {:.0f} of the {:.0f} samples that its data set was cut from: {:.3g} % of the data, each {:.0f} times', rows, whole, 100 * rows / whole, samples / rows) AS fact,
    format('the data set of {} is a part of one with {:.0f} rows; {:.0f} samples were drawn from it in {:.0f} passes, and no other loader reads the rest', loader, whole, samples, passes) AS evidence
FROM cut_off
UNION ALL BY NAME
SELECT NULL AS unknown, variable AS subject, step, format('training uses only {:.0f} of {:.0f} rows of the data: {:.3g} %, each sample {:.1f} times so far', rows, whole, 100 * rows / whole, times) AS fact,
    format('{:.0f} of {:.0f} samples that {} received in {} sampled steps had been seen before, so there are about {:.0f} distinct ones; {} holds {:.0f} of the {:.0f} rows of the tensor that it is a slice of', again, compared, module, n, samples, variable, rows, whole) AS evidence
FROM used, variables, world WHERE rows * world.size <= $share * whole AND samples <= $near * rows AND (samples * $near >= rows OR samples * $near >= rows / length) AND NOT EXISTS (SELECT 1 FROM fed)
UNION ALL BY NAME
SELECT NULL AS unknown, module || ' ' || name AS subject, step, format('few distinct samples: about {:.0f}, each used {:.0f} times', samples, times) AS fact,
    format('{:.0f} of {:.0f} samples that {} received in {} sampled steps, from step {} to {}, had been seen before', again, compared, module, n, step, last) AS evidence, 'info' AS severity
FROM used WHERE times >= 10 * $passes AND NOT EXISTS (SELECT 1 FROM cut_off) AND samples < 10000
    AND NOT EXISTS (SELECT 1 FROM variables v, world WHERE v.rows * world.size <= $share * v.whole AND samples <= $near * v.rows AND (samples * $near >= v.rows OR samples * $near >= v.rows / length) AND NOT EXISTS (SELECT 1 FROM fed))
UNION ALL BY NAME
SELECT 'no data set is known to be part of another one, and no samples were compared' AS unknown WHERE NOT EXISTS (SELECT 1 FROM loaders) AND NOT EXISTS (SELECT 1 FROM drawn WHERE n >= $again)
