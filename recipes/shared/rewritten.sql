-- Where the loss began to be computed in another way: behind step `last_old` and up to step `first_new`, its graph
-- went from `was` nodes to `became` nodes, and was of one size in the three samples before and, so far, in the two after.
-- Losses before and after do not mean the same.
SELECT last_old, step AS first_new, was, nodes AS became FROM (
    SELECT step, nodes, LAG(step) OVER w AS last_old, LAG(nodes) OVER w AS was, LAG(nodes, 2) OVER w AS was2, LAG(nodes, 3) OVER w AS was3, LEAD(nodes) OVER w AS next
    FROM python.graphs WHERE micro_step = 0 WINDOW w AS (ORDER BY step))
WHERE nodes <> was AND was = was2 AND was = was3 AND nodes = COALESCE(next, nodes)
