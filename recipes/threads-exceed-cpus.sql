-- title = "more threads than CPUs"
-- severity = "notice"
-- symptoms = ["slow"]
-- order = 523
-- scope = "rank"
-- needs = "the number of torch threads, and of CPUs that the process may use"
-- what = "{fact}"
-- why = [
--   "torch.get_num_threads() is {each:.0f}{from_where}; the process may use {cpus:.1f} CPUs{quota}",
--   "the process has {alive:.0f} threads",
--   "the training thread was runnable but waited for a CPU {waited:.0%} of the time",
--   "the threads of one operation wait for each other at its end, so one thread without a CPU delays all: over all ranks of the host, use at most one thread per CPU (OMP_NUM_THREADS, or torch.set_num_threads)",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT name, value FROM probe.facts WHERE name IN ('torch.num_threads', 'OMP_NUM_THREADS', 'LOCAL_WORLD_SIZE', 'cpus', 'cpus_online', 'cpu_quota')\"",
--   "probe {endpoint} eval \"print(torch.get_num_threads(), len(__import__('os').sched_getaffinity(0)))\"",
-- ]
-- false_positives = "idle threads: a model on a GPU, operations too small to split (`info` if the model is on a GPU, with fewer than twice as many threads as CPUs, or while the threads have not been started)"
-- explains = ["low-mfu", "slow-step", "throughput-drop", "slow-module"]
-- [parameters.ratio]
-- value = 2.0
-- unit = "threads per CPU"
-- source = "ours: lower ratios come from hyper-threads counted as cores, or from one rank too many"
-- [parameters.known]
-- value = 1.25
-- unit = "threads per CPU"
-- source = "ours: `info` from here on"
WITH told AS (
    SELECT name, ARG_MAX(value, t_ns) AS value, ARG_MAX(COALESCE(number, TRY_CAST(value AS DOUBLE)), t_ns) AS number FROM probe.facts WHERE kind IN ('environment', 'hardware') GROUP BY name
), known AS (
    SELECT MAX(number) FILTER (name = 'torch.num_threads') AS each, COALESCE(MAX(number) FILTER (name = 'LOCAL_WORLD_SIZE'), 1) AS beside, MAX(number) FILTER (name = 'cpus') AS usable, MAX(number) FILTER (name = 'cpus_online') AS online, MAX(number) FILTER (name = 'cpu_quota') AS quota_cpus,
        MAX(value) FILTER (name = 'OMP_NUM_THREADS') AS omp, COUNT(*) FILTER (name = 'device_type') > 0 AS device FROM told
), memory AS (
    SELECT MAX(threads) AS alive, (MAX(cpu_wait_ns) - MIN(cpu_wait_ns)) / NULLIF(MAX(t_ns) - MIN(t_ns), 0) AS waited FROM (SELECT * FROM process.memory WHERE step >= 2 ORDER BY t_ns DESC LIMIT 60)
), shared AS (
    -- Ranks that may use a part of the CPUs only have perhaps a part each: then only their own threads count.
    SELECT *, CASE WHEN usable >= online OR quota_cpus < usable THEN beside ELSE 1 END AS ranks FROM known
), judged AS (
    SELECT *, LEAST(usable, COALESCE(quota_cpus, usable)) AS cpus, each * ranks / LEAST(usable, COALESCE(quota_cpus, usable)) AS per_cpu FROM shared, memory
)
SELECT NULL AS unknown, 'threads' AS subject, each, cpus, alive, waited, (SELECT MIN(step) FROM python.steps) AS step,
    CASE WHEN omp IS NULL THEN '' WHEN TRY_CAST(omp AS DOUBLE) = each THEN ', from OMP_NUM_THREADS' ELSE format(', though OMP_NUM_THREADS is {}: the program sets it', omp) END AS from_where, CASE WHEN quota_cpus < usable THEN ', by the quota of its control group' ELSE '' END AS quota,
    CASE WHEN per_cpu >= $ratio AND alive >= each AND NOT device THEN 'notice' ELSE 'info' END AS severity,
    CASE WHEN ranks > 1 THEN format('the {:.0f} ranks of this host take {:.0f} threads each for an operation: {:.0f} threads on {:.1f} CPUs', ranks, each, each * ranks, cpus) ELSE format('torch divides each operation among {:.0f} threads, on {:.1f} CPUs', each, cpus) END AS fact
FROM judged WHERE per_cpu >= $known AND each > 1
UNION ALL BY NAME
SELECT 'threads and CPUs are not known yet' AS unknown FROM known WHERE each IS NULL OR usable IS NULL
