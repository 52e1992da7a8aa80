-- title = "much time in one place of the program"
-- severity = "info"
-- symptoms = ["slow"]
-- order = 526
-- scope = "rank"
-- needs = "about twenty samples of the training thread, one per second"
-- what = "{share:.0%} of the time goes into {thing}, at {place}"
-- why = [
--   "seen there in {seen} of {n} samples of the training thread, one per second, from step {step} to {last}; evaluations and checkpoint saves are not counted",
--   "mostly in {deepest}",
--   "{hint}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT place, frame, COUNT(*) AS looks, SUM(wall_ns) / 1e9 AS seconds FROM python.stack_samples WHERE training GROUP BY ALL ORDER BY looks DESC LIMIT 15\"",
--   "probe {endpoint} backtrace",
--   "probe {endpoint} profile --steps 3 -o slow.json",
-- ]
-- false_positives = "training work in the program's own code: an environment, a simulation, custom batch building (`info`); an occasional copy, log or process in a short run"
-- explains = ["time-outside", "low-mfu"]
-- [parameters.least]
-- value = 24
-- unit = "samples"
-- source = "ours"
-- [parameters.seen]
-- value = 5
-- unit = "samples in the place"
-- source = "ours: fewer may be a single pause"
-- [parameters.share]
-- value = 0.2
-- unit = "ratio of the time"
-- source = "ours: copying, logging and the like should take a few percent"
-- [parameters.line]
-- value = 0.3
-- unit = "ratio of the time"
-- source = "ours: for a line of the program's own code that is in no known phase of a step"
-- [parameters.window_s]
-- value = 600.0
-- unit = "s"
-- source = "ours"
WITH RECURSIVE recent AS (
    SELECT * FROM python.stack_samples WHERE training AND step >= 2 AND place IS NOT NULL AND t_ns >= (SELECT MAX(t_ns) FROM python.stack_samples) - 1e9 * $window_s
), looks AS (
    -- Without evaluations and checkpoints, which have recipes of their own.
    SELECT r.*, COALESCE(NOT s.shadow AND s.other_s IS NOT NULL, false) AS timed FROM recent r LEFT JOIN python.steps s ON s.step = r.step
    WHERE NOT EXISTS (SELECT 1 FROM python.intervals i WHERE i.t_ns <= r.t_ns AND r.t_ns <= i.t_ns + 1e9 * COALESCE(i.duration_s, 1e6) AND i.state IN ('done', 'pending'))
), chains AS (
    SELECT node AS leaf, node, 0 AS depth FROM (SELECT DISTINCT node FROM looks)
    UNION ALL
    SELECT c.leaf, n.parent, c.depth + 1 FROM chains c JOIN python.stack_nodes n ON n.node = c.node WHERE n.parent IS NOT NULL AND c.depth < 64
), known(number, pattern, thing, hint) AS (VALUES
    (1, '^[^ ]*deepcopy[^ ]* \(copy\.py:|^_reconstruct \(copy\.py:', 'copying objects (copy.deepcopy)', 'copy once per epoch, or only after an improvement; for a weight average, keep one copy and update it in place'),
    (2, '\((popen_fork|popen_spawn_posix|popen_forkserver)\.py:', 'starting processes', 'the workers of a loader are started for each new iterator: iterate over the loader, or set persistent_workers=True'),
    (3, '\(subprocess\.py:', 'running other programs (subprocess)', 'run it once, on another thread, or every few hundred steps'),
    (4, '\((tensorboardX|tensorboard|torch/utils/tensorboard|wandb|mlflow|comet_ml|neptune|clearml|aim)/', 'logging to an experiment tracker', 'log every few hundred steps, and histograms, images and graphs more rarely than numbers'),
    (5, '\((matplotlib|seaborn|plotly|PIL/ImageDraw)', 'drawing', 'plot once per epoch, or afterwards from the logs'),
    (6, '\(torch/_tensor_str\.py:', 'printing tensors', 'print numbers every few hundred steps'),
    (7, '^(Logger|Handler|StreamHandler|FileHandler)\.[^ ]+ \(__init__\.py:|^callHandlers \(__init__\.py:|\(loguru/|\(traceback\.py:', 'log lines', 'log every few hundred steps; a logger with many handlers writes each line many times'),
    (8, '^(JSONEncoder\.|_make_iterencode|_iterencode)[^ ]* \(encoder\.py:|^dumps? \(__init__\.py:|\(yaml/', 'writing text files (JSON, YAML, CSV)', 'append one line for each record, and not the whole history'),
    (9, '\((requests|urllib3|botocore|boto3|s3fs|gcsfs)/', 'requests over the network', 'fetch ahead on another thread, or once'),
    (10, '^[^ ]*(all_gather_object|gather_object|broadcast_object_list|scatter_object_list|_object_to_tensor|_tensor_to_object)[^ ]* \(torch/distributed/', 'collectives of Python objects, which are pickled', 'reduce tensors instead; gather objects once per epoch'),
    (11, '\((bdb|pdb)\.py:|\((coverage|debugpy)/', 'a debugger or a profiler', 'run without it'),
    (12, '\(torch/_dynamo/(symbolic_convert|output_graph)\.py:|\(torch/_inductor/(graph|scheduler|codegen/[^:]*)\.py:', 'compiling', 'shapes or constants that change make torch.compile recompile: mark them as dynamic'),
    (13, '\(sklearn/|\(torchmetrics/|\(scipy/', 'metrics and statistics', 'compute them once per epoch, from stored results'),
    (14, '\(pickle\.py:|\((gzip|zipfile|tarfile|lzma|bz2|shutil)\.py:', 'pickling and packing files', 'write less often')
), loading AS (
    -- What a data set does is part of loading, but for the start of the workers.
    SELECT DISTINCT c.leaf FROM chains c JOIN python.stack_nodes n ON n.node = c.node WHERE regexp_matches(n.frame, '\(torch/utils/data/')
), named AS (
    SELECT c.leaf, MIN(k.number) AS number FROM chains c JOIN python.stack_nodes n ON n.node = c.node JOIN known k ON regexp_matches(n.frame, k.pattern)
    WHERE k.number = 2 OR c.leaf NOT IN (SELECT leaf FROM loading) GROUP BY c.leaf
), whole AS (
    SELECT COUNT(*) AS n, SUM(wall_ns) AS wall_ns, MIN(step) AS step, MAX(step) AS last, COUNT(*) FILTER (timed) AS timed_n, SUM(wall_ns) FILTER (timed) AS timed_ns FROM looks
), things AS (
    SELECT number, COUNT(*) AS seen, SUM(l.wall_ns) AS spent_ns, MODE(l.place) AS place, MODE(l.frame) AS deepest, COUNT(DISTINCT l.step) AS steps FROM looks l JOIN named ON named.leaf = l.node GROUP BY number
), lines AS (
    -- Lines of the program in no phase of a step; only where the phases of the step were timed.
    SELECT place, COUNT(*) AS seen, SUM(wall_ns) AS spent_ns, MODE(frame) AS deepest, COUNT(DISTINCT l.step) AS steps FROM looks l
    WHERE timed AND phase = 'other' AND NOT COALESCE(asleep, false) AND NOT EXISTS (SELECT 1 FROM named WHERE leaf = l.node) GROUP BY place
)
SELECT NULL AS unknown, thing AS subject, spent_ns / wall_ns AS share, thing, place, deepest, seen, n, step, last, hint,
    CASE WHEN spent_ns >= $share * wall_ns THEN 'notice' ELSE 'info' END AS severity
FROM things JOIN known USING (number), whole WHERE n >= $least AND seen >= $seen AND steps >= $seen AND spent_ns >= $share / 2 * wall_ns
UNION ALL BY NAME
SELECT NULL AS unknown, place AS subject, spent_ns / timed_ns AS share, 'one line of the program''s own code, outside of loading, forward, backward and the optimizer''s step' AS thing, place, deepest, seen, timed_n AS n, step, last,
    'what is computed there in each step: could it run every hundred steps, for all parameters at once, or not at all?' AS hint, 'info' AS severity
FROM lines, whole WHERE timed_n >= $least AND seen >= $seen AND steps >= $seen AND spent_ns >= $line * timed_ns
UNION ALL BY NAME
SELECT format('{} samples of the training thread, {} are needed', n, $least) AS unknown FROM whole WHERE n < $least
