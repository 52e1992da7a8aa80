-- title = "ranks train on the same batches"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 126
-- scope = "job"
-- needs = "the sample indices of the batches of two ranks or more"
-- what = "all {ranks} ranks train on the same batches: nothing divides the data among them"
-- why = [
--   "{same} of the last {n} compared batches have the same samples on all ranks, from step {step} to {last}",
--   "loader {loader}: a DistributedSampler, with num_replicas and rank at their defaults, gives each rank its own part",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT rank, step, micro_step, loader, fingerprint FROM python.batches ORDER BY step DESC, rank LIMIT 20\"",
-- ]
-- false_positives = "ranks that share one model replica: tensor or pipeline parallelism (left out where parameters are seen to be sharded)"
-- [parameters.least]
-- value = 10
-- unit = "batches"
-- source = "ours: two shuffled shards share no batch"
WITH arrived AS (
    SELECT rank, loader, step, micro_step, MIN(fingerprint) AS fingerprint FROM python.batches
    WHERE state = 'done' AND fingerprint IS NOT NULL AND step IS NOT NULL GROUP BY ALL HAVING COUNT(*) = 1
), feeding AS (
    SELECT loader FROM arrived GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (MAX(step) - MIN(step) + 1)
), compared AS (
    SELECT loader, step, micro_step, COUNT(*) AS ranks, COUNT(DISTINCT fingerprint) = 1 AS same, ANY_VALUE(fingerprint) AS fingerprint
    FROM arrived JOIN feeding USING (loader) GROUP BY ALL HAVING COUNT(DISTINCT rank) = (SELECT COUNT(DISTINCT rank) FROM arrived) AND COUNT(*) > 1
), newest AS (
    SELECT * FROM compared QUALIFY ROW_NUMBER() OVER (PARTITION BY loader ORDER BY step DESC, micro_step DESC) <= 50
), judged AS (
    SELECT loader, MAX(ranks) AS ranks, COUNT(*) AS n, COUNT(*) FILTER (same) AS same, COUNT(DISTINCT fingerprint) AS different, MIN(step) AS step, MAX(step) AS last FROM newest GROUP BY loader
)
SELECT CASE WHEN EXISTS (SELECT 1 FROM python.gradients WHERE sharded) THEN 'parameters are sharded: ranks may belong to one replica' END AS unknown, * FROM judged
WHERE n >= $least AND same > 0.95 * n AND different > 2
UNION ALL BY NAME
SELECT 'the batches of only one rank are known' AS unknown FROM arrived HAVING COUNT(DISTINCT rank) < 2
