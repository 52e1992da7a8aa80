-- title = "layer does not learn"
-- severity = "notice"
-- symptoms = ["gradients", "loss"]
-- order = 220
-- scope = "rank"
-- needs = "per-parameter gradients from several steps"
-- deepen = "gradients"
-- what = "{param} {state}: {reason}"
-- why = [
--   "in the last {n} sampled steps (from step {step}) its gradient norm was {norm:.3g}; other parameters: {others:.3g} (median)",
--   "its update ratio is {ratio:.2g}; other parameters: {others_ratio:.2g}",
--   "it had no gradient at all {missing} of {n} times",
--   "{zero_ratio:.0%} of its gradient's elements are exactly 0",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, norm, zero_ratio, update_ratio FROM python.gradients WHERE param = '{param}' ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT * FROM python.optimizers ORDER BY t_ns DESC LIMIT 5\"",
--   "probe {endpoint} watch --activations --steps 3",
-- ]
-- false_positives = "experts that were not selected; an adapter initialized to zero; a group frozen by a learning rate of 0 from the start (`info`); parameters that only some batches use. Biases before a normalization and key biases in attention cancel: they are left out if names and layer order identify them"
-- explains = ["plateau", "slow-decrease"]
-- effect = true
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.behind]
-- value = 1e-5
-- unit = "ratio to the others"
-- source = "practice: first layers below 1 % of the last are vanishing (see gradient-depth); ours: at a hundred-thousandth nothing is learned"
-- [parameters.lost]
-- value = 1e-6
-- unit = "update ratio"
-- source = "float32 tells values apart that differ by 6e-8 of their size: a smaller update may be lost in one layer and not in another, and then the rate is at fault"
WITH steps AS (
    SELECT DISTINCT step FROM python.gradients ORDER BY step DESC LIMIT 8
), thawed AS (
    SELECT param, ARG_MAX(requires_grad, t_ns) AS trains, MAX(t_ns) AS t_ns FROM python.parameters GROUP BY param
), seen AS (
    -- Since the parameter trains: a part may be thawed in mid-run.
    SELECT g.* FROM python.gradients g JOIN steps USING (step) LEFT JOIN thawed USING (param) WHERE g.numel > 1 AND COALESCE(trains, true) AND NOT COALESCE(g.t_ns < thawed.t_ns, false)
), params AS (
    SELECT param, MIN(place) AS place, MIN(step) AS step, COUNT(*) AS n, COUNT(*) FILTER (norm IS NULL) AS missing, ANY_VALUE(numel) AS numel,
        MAX(norm) AS norm, MEDIAN(norm / SQRT(numel)) AS size, MAX(update_ratio) AS ratio, MAX(update_norm) AS moved, MIN(zero_ratio) AS zero_ratio,
        MAX(weight_norm) > (1 + 1e-5) * MIN(weight_norm) AS moves
    FROM seen GROUP BY param
), usual AS (
    SELECT MEDIAN(norm) AS others, MEDIAN(size) AS others_size, MEDIAN(ratio) AS others_ratio, COUNT(*) AS params FROM params WHERE norm > 0
), cleared AS (
    SELECT DISTINCT param FROM python.updates WHERE after_backward = 'present' AND at_step IN ('none', 'zero') AND step >= (SELECT MIN(step) FROM steps)
), learning AS (
    SELECT DISTINCT regexp_replace(param, '\.[^.]*$', '') AS module FROM params WHERE norm > 0 AND NOT param LIKE '%bias'
), norms AS (
    SELECT module, ARG_MAX(class, t_ns) LIKE '%Norm%' AS norm FROM python.modules GROUP BY module
), listed AS (
    SELECT param, ARG_MAX(module, t_ns) AS module, ARG_MAX(place, t_ns) AS place FROM python.parameters GROUP BY param
), cancels AS (
    SELECT param FROM (SELECT param, module, LEAD(module) OVER (ORDER BY place) AS next FROM listed)
    WHERE param LIKE '%bias' AND (next IN (SELECT module FROM norms WHERE norm) OR regexp_matches(param, '(k_proj|k_lin|key|to_k)[.]bias$'))
), called AS (
    SELECT DISTINCT module FROM python.torch_trace WHERE stage = 'forward'
), still AS (
    -- A rate of 0 is how some programs freeze a layer: nobody can know whether it is meant.
    SELECT param FROM (SELECT param, ARG_MAX(optimizer, t_ns) AS optimizer, ARG_MAX(param_group, t_ns) AS param_group FROM python.parameters WHERE optimizer IS NOT NULL GROUP BY param)
    JOIN (SELECT optimizer, param_group, ARG_MAX(lr, t_ns) AS lr, MAX(lr) AS highest FROM python.optimizers GROUP BY ALL) USING (optimizer, param_group) WHERE lr = 0 AND highest = 0
), silent AS (
    SELECT *, CASE WHEN missing = n AND moves THEN 'is stepped in vain' ELSE 'does not learn' END AS state,
    -- Only a gradient lets an optimizer change a parameter: another one, or the program itself, does.
    CASE WHEN missing = n AND moves THEN 'its optimizer finds no gradient and leaves it as it is; what changes it between these steps is another optimizer, or the program'
        WHEN missing = n AND EXISTS (SELECT 1 FROM called SEMI JOIN learning USING (module)) AND regexp_replace(param, '\.[^.]*$', '') IN (SELECT module FROM norms EXCEPT SELECT module FROM called)
            THEN format('it is in an optimizer but never gets a gradient: no recorded forward calls its module, {}', regexp_replace(param, '\.[^.]*$', ''))
        WHEN missing = n THEN 'it is in an optimizer but never gets a gradient'
        WHEN norm = 0 THEN 'its gradient is exactly 0'
        WHEN moved = 0 AND param IN (SELECT param FROM still) THEN 'its group has a learning rate of 0, so it has a gradient but does not change'
        WHEN moved = 0 THEN 'it has a gradient but does not change: its group may have a learning rate of 0'
        ELSE 'its gradient is almost zero' END AS reason
    FROM params, usual
    WHERE n >= $least AND (params >= 2 OR (params = 1 AND norm = 0)) AND param NOT IN (SELECT param FROM cancels)
        AND param NOT IN (SELECT param FROM cleared WHERE param IS NOT NULL)
        -- What is subtracted behind it (a normalization) leaves a bias without a gradient.
        AND NOT (norm = 0 AND param LIKE '%bias' AND regexp_replace(param, '\.[^.]*$', '') IN (SELECT module FROM learning))
        AND (missing = n OR norm = 0 OR (moved = 0 AND others_ratio > $lost)
        OR (size < $behind * others_size AND numel >= 64 AND NOT param LIKE '%bias' AND COALESCE(ratio < 1e-4 * others_ratio, true)))
)
SELECT NULL AS unknown, param, param AS subject, state, step, n, norm, others, ratio, others_ratio, NULLIF(missing, 0) AS missing, zero_ratio, reason,
    CASE WHEN starts_with(reason, 'its group has a learning rate of 0') THEN 'info' ELSE 'notice' END AS severity
FROM silent QUALIFY ROW_NUMBER() OVER (ORDER BY place) <= 5
UNION ALL BY NAME
SELECT format('gradients of {} steps, {} are needed', COUNT(*), $least) AS unknown FROM steps HAVING COUNT(*) < $least
