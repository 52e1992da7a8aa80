-- title = "schedule out of step with the training"
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
-- false_positives = "a training of less than one epoch whose rate has its own end long before; a warm-up over millions of steps on purpose"
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
-- source = "ours: `info`, as nobody can tell a long warm-up from one that is too long where its end is not known"
-- [parameters.longest]
-- value = 50000
-- unit = "steps"
-- source = "practice: warm-ups last 100 to 10,000 steps; a straight rise tells its length as soon as it is seen to be straight"
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
), facts AS (
    SELECT 'ended' AS subject, 'notice' AS severity, format('the schedule is over before the first epoch is: the rate fell to {:.2g} of its highest by step {}', lr / highest, ended.step) AS fact,
        format('step {} is batch {} of the first pass over {}, and the training went on: a schedule counted in epochs is stepped for each batch', ended.step, place, loader) AS evidence,
        ended.step AS step, last, lr, highest, peak
    FROM rates, ended, epoch WHERE ended.step IS NOT NULL AND epoch.epoch = 0 AND last - ended.step >= GREATEST($least, $after * (ended.step - rates.step))
        AND falls > 0 AND NOT EXISTS (SELECT 1 FROM probe.actions WHERE action = 'lr')
    UNION ALL BY NAME
    SELECT 'circles' AS subject, 'notice' AS severity, format('the learning rate swings up and down: {} rises again after {} steps of falling, since T_max is {:.0f}', class, t_max, t_max) AS fact,
        format('it has turned upwards {} times in {} steps: a cosine rises again beyond T_max, which counts calls of scheduler.step(), here for each batch', turns, n) AS evidence,
        turns.step AS step, last, lr, highest, peak
    FROM rates, turns, scheduler WHERE class = 'CosineAnnealingLR' AND t_max > 0 AND turns >= 2 AND last - rates.step > 2 * t_max
    UNION ALL BY NAME
    SELECT 'warm-up' AS subject, CASE WHEN long THEN 'notice' ELSE 'info' END AS severity,
        CASE WHEN long THEN format('the warm-up is too long: after {} steps the rate is {:.2g}, {:.2g} of the {:.2g} it rises to', n, lr, lr / base, base)
            ELSE format('the warm-up is not over: the learning rate still rises after {} steps, {:.2g} now', n, lr) END AS fact,
        CASE WHEN long THEN format('at this pace it takes {:.0f} steps; warm-ups are counted in steps, not in samples', (last + 1) * base / lr)
            ELSE format('it has risen on {} steps and fallen on none, by {:.2g} a step', rises, (lr - first) / (last - step)) END AS evidence,
        step, last, lr, highest, peak
    FROM (SELECT *, COALESCE(class IS NOT NULL AND (last + 1) * base / lr > $longest AND straight, false) AS long FROM rates, scheduler, line)
    WHERE step <= 2 AND falls = 0 AND rises > 0.9 * (n - 1) AND lr > 0 AND (n >= $warming OR long AND n >= $least)
)
SELECT NULL AS unknown, * FROM facts
UNION ALL BY NAME
SELECT format('the learning rate of {} steps is known, {} are needed', n, $least) AS unknown FROM rates WHERE n < $least
