-- title = "random numbers in evaluation"
-- severity = "info"
-- symptoms = ["loss"]
-- order = 66
-- scope = "rank"
-- needs = "two evaluations in eval mode with recorded module calls"
-- what = "{fact}"
-- why = [
--   "in {n} of {looks} sampled evaluations, up to step {last}",
--   "{evidence}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, place, drawn, dropout FROM python.random_states WHERE reason = 'evaluation' ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "models that sample on purpose, such as variational autoencoders and diffusion (`info`); dropout kept active on purpose to estimate uncertainty"
-- explains = ["train-validation-gap", "validation-rising"]
-- [parameters.least]
-- value = 2
-- unit = "evaluations"
-- source = "ours"
WITH looks AS (
    SELECT * FROM python.random_states WHERE reason = 'evaluation'
), counted AS (
    SELECT COUNT(*) AS looks, COUNT(*) FILTER (drawn) AS n, COUNT(*) FILTER (dropout) AS kept, MODE(place) FILTER (drawn) AS place, MIN(step) FILTER (drawn) AS step, MAX(step) AS last FROM looks
), registered AS (
    -- A dropout that the model holds is reached by eval(): something has set it back to train mode, as Monte Carlo dropout does.
    SELECT COUNT(*) > 0 AS yes FROM python.modules WHERE p > 0
)
SELECT NULL AS unknown, looks, n, place, place AS subject, step, last, CASE WHEN kept >= $least AND NOT registered.yes THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN kept >= $least THEN format('dropout stays on in evaluation: the model is in eval mode, but a {} inside it is in train mode', place)
        ELSE format('the model draws random numbers in evaluation, although it is in eval mode: between {}', place) END AS fact,
    CASE WHEN kept >= $least AND registered.yes THEN 'the model holds dropout layers, which eval() reaches: Monte Carlo dropout sets them back to train mode, and so does a train() on a part of the model'
        WHEN kept >= $least THEN 'a dropout layer constructed inside forward is always in train mode: construct it in __init__, so that eval() reaches it'
        ELSE 'possible sources: F.dropout without training=self.training, or intended noise; nothing else is random in eval mode' END AS evidence
FROM counted, registered WHERE n >= $least
UNION ALL BY NAME
SELECT format('{} evaluations in eval mode were sampled, {} are needed', looks, $least) AS unknown FROM counted WHERE looks < $least
