-- title = "small eps in normalization"
-- severity = "info"
-- symptoms = ["nan"]
-- order = 430
-- scope = "rank"
-- needs = "the list of modules, recorded once the model is known"
-- what = "{n} normalization layers have eps {eps:.0e}, the first {module} ({class}); {reason}"
-- why = ["usual: 1e-5 (torch's default), 1e-6 in large language models", "weights of {dtype}; smallest normal number {tiny:.1e}"]
-- next = [
--   "probe {endpoint} query \"SELECT module, class, eps FROM python.modules WHERE eps < 1e-6\"",
--   "probe {endpoint} eval --at-step \"for m in model.modules():\n    if hasattr(m, 'eps') and 'Norm' in type(m).__name__: m.eps = max(m.eps or 0, 1e-6)\"",
-- ]
-- false_positives = "1e-12, as in BERT: `info`, also with AMP and in half precision, because torch's normalizations compute in float32; a notice below 1e-12, or if a custom normalization in float16 rounds it to 0"
-- [parameters.eps]
-- value = 1e-6
-- unit = "eps"
-- source = "practice: raise anything below 1e-6 (LLM training guides); torch's default is 1e-5; BERT has 1e-12"
-- [parameters.halfs]
-- value = 3e-8
-- unit = "eps"
-- source = "float16: half of its smallest positive number"
-- [parameters.least]
-- value = 1e-12
-- unit = "eps"
-- source = "BERT: 1e-12, the smallest in wide use"
WITH latest AS (
    SELECT module, ARG_MAX(class, t_ns) AS class, ARG_MAX(eps, t_ns) AS eps, MAX(step) AS step FROM python.modules GROUP BY module
), types AS (
    SELECT MODE(dtype) AS dtype FROM python.parameters
), small AS (
    -- Where torch's own work with half precision, they compute in float32 inside; bfloat16 reaches as far down as float32.
    SELECT COUNT(*) AS n, MIN(eps) AS eps, COUNT(*) FILTER (eps < $halfs AND NOT regexp_matches(class, '^((Sync)?Batch|Lazy.*|Layer|Group|Instance)Norm')) > 0 AS own, ARG_MIN(module, (eps, module)) AS module, ARG_MIN(class, (eps, module)) AS class, MIN(step) AS step
    FROM latest WHERE eps < $eps AND regexp_matches(class, 'Norm')
), judged AS (
    SELECT *, own AND COALESCE(regexp_matches(dtype, '(^|[.])float16$'), false) AS half FROM small, types WHERE n > 0
)
SELECT NULL AS unknown, module AS subject, n, eps, module, class, step, replace(dtype, 'torch.', '') AS dtype,
    CASE WHEN half THEN 6e-8 ELSE 1.2e-38 END AS tiny,
    CASE WHEN half THEN 'half precision may round it to 0: a constant input then divides by 0'
        WHEN eps < $least THEN 'a constant input is then divided by almost zero' ELSE 'sufficient in float32, in which it is added' END AS reason,
    CASE WHEN half OR eps < $least THEN 'notice' ELSE 'info' END AS severity
FROM judged
UNION ALL BY NAME
SELECT 'the modules are not known yet' AS unknown FROM latest HAVING COUNT(*) = 0
