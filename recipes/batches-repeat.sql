-- title = "batches repeat"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 125
-- scope = "rank"
-- needs = "the sample indices of a DataLoader's batches, or the contents of the first batches of each pass"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "loader {loader}; {n} batches compared by sample indices or by content, from step {step} to {last}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, loader, epoch, place, fingerprint, shuffled FROM python.batches ORDER BY t_ns DESC LIMIT 20\"",
-- ]
-- false_positives = "overfitting a single batch on purpose; a fixed order on purpose (`info` if nothing shuffles: time series and long texts are read in order); each batch used once per worker on purpose"
-- explains = ["oscillation", "loss-spike", "learning-rate-too-high", "plateau", "train-validation-gap"]
-- [parameters.least]
-- value = 10
-- unit = "batches"
-- source = "ours"
-- [parameters.draws]
-- value = 4
-- unit = "draws of each sample per pass"
-- source = "ours: a sampler normally has about as many weights as a pass draws samples"
-- [parameters.alike]
-- value = 0.9
-- unit = "ratio of the rounds of all workers"
-- source = "ours: a round may be split if a worker was late or a pass ended"
-- [parameters.places]
-- value = 4
-- unit = "batches at the start of an epoch"
-- source = "ours: epochs whose first batches hold the same samples have the same order, because each batch is drawn from all samples"
WITH arrived AS (
    SELECT step, t_ns, loader, epoch, place, fingerprint, COALESCE(shuffled, false) AS shuffled, shuffled IS false AS sequential, SUM(CAST(place = 0 AS INTEGER)) OVER (PARTITION BY loader ORDER BY t_ns) AS pass
    FROM python.batches WHERE state = 'done' AND fingerprint IS NOT NULL AND place IS NOT NULL AND step IS NOT NULL
), feeding AS (
    SELECT loader FROM arrived GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (MAX(step) - MIN(step) + 1)
), newest AS (
    SELECT * FROM arrived JOIN feeding USING (loader) QUALIFY ROW_NUMBER() OVER (PARTITION BY loader ORDER BY t_ns DESC) <= 64
), one AS (
    SELECT loader, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last FROM newest GROUP BY loader
    HAVING COUNT(*) >= $least AND COUNT(DISTINCT fingerprint) = 1 AND MAX(place) = 0 AND MIN(epoch) = MAX(epoch)
), starts AS (
    SELECT loader, pass, MIN(step) AS step, LIST(fingerprint ORDER BY place) AS order_, COUNT(DISTINCT fingerprint) AS different, BOOL_AND(shuffled) AS shuffled
    FROM arrived JOIN feeding USING (loader) WHERE (shuffled OR sequential) AND place < $places GROUP BY loader, pass HAVING COUNT(*) = $places
), passes AS (
    SELECT *, LAG(order_) OVER w = order_ AS same, LAG(step) OVER w AS before FROM starts WINDOW w AS (PARTITION BY loader ORDER BY pass)
), alike AS (
    SELECT loader, $places * (COUNT(*) + 1) AS n, MIN(before) AS step, MAX(step) AS last, COUNT(*) + 1 AS passes, BOOL_AND(shuffled) AS shuffled FROM passes
    WHERE different = $places GROUP BY loader, same HAVING same AND COUNT(*) >= 1 AND MAX(pass) = (SELECT MAX(p.pass) FROM passes p WHERE p.loader = passes.loader)
)
, workers AS (
    SELECT MAX(CAST(number AS BIGINT)) AS n FROM probe.facts WHERE name LIKE 'loader%.num_workers' AND number >= 2
), weighted AS (
    SELECT w.name AS name, CAST(w.number AS BIGINT) AS weights, CAST(d.number AS BIGINT) AS draws, CAST(l.number AS BIGINT) AS length
    FROM probe.facts w JOIN probe.facts d ON d.name = replace(w.name, 'sampler_weights', 'sampler_draws') LEFT JOIN probe.facts l ON l.name = replace(w.name, 'sampler_weights', 'dataset_length')
    WHERE w.name LIKE 'loader%.sampler_weights'
), classes AS (
    SELECT MAX(classes) AS classes FROM python.loss_functions WHERE function IN ('cross_entropy', 'nll_loss')
), rounds AS (
    SELECT loader, pass, place // w.n AS round, w.n AS workers, MIN(step) AS step, MAX(step) AS last, COUNT(*) AS n, MIN(fingerprint) AS one, COUNT(DISTINCT fingerprint) AS different
    FROM arrived JOIN feeding USING (loader), workers w GROUP BY ALL HAVING COUNT(*) = w.n
), each AS (
    SELECT loader, workers, SUM(n) AS n, MIN(step) AS step, MAX(last) AS last, COUNT(*) AS rounds FROM rounds GROUP BY loader, workers
    HAVING SUM(n) >= $least AND AVG(CAST(different = 1 AS INTEGER)) >= $alike AND COUNT(DISTINCT one) >= 0.5 * COUNT(*) / GREATEST(COUNT(DISTINCT pass), 1) AND COUNT(DISTINCT one) >= 4
)
SELECT NULL AS unknown, 'workers' AS subject, format('every batch comes {} times in a row: each of the {} workers yields the whole data set instead of its share', workers, workers) AS fact,
    format('in {} rounds of one batch per worker, all batches are the same; split the data by torch.utils.data.get_worker_info() in __iter__', rounds) AS evidence, loader, n, step, last FROM each
UNION ALL BY NAME
SELECT NULL AS unknown, 'sampler' AS subject, format('only the first {} samples of the data set are ever drawn: WeightedRandomSampler was given {} weights{}', weights, weights,
        CASE WHEN weights = classes THEN ', one per class instead of one per sample' ELSE '' END) AS fact,
    format('a pass draws {} samples, each of them {} times on average', draws, draws // weights) || COALESCE(format('; the data set has {}', length), '') AS evidence, name AS loader, draws AS n, 0 AS step, (SELECT MAX(step) FROM arrived) AS last
FROM weighted, classes WHERE draws >= $draws * weights AND (length > weights OR length IS NULL AND weights = classes)
UNION ALL BY NAME
SELECT NULL AS unknown, 'batch' AS subject, 'every step trains on the same batch: the first one of its loader' AS fact,
    'each batch is the first of a new iterator that is then discarded, as with next(iter(loader)) in the loop' AS evidence, loader, n, step, last FROM one
UNION ALL BY NAME
SELECT NULL AS unknown, 'order' AS subject, CASE WHEN shuffled THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN shuffled THEN 'each epoch has the same batches in the same order, although the sampler shuffles' ELSE 'each epoch has the same batches in the same order: the training DataLoader does not shuffle' END AS fact,
    format('the first {} batches of the last {} epochs are the same samples', $places, passes) || CASE WHEN shuffled THEN ': with a DistributedSampler, call sampler.set_epoch(epoch) before each epoch' ELSE ': set shuffle=True, unless the order is meaningful' END AS evidence,
    loader, n, step, last FROM alike
UNION ALL BY NAME
SELECT 'the indices of fewer than ' || $least || ' batches of a DataLoader are known' AS unknown FROM arrived HAVING COUNT(*) < $least
