-- title = "the environment is not reset"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 131
-- scope = "rank"
-- needs = "a list or deque of transitions (tuples of one flag and two observations) in the program's variables; or, without a DataLoader, the model's inputs from a few dozen steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "{consequence}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE kind = 'data' AND name LIKE 'transitions.%'\"",
--   "probe {endpoint} query \"SELECT step, module, name, mean, std, min, max FROM python.model_inputs WHERE module <> 'batch' ORDER BY step\"",
--   "probe {endpoint} backtrace",
-- ]
-- false_positives = "one-step episodes (bandits) that each continue from the last observation of the previous one; observations that grow by nature (a clock, an unbounded position)"
-- explains = ["inputs-not-scaled", "divergence", "gradients-exploding", "loss-spike", "plateau", "gradient-exploding-layer", "saturated-units", "dead-units", "output-constant", "loss-unbounded"]
-- [parameters.transitions]
-- value = 128
-- unit = "transitions"
-- source = "ours: one-step episodes are rare"
-- [parameters.pairs]
-- value = 16
-- unit = "transitions"
-- source = "ours"
-- [parameters.looks]
-- value = 24
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.growth]
-- value = 20.0
-- unit = "times"
-- source = "ours: a better policy reaches more states, but within the bounds at which episodes end; without a reset there are no bounds"
WITH told AS (
    SELECT regexp_extract(name, '^transitions[.](.*)[.][a-z_]+$', 1) AS container, regexp_extract(name, '[.]([a-z_]+)$', 1) AS what, ARG_MAX(number, t_ns) AS number
    FROM probe.facts WHERE kind = 'data' AND name LIKE 'transitions.%' GROUP BY ALL
), kept AS (
    SELECT container, MAX(number) FILTER (what = 'looked') AS looked, MAX(number) FILTER (what = 'ended') AS ended, MAX(number) FILTER (what = 'pairs') AS pairs, MAX(number) FILTER (what = 'carried_on') AS carried_on
    FROM told GROUP BY container
), given AS (
    SELECT module, name, step, shape, mean, std, min, max, NTILE(4) OVER w AS quarter, COUNT(*) OVER (PARTITION BY module, name) AS n FROM python.model_inputs
    -- What follows the first argument is often the state of a recurrent layer, which is carried on and grows as it learns.
    WHERE module <> 'batch' AND std IS NOT NULL AND NOT regexp_matches(name, '^[1-9]|hidden') AND NOT EXISTS (SELECT 1 FROM python.batches) WINDOW w AS (PARTITION BY module, name ORDER BY step)
), quarters AS (
    SELECT module, name, quarter, ANY_VALUE(n) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, MEDIAN(std) AS std, MEDIAN(GREATEST(ABS(min), ABS(max))) AS size FROM given GROUP BY module, name, quarter
), drifts AS (
    SELECT module, name, MAX(n) AS n, MIN(step) AS step, MAX(last) AS last, MAX(shape) AS shape, MAX(size) FILTER (quarter = 1) AS first_size, MAX(size) FILTER (quarter = 4) AS last_size,
        MAX(std) FILTER (quarter = 1) AS first_std, MAX(std) FILTER (quarter = 4) AS last_std,
        MAX(size) FILTER (quarter = 2) > 1.2 * MAX(size) FILTER (quarter = 1) AND MAX(size) FILTER (quarter = 3) > 1.2 * MAX(size) FILTER (quarter = 2) AND MAX(size) FILTER (quarter = 4) > 1.2 * MAX(size) FILTER (quarter = 3) AS steadily
    FROM quarters GROUP BY module, name
), earliest AS (
    SELECT module, name, MIN(GREATEST(ABS(min), ABS(max))) AS size FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY module, name ORDER BY step) AS i FROM given) WHERE i <= 3 GROUP BY module, name
)
SELECT NULL AS unknown, container AS subject, 0 AS step, format('the environment is not reset when an episode has ended: each of the newest {:.0f} transitions ends an episode, and the next one continues from there', looked) AS fact,
    format('{}: {:.0f} of {:.0f} entries have the flag set; of {:.0f} compared with the entry after them, {:.0f} end with the observation that the next one starts with', container, ended, looked, pairs, carried_on) AS evidence,
    'the targets leave out the value of the next state at each end, so nothing beyond one step is learned. Call reset() when an episode has ended' AS consequence
FROM kept WHERE looked >= $transitions AND ended = looked AND pairs >= $pairs AND carried_on >= 0.9 * pairs
UNION ALL BY NAME
SELECT NULL AS unknown, module || ' ' || name AS subject, step, format('the input of {} leaves its initial range and keeps drifting, from within {:.3g} to {:.3g}, as observations do when an environment is never reset', module, earliest.size, last_size) AS fact,
    format('input {} {} of {} in a loop without a DataLoader: the largest value in a sampled step was {:.3g} in the first and {:.3g} in the last quarter of {} samples, from step {} to {}; it grew in each quarter, and the spread grew from {:.3g} to {:.3g}', name, shape, module, first_size, last_size, n, step, last, first_std, last_std) AS evidence,
    'what the model learns about such states does not help at the start of an episode: reset each environment when its episode has ended, and scale unbounded observations' AS consequence
FROM drifts JOIN earliest USING (module, name) WHERE n >= $looks AND steadily AND last_size > $growth * earliest.size AND last_std > $growth / 4 * first_std AND earliest.size > 0
UNION ALL BY NAME
SELECT 'neither transitions nor the inputs of a model without a DataLoader are recorded' AS unknown WHERE NOT EXISTS (SELECT 1 FROM kept) AND NOT EXISTS (SELECT 1 FROM given WHERE n >= $looks)
