-- title = "weights clamped"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 219
-- scope = "rank"
-- needs = "sampled weight values, from a few sampled steps"
-- what = "the weights are clamped: {share:.0%} of the elements of {param} are exactly at one bound{others}"
-- why = [
--   "in the last {n} sampled steps (median of {looked_at} elements each): {examples}",
--   "{outside}",
--   "updates beyond the bound are cut off; to limit gradients, clip them (clip_grad_norm_) before the step",
--   "{doubt}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, bound_ratio, outside_ratio, weight_rms FROM python.updates WHERE bound_ratio > 0.05 ORDER BY step DESC LIMIT 24\"",
-- ]
-- false_positives = "the critic of a Wasserstein GAN as in the original paper (`info` if two optimizers train and no standard loss function is known); weights that are binarized on purpose"
-- explains = ["slow-decrease", "plateau", "layer-not-learning"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.share]
-- value = 0.1
-- unit = "ratio of the elements"
-- source = "ours: of 64 distinct values only one is the largest; seven equal ones are not chance"
WITH steps AS (
    SELECT DISTINCT step FROM python.updates ORDER BY step DESC LIMIT 12
), each AS (
    SELECT param, MIN(place) AS place, COUNT(*) AS n, MIN(step) AS step, MEDIAN(bound_ratio) AS share, MIN(bound_ratio) AS lowest, MEDIAN(outside_ratio) AS outside, ANY_VALUE(looked_at) AS looked_at, COALESCE(BOOL_OR(equal_rows), false) AS alike
    FROM python.updates JOIN steps USING (step) WHERE bound_ratio IS NOT NULL AND optimizer IS NOT NULL AND param IS NOT NULL GROUP BY param
), bounded AS (
    -- Where all rows are equal, each value occurs once per row, the largest too.
    SELECT * FROM each WHERE n >= $least AND share >= $share AND lowest > 0.5 * $share AND NOT alike
), counted AS (
    SELECT ARG_MAX(param, share) AS param, MAX(share) AS share, ARG_MAX(looked_at, share) AS looked_at, COUNT(*) - 1 AS more, MAX(n) AS n, MIN(step) AS step, MEDIAN(outside) AS outside,
        array_to_string(list(format('{} {:.0f} %', param, 100 * share) ORDER BY share DESC)[:4], ', ') AS examples FROM bounded HAVING COUNT(*) > 0
), context AS (
    SELECT (SELECT COUNT(DISTINCT name) FROM probe.facts WHERE regexp_matches(name, '^optimizer[0-9]*$')) > 1
        AND NOT EXISTS (SELECT 1 FROM python.loss_functions WHERE function IS NOT NULL AND function <> 'softmax') AS critic
)
SELECT NULL AS unknown, param, param AS subject, share, looked_at, n, step, examples, CASE WHEN critic THEN 'info' ELSE 'notice' END AS severity,
    CASE WHEN more > 1 THEN format(', and so in {} other parameters', more) WHEN more = 1 THEN ', and so in another parameter' ELSE '' END AS others,
    CASE WHEN outside > 0 THEN format('code other than the optimizer changed {:.0f} % of the elements between a step and the next backward', 100 * outside) END AS outside,
    CASE WHEN critic THEN 'several optimizers and no standard loss function: it may be the critic of a Wasserstein GAN, whose weights are clamped on purpose' END AS doubt
FROM counted, context
UNION ALL BY NAME
SELECT format('updates of {} steps were sampled, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
