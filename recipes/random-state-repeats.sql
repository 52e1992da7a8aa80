-- title = "random numbers repeat"
-- severity = "notice"
-- symptoms = ["loss", "data"]
-- order = 128
-- scope = "rank"
-- needs = "calls that seed a random generator after the first step"
-- what = "the same random numbers repeat: {generator} was seeded {calls} times since the first step, and {n} steps began with the same random state"
-- why = [
--   "seed {seed}, set at {place}; the same state at steps {steps}",
--   "from there on, shuffling, dropout, augmentation and noise repeat; seed once at the start, or restore the state after an evaluation (torch.random.fork_rng)",
--   "{doubt}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, generator, seed, place, state, drawn FROM python.random_states WHERE reason = 'seeded' ORDER BY step DESC LIMIT 20\"",
-- ]
-- false_positives = "common random numbers on purpose; a generator that training does not draw from (`info` if nothing was drawn between seeding and the step)"
-- explains = ["batches-repeat", "validation-rising", "train-validation-gap", "plateau"]
-- [parameters.least]
-- value = 3
-- unit = "steps with the same state"
-- source = "ours: twice may be due to a new training stage"
WITH seeded AS (
    SELECT * FROM python.random_states WHERE reason = 'seeded' AND state IS NOT NULL
), same AS (
    SELECT generator, optimizers, state, COUNT(DISTINCT step) AS n, MIN(step) AS first, MAX(step) AS last, MAX(calls) AS calls, ANY_VALUE(seed) AS seed, MODE(place) AS place, BOOL_OR(drawn) AS drawn,
        array_to_string(list(DISTINCT step ORDER BY step DESC)[:5], ', ') AS steps
    FROM seeded GROUP BY generator, optimizers, state HAVING COUNT(DISTINCT step) >= $least
)
SELECT NULL AS unknown, generator, generator AS subject, n, first AS step, calls, COALESCE(seed::VARCHAR, 'unknown') AS seed, place, steps, CASE WHEN drawn THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN NOT drawn THEN 'nothing was drawn from it on the CPU between the seeding and the step' END AS doubt
FROM same QUALIFY ROW_NUMBER() OVER (PARTITION BY generator ORDER BY drawn DESC, n DESC) = 1
