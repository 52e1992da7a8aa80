-- title = "schedule does not match the training"
-- severity = "notice"
-- symptoms = ["loss"]
-- order = 325
-- scope = "rank"
-- needs = "the learning rate of each step, and for a part of the checks a DataLoader or a scheduler"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "learning rate {lr:.3g} at step {last}, {highest:.3g} at its highest (step {peak})",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, lr FROM python.steps WHERE step % 10 = 0 ORDER BY step\"",
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE name LIKE 'scheduler%'\"",
-- ]
-- false_positives = "a scheduler stepped once per epoch on purpose, in a run of more than 5000 epochs; a run of less than one epoch whose schedule ends long before on purpose; a warm-up over millions of steps on purpose"
-- explains = ["learning-rate-too-low", "learning-rate-zero", "slow-decrease", "plateau"]
-- [parameters.ended]
-- value = 0.01
-- unit = "ratio of the highest rate"
-- source = "practice: schedules end at a tenth to a thousandth of the peak; below a hundredth little is learned"
-- [parameters.after]
-- value = 0.2
-- unit = "ratio of the steps until then"
-- source = "ours: a cosine over exactly one epoch is below a hundredth of its peak for the last 6 % of it"
-- [parameters.least]
-- value = 50
-- unit = "steps"
-- source = "ours"
-- [parameters.warming]
-- value = 200
-- unit = "steps"
-- source = "ours: `info`, because without a known end, a long warm-up cannot be distinguished from one that is too long"
-- [parameters.longest]
-- value = 50000
-- unit = "steps"
-- source = "practice: warm-ups last 100 to 10,000 steps; a linear rise reveals its length as soon as it is seen to be linear"
-- [parameters.epochs]
-- value = 500
-- unit = "counts"
-- source = "practice: runs last 1 to 300 epochs, small ones up to thousands. `info` below ten times as many, unless the length is a multiple of the batches of a pass"
-- [parameters.warm_epochs]
-- value = 50
-- unit = "epochs"
-- source = "practice: warm-ups take 5 to 40 epochs at most (vision transformers, masked autoencoders)"
WITH seen AS (
    SELECT step, lr, LAG(lr) OVER (ORDER BY step) AS before FROM python.steps WHERE lr IS NOT NULL
), rates AS (
    SELECT COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(lr, step) AS lr, ARG_MIN(lr, step) AS first, MAX(lr) AS highest, ARG_MAX(step, lr) AS peak,
        COUNT(*) FILTER (lr < before) AS falls, COUNT(*) FILTER (lr > before) AS rises FROM seen
), ended AS (
    SELECT MIN(seen.step) AS step FROM seen, rates WHERE seen.step > peak AND seen.lr <= $ended * highest
        AND seen.step > COALESCE((SELECT MAX(s.step) FROM seen s, rates r WHERE s.lr > $ended * r.highest), 0)
), epoch AS (
    SELECT MIN(epoch) AS epoch, MIN(place) AS place, ANY_VALUE(loader) AS loader FROM python.batches
    WHERE step = (SELECT step FROM ended) AND state = 'done' AND loader IN (
        SELECT loader FROM python.batches WHERE state = 'done' GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (MAX(step) - MIN(step) + 1))
), scheduler AS (
    SELECT ANY_VALUE(value) FILTER (name = 'scheduler') AS class, MAX(number) FILTER (name = 'scheduler.T_max') AS t_max, MAX(number) FILTER (name = 'optimizer.lr') AS base
    FROM probe.facts WHERE kind = 'hyperparameter'
), turns AS (
    SELECT COUNT(*) AS turns, MIN(step) AS step FROM (
        SELECT step, lr > before AS up, LAG(lr > before) OVER (ORDER BY step) AS was FROM seen WHERE lr <> before) WHERE up AND NOT was
), line AS (
    SELECT COALESCE(CORR(lr, step) > 0.999, false) AS straight FROM seen
), feeding AS (
    SELECT MAX(epoch) AS passes, MAX(place) + 1 AS batches FROM python.batches WHERE state = 'done' AND loader IN (
        SELECT loader FROM python.batches WHERE state = 'done' GROUP BY loader HAVING COUNT(DISTINCT step) > 0.5 * (MAX(step) - MIN(step) + 1))
), counts AS (
    SELECT number, ANY_VALUE(scheduler) AS made, MAX(count) - MIN(count) AS counted, MIN(count) AS first_count, MAX(count) AS count, MAX(step) - MIN(step) AS steps, ANY_VALUE(length) AS length, ANY_VALUE(base_lr) AS base,
        ARG_MIN(lr, count) AS from_lr, ARG_MAX(lr, count) AS to_lr, CORR(lr, count) AS straight
    FROM python.schedulers WHERE leads AND metric IS NULL AND mode IS NULL AND count IS NOT NULL GROUP BY number
), rarely AS (
    SELECT *, CASE WHEN to_lr > from_lr AND base > to_lr AND straight > 0.98 THEN (base - to_lr) / ((to_lr - from_lr) / counted) END AS warming FROM counts, feeding
    WHERE (counted >= 2 AND steps >= 20 * counted OR counted = 1 AND first_count = 0 AND passes > 0 AND length >= $epochs AND steps >= 100) AND ABS(count - first_count - (passes - COALESCE((SELECT MIN(epoch) FROM python.batches WHERE step >= (SELECT MIN(step) FROM python.schedulers)), 0))) <= 2
), planned AS (
    SELECT MIN(number) AS epochs FROM probe.facts WHERE kind = 'hyperparameter' AND number >= 1 AND regexp_matches(name, '(^|[.])(epochs|num_epochs|max_epochs|n_epochs|num_train_epochs)$')
), ends AS (
    -- The end that the loops around the training have.
    SELECT ARG_MAX(total_steps, t_ns) AS total FROM python.plan WHERE source LIKE 'for %'
), facts AS (
    SELECT 'too long' AS subject, 'info' AS severity, format('the schedule does not reach its end: {} is {} counts long, but the training ends after {:.0f} epochs', made, length, epochs) AS fact,
        format('it is stepped once per epoch: it has counted {} in {} steps', counted, steps) AS evidence, rates.step, last, lr, highest, peak
    FROM rarely, planned, rates WHERE length < $epochs AND length > 2 * epochs AND made <> 'StepLR'
    UNION ALL BY NAME
    -- A whole number of passes, and no more of them so far, or very many counts: the length counts steps. Else nobody knows.
    SELECT 'per epoch' AS subject, CASE WHEN length >= $epochs AND length < 10 * $epochs AND (COALESCE(length % batches, 1) <> 0 OR count >= length / batches) THEN 'info' ELSE 'notice' END AS severity, CASE WHEN length >= $epochs THEN format('the schedule is stepped once per epoch, but is {} counts long: {} has counted {}, and the rate is {:.2g}', length, made, count, to_lr)
            ELSE format('the schedule is stepped once per epoch, and its warm-up would take {:.0f} epochs: {} has counted {}, and the rate is {:.2g} of the {:.2g} it rises to', warming + count, made, count, to_lr, base) END AS fact,
        format('it counted {} in {} steps: at this pace {} {:.0f} steps; call its step() after each optimizer step, or count epochs', counted, steps, CASE WHEN length >= $epochs THEN 'it ends after' ELSE 'the warm-up takes' END,
            (CASE WHEN length >= $epochs THEN length ELSE warming + count END) * steps / counted) AS evidence,
        rates.step, last, lr, highest, peak
    FROM rarely, rates WHERE COALESCE(length >= $epochs AND length NOT IN (SELECT epochs FROM planned WHERE epochs IS NOT NULL), false)
            -- Within the epochs that the loops will make, it comes to its end.
            AND NOT COALESCE((SELECT length <= 1.02 * total / batches + 1 FROM ends, feeding), false) OR COALESCE(warming >= $warm_epochs AND to_lr < 0.5 * base, false)
    UNION ALL BY NAME
    SELECT 'ended' AS subject, 'notice' AS severity, format('the schedule is over before the first epoch is: the rate fell to {:.2g} of its highest by step {}', lr / highest, ended.step) AS fact,
        format('step {} is batch {} of the first pass over {}, and training went on: a schedule counted in epochs is stepped once per batch', ended.step, place, loader) AS evidence,
        ended.step AS step, last, lr, highest, peak
    FROM rates, ended, epoch WHERE ended.step IS NOT NULL AND epoch.epoch = 0 AND last - ended.step >= GREATEST($least, $after * (ended.step - rates.step))
        -- A fall to a fiftieth in one step is no schedule: a test of the range of rates is over, and the rate is set.
        AND falls > 0 AND NOT EXISTS (SELECT 1 FROM seen WHERE seen.step = ended.step AND seen.lr < 0.02 * seen.before)
        AND NOT EXISTS (SELECT 1 FROM probe.actions WHERE action = 'lr')
    UNION ALL BY NAME
    SELECT 'circles' AS subject, 'notice' AS severity, format('the learning rate swings up and down: {} rises again after {} steps of falling, since T_max is {:.0f}', class, t_max, t_max) AS fact,
        format('it turned upwards {} times in {} steps: a cosine rises again after T_max calls of scheduler.step(), which is called here for each batch', turns, n) AS evidence,
        turns.step AS step, last, lr, highest, peak
    FROM rates, turns, scheduler WHERE class = 'CosineAnnealingLR' AND t_max > 0 AND turns >= 2 AND last - rates.step > 2 * t_max
        -- One schedule that went past its T_max, not several, one after the other, for several trainings.
        AND (NOT EXISTS (SELECT 1 FROM counts) OR EXISTS (SELECT 1 FROM counts WHERE made = class AND count > t_max))
    UNION ALL BY NAME
    SELECT 'warm-up' AS subject, CASE WHEN long THEN 'notice' ELSE 'info' END AS severity,
        CASE WHEN long THEN format('the warm-up is too long: after {} steps the rate is {:.2g}, {:.2g} of the {:.2g} it rises to', n, lr, lr / base, base)
            ELSE format('the warm-up is not over: the learning rate still rises after {} steps, {:.2g} now', n, lr) END AS fact,
        CASE WHEN long THEN format('at this pace it takes {:.0f} steps; warm-ups are counted in steps, not in samples', (last + 1) * base / lr)
            ELSE format('it rose in {} steps and fell in none, by {:.2g} per step', rises, (lr - first) / (last - step)) END AS evidence,
        step, last, lr, highest, peak
    FROM (SELECT *, COALESCE(class IS NOT NULL AND (last + 1) * base / lr > $longest AND straight, false) AS long FROM rates, scheduler, line)
    WHERE step <= 2 AND falls = 0 AND rises > 0.9 * (n - 1) AND lr > 0 AND (n >= $warming OR long AND n >= $least)
)
SELECT NULL AS unknown, * FROM facts
UNION ALL BY NAME
SELECT format('the learning rate of {} steps is known, {} are needed', n, $least) AS unknown FROM rates WHERE n < $least
