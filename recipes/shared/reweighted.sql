-- Steps on which the constant factors of the loss's terms were read, and their product. Where it grows, as while
-- the weight of a divergence warms up, losses before and after do not mean the same. `weights_low` and `weights_high` are taken
-- over five samples: factors that are drawn in each step (mixup) grow for none of them.
SELECT step, MIN(weights) OVER (ORDER BY step ROWS BETWEEN 4 PRECEDING AND CURRENT ROW) AS weights_low,
    MAX(weights) OVER (ORDER BY step ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS weights_high
FROM (SELECT step, MEDIAN(term_weights) AS weights FROM python.graphs WHERE term_weights IS NOT NULL GROUP BY step)
