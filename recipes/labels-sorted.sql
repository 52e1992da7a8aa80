-- title = "data are sorted by label"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 127
-- scope = "rank"
-- needs = "a DataLoader whose batches have a tensor with one value per sample"
-- what = "the data are sorted: `{name}` is nearly the same within a batch ({std:.2g} around its mean) and differs from batch to batch ({between:.2g}); the loader {shuffles}"
-- why = [
--   "of the variance of `{name}`, {ratio:.0%} lies between the {n} sampled batches, from step {step} to {last}; in shuffled batches of {size:.0f} it would be about {expected:.1%}",
--   "each batch pulls the model towards its own labels: set shuffle=True, or use a shuffling sampler",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, name, mean, std, min, max FROM python.model_inputs WHERE module = 'batch' ORDER BY step DESC LIMIT 20\"",
-- ]
-- false_positives = "single-domain batches, or batches of samples of similar length, on purpose (`info` unless the loader is known not to shuffle); sample positions or indices in data that are read in order (consecutive integers are left out)"
-- explains = ["divergence", "oscillation", "loss-spike", "gradients-exploding", "learning-rate-too-high", "plateau", "train-validation-gap"]
-- [parameters.least]
-- value = 6
-- unit = "batches"
-- source = "ours"
-- [parameters.between]
-- value = 0.8
-- unit = "ratio of the variance"
-- source = "ours: with shuffled batches of N samples, 1 / N of the variance lies between batches"
-- [parameters.size]
-- value = 8
-- unit = "samples"
-- source = "ours: smaller batches differ by chance"
WITH seen AS (
    SELECT * FROM python.model_inputs WHERE module = 'batch' AND looked_at >= $size AND isfinite(mean) AND isfinite(std)
        AND NOT (max - min = looked_at - 1 AND mean = (max + min) / 2)
    QUALIFY ROW_NUMBER() OVER (PARTITION BY name ORDER BY step DESC) <= 24
), judged AS (
    SELECT name, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, AVG(looked_at) AS size, VAR_POP(mean) AS outer_, AVG(std * std) AS inner_, COUNT(DISTINCT mean) AS means FROM seen GROUP BY name
), arrived AS (
    SELECT step, t_ns, COALESCE(loader, '') AS loader, shuffled FROM python.batches WHERE state = 'done' AND step BETWEEN (SELECT MIN(step) FROM seen) AND (SELECT MAX(step) FROM seen)
), feeding AS (
    -- A validation at a sampled step has a loader of its own.
    SELECT loader FROM arrived GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (SELECT MAX(step) - MIN(step) + 1 FROM arrived)
), order_ AS (
    SELECT ARG_MAX(shuffled, t_ns) AS shuffled FROM arrived JOIN feeding USING (loader)
)
SELECT NULL AS unknown, name AS subject, name, n, step, last, size, outer_ / (outer_ + inner_) AS ratio, 1 / size AS expected, SQRT(inner_) AS std, SQRT(outer_) AS between,
    CASE WHEN shuffled IS NULL THEN 'may not shuffle' WHEN shuffled THEN 'shuffles, so its sampler or batch sampler groups them' ELSE 'does not shuffle' END AS shuffles,
    CASE WHEN NOT shuffled THEN 'notice' ELSE 'info' END AS severity
FROM judged, order_ WHERE n >= $least AND means > 2 AND outer_ > $between * (outer_ + inner_)
UNION ALL BY NAME
SELECT format('labels of {} batches, {} are needed', COALESCE(MAX(n), 0), $least) AS unknown FROM judged HAVING COALESCE(MAX(n), 0) < $least
