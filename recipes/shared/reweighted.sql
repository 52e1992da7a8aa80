-- Steps on which the constant factors of the loss's terms were read, and their sum. Where it changes, as while
-- the weight of a divergence warms up, losses before and after do not mean the same.
SELECT step, MEDIAN(term_weights) AS weights FROM python.graphs WHERE term_weights IS NOT NULL GROUP BY step
