-- title = "the environment is not reset"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 131
-- scope = "rank"
-- needs = "a list or deque of transitions, tuples with one flag and two observations, in the program's variables; or what a model without a loader was called with on a few dozen steps"
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
-- false_positives = "episodes of one step (bandits), if each goes on from the observation in which the one before it ended; observations that count up by nature (a clock, a position without bounds)"
-- explains = ["inputs-not-scaled", "divergence", "gradients-exploding", "loss-spike", "plateau", "gradient-exploding-layer", "saturated-units", "dead-units", "output-constant", "loss-unbounded"]
-- [parameters.transitions]
-- value = 128
-- unit = "transitions"
-- source = "ours: episodes of one step are rare"
-- [parameters.pairs]
-- value = 16
-- unit = "transitions"
-- source = "ours"
-- [parameters.looks]
-- value = 24
-- unit = "steps looked at"
-- source = "ours"
-- [parameters.growth]
-- value = 20.0
-- unit = "times"
-- source = "ours: as a policy gets better it sees more, within the bounds at which episodes end; without a reset there are none"
WITH told AS (
    SELECT regexp_extract(name, '^transitions[.](.*)[.][a-z_]+$', 1) AS container, regexp_extract(name, '[.]([a-z_]+)$', 1) AS what, ARG_MAX(number, t_ns) AS number
    FROM probe.facts WHERE kind = 'data' AND name LIKE 'transitions.%' GROUP BY ALL
), kept AS (
    SELECT container, MAX(number) FILTER (what = 'looked') AS looked, MAX(number) FILTER (what = 'ended') AS ended, MAX(number) FILTER (what = 'pairs') AS pairs, MAX(number) FILTER (what = 'carried_on') AS carried_on
    FROM told GROUP BY container
), given AS (
    SELECT module, name, step, shape, mean, std, min, max, NTILE(4) OVER w AS quarter, COUNT(*) OVER (PARTITION BY module, name) AS n FROM python.model_inputs
    WHERE module <> 'batch' AND std IS NOT NULL AND NOT EXISTS (SELECT 1 FROM python.batches) WINDOW w AS (PARTITION BY module, name ORDER BY step)
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
SELECT NULL AS unknown, container AS subject, 0 AS step, format('the environment is not reset when an episode has ended: each of the newest {:.0f} transitions is an end, and the next goes on from there', looked) AS fact,
    format('{}: {:.0f} of {:.0f} entries have their flag set, and of {:.0f} compared with the one after them {:.0f} end in the observation that this begins with', container, ended, looked, pairs, carried_on) AS evidence,
    'after an end nothing follows that could be learned: the value of the following state is left out of all targets. Call reset() when an episode has ended' AS consequence
FROM kept WHERE looked >= $transitions AND ended = looked AND pairs >= $pairs AND carried_on >= 0.9 * pairs
UNION ALL BY NAME
SELECT NULL AS unknown, module || ' ' || name AS subject, step, format('what {} is given leaves its first range and drifts on without end, from within {:.3g} to {:.3g}, as observations do where an environment is never reset', module, earliest.size, last_size) AS fact,
    format('input {} {} of {} in a loop without a loader: the largest value of a look was {:.3g} in the first and {:.3g} in the last quarter of {} looks, from step {} to {}; it grew from quarter to quarter, and the spread from {:.3g} to {:.3g}', name, shape, module, first_size, last_size, n, step, last, first_std, last_std) AS evidence,
    'what the model learns of such states is of no use where episodes begin: reset the environment, each one of them, when its episode has ended; and scale what has no bounds' AS consequence
FROM drifts JOIN earliest USING (module, name) WHERE n >= $looks AND steadily AND last_size > $growth * earliest.size AND last_std > $growth / 4 * first_std AND earliest.size > 0
UNION ALL BY NAME
SELECT 'no transitions are known, nor the inputs of a model that has no loader' AS unknown WHERE NOT EXISTS (SELECT 1 FROM kept) AND NOT EXISTS (SELECT 1 FROM given WHERE n >= $looks)
