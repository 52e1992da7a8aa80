-- title = "ranks have different settings"
-- severity = "notice"
-- symptoms = ["loss", "gradients", "data"]
-- order = 213
-- scope = "job"
-- needs = "the settings of two ranks or more that train one replicated model"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "{consequence}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT rank, COUNT(clip_norm) AS clipped, COUNT(*) AS steps FROM python.steps GROUP BY rank ORDER BY rank\"",
--   "probe {endpoint} query \"SELECT name, rank, value FROM probe.facts WHERE kind = 'hyperparameter' ORDER BY name, rank\"",
-- ]
-- false_positives = "per-rank settings on purpose; samples that each rank generates randomly at start"
-- explains = ["replicas-part"]
-- [parameters.recent]
-- value = 200
-- unit = "steps"
-- source = "ours"
-- [parameters.least]
-- value = 20
-- unit = "steps"
-- source = "ours"
WITH replicated AS (
    SELECT COUNT(DISTINCT rank) AS ranks FROM python.weights WHERE replicated
), newest AS (
    -- Not what a schedule moves (lr, momentum, betas): each rank notes it at a time of its own.
    SELECT rank, name, ANY_VALUE(value) AS value FROM probe.facts
    WHERE kind = 'hyperparameter' AND regexp_matches(name, '^(optimizer[0-9]*\.(initial_lr|weight_decay|eps)|.*loader[0-9]*\.(sampler_seed|sampler_replicas|dataset_content|dataset_entries))$')
    GROUP BY rank, name HAVING COUNT(DISTINCT value) = 1
), settings AS (
    SELECT name, COUNT(*) AS ranks, COUNT(DISTINCT value) AS kinds, array_to_string(list(format('{} (rank {})', value, rank) ORDER BY rank)[:8], ', ') AS listed
    FROM newest GROUP BY name
), listed AS (
    SELECT name FROM settings c WHERE name LIKE '%dataset_content' AND kinds > 1
        AND EXISTS (SELECT 1 FROM settings e WHERE e.name = replace(c.name, 'dataset_content', 'dataset_entries') AND e.kinds = 1 AND e.ranks = c.ranks)
), last AS (
    SELECT MAX(step) AS step FROM python.steps
), clipping AS (
    SELECT rank, COUNT(*) AS n, COUNT(clip_norm) / COUNT(*) AS share FROM python.steps, last WHERE python.steps.step > last.step - $recent GROUP BY rank
), clipped AS (
    SELECT MIN(n) AS n, list(rank ORDER BY rank) FILTER (share > 0.9) AS clip, list(rank ORDER BY rank) FILTER (share = 0) AS plain, COUNT(*) AS ranks FROM clipping
)
SELECT NULL AS unknown, 'clipping' AS subject,
    format('only rank{} {} clip{} gradients: the same averaged gradients become different steps', CASE WHEN len(clip) > 1 THEN 's' ELSE '' END, array_to_string(clip, ', '), CASE WHEN len(clip) > 1 THEN '' ELSE 's' END) AS fact,
    format('clip_grad_norm_ ran in nearly all of the last {} steps there, but in none on rank{} {}', n, CASE WHEN len(plain) > 1 THEN 's' ELSE '' END, array_to_string(plain, ', ')) AS evidence,
    'the replicas diverge at the first step whose gradients are clipped' AS consequence
FROM clipped, replicated WHERE replicated.ranks > 1 AND clipped.ranks > 1 AND n >= $least AND len(clip) > 0 AND len(plain) > 0 AND len(clip) + len(plain) = clipped.ranks
UNION ALL BY NAME
SELECT NULL AS unknown, name AS subject,
    CASE WHEN name LIKE '%sampler_seed' THEN 'the seed of the DistributedSampler differs between the ranks: their shards overlap, and some samples are in none'
        WHEN name IN (SELECT l.name FROM listed l) THEN 'the data set has a different order on each rank: a DistributedSampler divides it by index, so the shares of the ranks overlap, and some samples are drawn by none'
        WHEN name LIKE '%dataset_content' THEN 'each rank has another data set, and a DistributedSampler splits each of them again: most samples of an epoch are drawn by none'
        WHEN name LIKE '%sampler_replicas' THEN 'the DistributedSamplers divide the data among different numbers of ranks'
        ELSE format('{} differs between the ranks that train one replicated model', name) END AS fact,
    format('{}: {}', name, listed) AS evidence,
    CASE WHEN name IN (SELECT l.name FROM listed l) THEN 'the sum over all samples is the same on all ranks, but samples at the same index differ. The order of a Python set differs between processes, that of os.listdir and glob between hosts: sort the file list'
        WHEN name LIKE '%dataset_content' THEN 'a DistributedSampler expects the same data set on all ranks: shard the data or use a DistributedSampler, not both'
        WHEN name LIKE '%sampler%' THEN 'each rank shuffles all samples with its seed and takes every n-th: the shards are disjoint only if all ranks use the same seed' END AS consequence
FROM settings, replicated WHERE replicated.ranks > 1 AND settings.ranks > 1 AND kinds > 1 AND name NOT LIKE '%dataset_entries'
UNION ALL BY NAME
SELECT NULL AS unknown, name AS subject, format('the DistributedSampler divides the data among {} ranks, and there are {}: the other parts of each epoch are drawn by none', listed.replicas, world) AS fact,
    format('{}: num_replicas is {}', name, listed.replicas) AS evidence, 'num_replicas defaults to the number of ranks' AS consequence
FROM (SELECT name, MIN(TRY_CAST(value AS BIGINT)) AS replicas FROM newest WHERE name LIKE '%sampler_replicas' GROUP BY name) listed,
    (SELECT MAX(TRY_CAST(value AS BIGINT)) AS world FROM probe.facts WHERE kind = 'hyperparameter' AND name = 'world_size'), replicated
WHERE replicated.ranks > 1 AND listed.replicas > world
UNION ALL BY NAME
SELECT 'no model in DistributedDataParallel on two ranks is known' AS unknown FROM replicated WHERE ranks < 2
