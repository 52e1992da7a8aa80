-- title = "ranks save to the same file"
-- severity = "alarm"
-- symptoms = ["slow"]
-- order = 530
-- scope = "job"
-- needs = "two saved files, and the hosts of the ranks"
-- what = "{ranks} ranks save to the same file: {path}"
-- why = [
--   "{saves} saves by ranks {which}, from step {step} to {last}; it is the same file for all of them (same device and inode)",
--   "concurrent writes can leave a mixed or truncated file; if a rank is killed while writing, no usable checkpoint may be left",
--   "let only rank 0 write, then call dist.barrier() on all ranks (a sharded model's state_dict must still be gathered on every rank); or put the rank into the file name, or use torch.distributed.checkpoint",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT rank, step, path, file, bytes FROM python.saves ORDER BY t_ns DESC LIMIT 20\"",
-- ]
-- false_positives = "ranks that take turns: only saves within two seconds of each other count"
-- [parameters.saves]
-- value = 2
-- unit = "simultaneous saves"
-- source = "ours"
-- [parameters.apart_s]
-- value = 2.0
-- unit = "s"
-- source = "ours"
WITH hosts AS (
    SELECT rank, ARG_MAX(value, t_ns) AS host FROM probe.facts WHERE kind = 'hardware' AND name = 'host' GROUP BY rank
), saves AS (
    -- By host: machines that were made alike number their files alike.
    SELECT rank, host, step, t_ns, path, file, bytes FROM python.saves JOIN hosts USING (rank) WHERE file IS NOT NULL AND bytes > 0
), together AS (
    SELECT a.path, a.file, a.step, a.rank, b.rank AS other FROM saves a JOIN saves b ON a.host = b.host AND a.file = b.file AND a.path = b.path AND a.rank < b.rank AND ABS(a.t_ns - b.t_ns) <= 1e9 * $apart_s
), found AS (
    SELECT path, COUNT(DISTINCT step) AS saves, MIN(step) AS step, MAX(step) AS last, list_sort(list_distinct(list_concat(LIST(rank), LIST(other)))) AS all_ranks FROM together GROUP BY path, file
)
SELECT NULL AS unknown, path AS subject, path, saves, step, last, LEN(all_ranks) AS ranks, array_to_string(all_ranks[:16], ', ') AS which FROM found WHERE saves >= $saves
UNION ALL BY NAME
SELECT 'no rank has saved twice' AS unknown FROM (SELECT MAX(n) AS n FROM (SELECT COUNT(*) AS n FROM saves GROUP BY rank)) WHERE COALESCE(n, 0) < $saves
