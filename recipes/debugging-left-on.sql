-- title = "debugging option left on"
-- severity = "notice"
-- symptoms = ["slow", "memory"]
-- order = 526
-- scope = "rank"
-- needs = "gradients from a few sampled steps, and the process settings"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "{cost}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, param, optimizer, differentiable, graph_unused FROM python.updates ORDER BY step DESC LIMIT 10\"",
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE kind = 'environment' OR name = 'autograd.anomaly_mode' ORDER BY name\"",
-- ]
-- false_positives = "Hessian estimates between backward and step that keep the graph (retain_graph=True); active debugging of a NaN or a slow step (`info` in the first steps). Not reported: second-order optimizers (only torch's own are judged), gradients that are differentiated, and a profiler with a schedule, which is off in most samples"
-- explains = ["low-mfu", "host-memory-growth", "device-memory-growth", "slow-step", "throughput-drop", "time-outside", "time-in-one-place"]
-- [parameters.least]
-- value = 4
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.steps]
-- value = 300
-- unit = "steps"
-- source = "ours: NaN debugging is usually over by then"
WITH looks AS (
    SELECT step, BOOL_AND(differentiable AND graph_unused) AS unused, COUNT(*) AS parameters, ANY_VALUE(optimizer) AS optimizer FROM python.updates
    WHERE differentiable IS NOT NULL AND optimizer IS NOT NULL AND at_step = 'present' AND (graph_unused IS NOT NULL OR NOT differentiable) GROUP BY step QUALIFY ROW_NUMBER() OVER (ORDER BY step DESC) <= 8
), graphs AS (
    SELECT COUNT(*) AS n, BOOL_AND(unused) AS unused, MIN(step) AS step, MAX(step) AS last, MAX(parameters) AS parameters, ANY_VALUE(optimizer) AS optimizer FROM looks
), anomaly AS (
    SELECT COUNT(DISTINCT value) = 1 AND ANY_VALUE(value) = 'True' AS on_all FROM probe.facts WHERE name = 'autograd.anomaly_mode'
), steps AS (
    SELECT COUNT(*) AS n, MIN(step) AS step FROM python.steps
)
SELECT NULL AS unknown, 'create_graph' AS subject, step, 'notice' AS severity, 'backward is called with create_graph=True, but nothing differentiates the gradients' AS fact,
    format('the gradients of all {} checked parameters had a graph of their own in all of the last {} samples, from step {} to {}, and it was still intact after the step of {}', parameters, n, step, last, optimizer) AS evidence,
    'each backward records a graph of its own, which takes time and memory and stays alive until the gradients are cleared: gradient penalties and Hessians need it, a plain step does not' AS cost
FROM graphs WHERE n >= $least AND unused
UNION ALL BY NAME
SELECT NULL AS unknown, 'anomaly mode' AS subject, step, CASE WHEN n >= $steps THEN 'notice' ELSE 'info' END AS severity, 'autograd''s anomaly detection is on: torch.autograd.set_detect_anomaly(True)' AS fact,
    format('it was on in every sample; {} steps are recorded', n) AS evidence, 'each forward operation stores a traceback, and each backward result is checked for NaN: a step can take several times as long' AS cost
FROM anomaly, steps WHERE on_all
UNION ALL BY NAME
SELECT NULL AS unknown, subject, step, CASE WHEN mild OR n < $steps THEN 'info' ELSE 'notice' END AS severity, fact, format('{} = {} in every sample since {:.0f} s ago; {} steps are recorded', name, value, seconds, n) AS evidence, cost
FROM (SELECT name, ANY_VALUE(value) AS value, COUNT(DISTINCT value) AS levels, MIN(t_ns) AS since_ns FROM probe.facts WHERE kind = 'environment' GROUP BY name)
JOIN (VALUES
    ('CUDA_LAUNCH_BLOCKING', '^[^0]', true, false, 'CUDA_LAUNCH_BLOCKING', 'every kernel launch blocks: CUDA_LAUNCH_BLOCKING is set', 'the host waits for each kernel to end before it launches the next one'),
    ('PYTORCH_NO_CUDA_MEMORY_CACHING', '^[^0]', true, false, 'PYTORCH_NO_CUDA_MEMORY_CACHING', 'device memory is not cached: PYTORCH_NO_CUDA_MEMORY_CACHING is set', 'the driver allocates each tensor, which synchronizes with the device'),
    ('torch.cudnn.enabled', '^False$', true, false, 'cuDNN', 'cuDNN is switched off: torch.backends.cudnn.enabled is False', 'convolutions and recurrent layers use slower implementations'),
    ('torch.mkldnn.enabled', '^False$', false, false, 'oneDNN', 'oneDNN is switched off: torch.backends.mkldnn.enabled is False', 'convolutions and matrix products on the CPU use slower implementations, many times slower in half precision'),
    ('torch.profiler', '^True$', NULL, false, 'profiler', 'a profiler is left on: torch''s profiler records every operation of every step', 'its records stay in memory until it is stopped, and each operation takes longer: profile a few steps (schedule=torch.profiler.schedule(...)) and stop it'),
    ('python.tracemalloc', '^True$', NULL, false, 'tracemalloc', 'tracemalloc is left on: Python records where each block of memory was allocated', 'each allocation of a Python object stores a traceback: Python code takes several times the time and memory'),
    ('TORCH_DISTRIBUTED_DEBUG', '(?i)^detail$', NULL, false, 'TORCH_DISTRIBUTED_DEBUG', 'each collective is checked with further collectives: TORCH_DISTRIBUTED_DEBUG=DETAIL', 'before each collective, all ranks compare what they are about to call, using additional collectives, and DistributedDataParallel keeps statistics'),
    ('PYTHONMALLOC', 'debug', NULL, false, 'PYTHONMALLOC', 'Python checks its memory allocations: PYTHONMALLOC is debug', 'each allocation and each free writes and checks patterns around the block'),
    ('TORCHDYNAMO_DISABLE', '^[^0]', NULL, true, 'TORCHDYNAMO_DISABLE', 'torch.compile does nothing: TORCHDYNAMO_DISABLE is set', 'models and functions passed to torch.compile run in eager mode'),
    ('torch.deterministic', '^True$', NULL, true, 'deterministic', 'deterministic algorithms only: torch.use_deterministic_algorithms(True)', 'some operations use slower implementations, and new memory is filled; this is the cost of exactly reproducible runs')
) AS known(name, pattern, on_device, mild, subject, fact, cost) USING (name), steps, (SELECT COUNT(*) > 0 AS device FROM probe.facts WHERE kind = 'hardware' AND name = 'device_type'), (SELECT MAX(t_ns) AS now_ns FROM python.steps), LATERAL (SELECT GREATEST(0, (now_ns - since_ns) / 1e9) AS seconds)
WHERE levels = 1 AND regexp_matches(value, pattern) AND COALESCE(on_device = device, true)
UNION ALL BY NAME
SELECT NULL AS unknown, name AS subject, step, CASE WHEN n >= $steps THEN 'notice' ELSE 'info' END AS severity, format('Python calls {} for each {} of the program: {}', value, CASE name WHEN 'python.profile' THEN 'function call' ELSE 'line' END, CASE name WHEN 'python.profile' THEN 'a profiler is left on' ELSE 'a debugger, a tracer or coverage measurement is left on' END) AS fact,
    format('it was on in every sample of the training thread; {} steps are recorded', n) AS evidence, 'Python code takes several times as long, which matters when the operations are short' AS cost
FROM (SELECT name, ANY_VALUE(value) AS value, COUNT(DISTINCT value) AS levels FROM probe.facts WHERE kind = 'environment' AND name IN ('python.profile', 'python.trace') GROUP BY name), steps
WHERE levels = 1 AND value NOT IN ('off', 'TraceContext')
UNION ALL BY NAME
SELECT format('gradients were sampled on {} steps, {} are needed', n, $least) AS unknown FROM graphs WHERE n < $least
