-- title = "dropout is recomputed with another mask"
-- severity = "alarm"
-- symptoms = ["gradients", "loss"]
-- order = 213
-- scope = "rank"
-- needs = "dropout inside activation checkpoints on the CPU, on a sampled step"
-- what = "activation checkpointing does not restore the random state: dropout {place} draws another mask when its forward is recomputed, so the gradients are not those of the loss"
-- why = [
--   "in {n} of {looks} sampled steps, from step {step} on, {calls} calls compared",
--   "checkpoint(…, preserve_rng_state=True), the default, reuses the same mask",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, place, calls, drawn FROM python.random_states WHERE reason = 'recomputed' ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "none known: loss and gradient must use the same mask"
-- explains = ["slow-decrease", "plateau", "oscillation"]
-- [parameters.least]
-- value = 2
-- unit = "sampled steps, or calls in one"
-- source = "ours: the random state is either exactly equal or was not restored"
WITH looks AS (
    SELECT * FROM python.random_states WHERE reason = 'recomputed' ORDER BY t_ns DESC LIMIT 16
), counted AS (
    SELECT COUNT(*) AS looks, COUNT(*) FILTER (drawn) AS n, MODE(place) FILTER (drawn) AS place, MIN(step) FILTER (drawn) AS step, SUM(calls) FILTER (drawn) AS calls FROM looks
)
SELECT NULL AS unknown, looks, n, place, place AS subject, step, calls FROM counted WHERE n = looks AND (n >= $least OR calls >= $least)
UNION ALL BY NAME
SELECT 'no dropout was seen inside an activation checkpoint' AS unknown FROM counted WHERE looks = 0
