-- title = "information leaks between samples or tokens"
-- severity = "notice"
-- symptoms = ["loss", "data", "gradients"]
-- order = 126
-- scope = "rank"
-- needs = "an audit in a forked child process, about ten seconds after the start; the model must be on the CPU, neither compiled nor sharded, and its dimensions must be distinguishable"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "measured at step {step}: the call of {model} was repeated with part of its arguments replaced by another part of the batch, with dropout and batch normalization off; rounding is below 0.0001 of the effect",
--   "dimensions identified by: {known_by}",
--   "it starts in {module} ({class})",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, question, subject, effect, leak, effect_ratio, leak_ratio, module, refused FROM python.dependence ORDER BY t_ns DESC LIMIT 10\"",
--   "probe {endpoint} checkpoint before-restart.pt",
--   "probe {endpoint} stop",
-- ]
-- false_positives = "models that compare samples with each other on purpose (minibatch discrimination, prototypes, experts with limited capacity, contrastive heads, batch statistics in normalization or quantization): `info`, unless attention or a recurrence joins the samples but not the positions; masks meant only for pooling or the loss (`info`); a batch that is handed over whole, with its targets (`info`); arguments accepted only for interface compatibility; noise added in backward on purpose"
-- explains = ["train-validation-gap", "validation-rising", "plateau", "slow-decrease"]
-- [parameters.rounding]
-- value = 0.0001
-- unit = "ratio of the effect"
-- source = "ours: equal shapes are computed in the same order, so independent outputs stay the same, mostly bit by bit"
WITH audits AS (
    SELECT * FROM python.dependence
), answered AS (
    SELECT *, leak > $rounding * GREATEST(effect, leak) AS leaks, COALESCE(effect, 0) <= $rounding * GREATEST(effect, leak) AS dead FROM audits
    WHERE refused IS NULL QUALIFY ROW_NUMBER() OVER (PARTITION BY model, question, subject ORDER BY t_ns DESC) = 1
), mixing AS (
    SELECT s.model, EXISTS (SELECT 1 FROM answered l WHERE l.model = s.model AND l.question = 'later' AND l.leaks)
        AND NOT regexp_matches(COALESCE(s.module, '') || ' ' || COALESCE(s.class, ''), 'moe|expert|rout|gate|norm|quant|float8|fp8', 'i') AS confused
    FROM answered s WHERE s.question = 'samples' AND s.leaks
), ineffective AS (
    SELECT model, subject FROM answered WHERE question = 'input' AND effect = 0
), facts AS (
    SELECT 'later positions' AS subject, 'notice' AS severity,
        CASE WHEN effect_ratio = 0 THEN 'the causal mask is inverted: outputs depend on later tokens, including the target, and on no earlier ones'
            WHEN class LIKE 'Conv%' THEN format('the future is seen: outputs depend on later tokens, including the one to predict; {} reaches forward (pad it on the left alone)', COALESCE(module, 'a convolution'))
            ELSE 'the future is seen: outputs depend on later tokens, including the one to predict; the causal mask is missing or lets too much through' END AS fact,
        format('with one token replaced, the outputs at {:.0f} % of the earlier positions changed, by up to {:.2g}, and at {:.0f} % of the later ones; at and after it by up to {:.2g}', 100 * leak_ratio, leak, 100 * effect_ratio, effect) AS evidence, answered.* EXCLUDE (subject)
    FROM answered WHERE question = 'later' AND leaks AND model NOT IN (SELECT model FROM mixing)
    UNION ALL BY NAME
    SELECT 'samples' AS subject, CASE WHEN confused OR (attends OR recurs) AND effect_ratio = 0 THEN 'notice' ELSE 'info' END AS severity,
        CASE WHEN recurs AND effect_ratio = 0 THEN 'the recurrence runs over the batch instead of the positions: outputs of a sample depend on the samples before it, and none on the positions before it (check batch_first, or a permute for the other layout)'
            WHEN attends AND effect_ratio = 0 THEN 'attention runs over the batch instead of the positions: outputs of a sample depend on the other samples, and positions do not see each other (check batch_first, or a permute for the other layout)'
            WHEN confused THEN 'samples and positions are mixed up: outputs of a sample depend on the other samples of the batch, and on later tokens (check for a permute, view or transpose for the other layout)'
            WHEN leak_ratio <= 0.5 THEN 'outputs of a sample depend on some other samples of the batch: a view or reshape instead of a permute mixes them like this'
            ELSE 'outputs of a sample depend on the other samples of the batch' END AS fact,
        format('with one of {} samples replaced, the outputs of {:.0f} % of the others changed, by up to {:.2g}; its own by up to {:.2g}', samples, 100 * leak_ratio, leak, effect)
            || COALESCE(format('; with one position of it replaced, {:.0f} % of its other positions', 100 * effect_ratio), '') AS evidence, answered.* EXCLUDE (subject)
    FROM (SELECT *, class IN ('RNN', 'LSTM', 'GRU') AS recurs FROM answered) AS answered JOIN mixing USING (model) WHERE question = 'samples' AND leaks
    UNION ALL BY NAME
    SELECT 'padding' AS subject, CASE WHEN dead THEN 'notice' ELSE 'info' END AS severity,
        CASE WHEN dead THEN format('the padding mask ({}) is inverted: outputs at real tokens depend on the padding and on no other real token', answered.subject)
            WHEN i.subject IS NOT NULL THEN format('the padding mask ({}) has no effect: outputs at real tokens depend on the padding', answered.subject)
            ELSE format('outputs at real tokens depend on the padding although a padding mask is passed ({})', answered.subject) END AS fact,
        format('with the padding replaced by other tokens, {:.0f} % of the outputs at real tokens changed, by up to {:.2g}; with one real token replaced, {:.0f} % of the others, by up to {:.2g}', 100 * leak_ratio, leak, 100 * effect_ratio, effect) AS evidence, answered.* EXCLUDE (subject)
    FROM answered LEFT JOIN ineffective i ON i.model = answered.model AND i.subject = answered.subject
    WHERE question = 'padding' AND leaks AND answered.model NOT IN (SELECT model FROM mixing)
    UNION ALL BY NAME
    -- Part of a batch that is handed over whole may be for the loss: a target, a weight.
    SELECT subject, CASE WHEN values AND subject NOT LIKE 'argument %.%' THEN 'notice' ELSE 'info' END AS severity, format('no output depends on {}', subject) AS fact,
        'its samples were swapped with each other, in train and eval mode, and every output stayed bitwise identical' AS evidence, answered.* EXCLUDE (subject)
    FROM answered WHERE question = 'input' AND effect = 0 AND model NOT IN (SELECT model FROM ineffective e WHERE e.subject = 'all arguments')
    UNION ALL BY NAME
    SELECT 'order' AS subject, 'info' AS severity, 'the order of the positions does not matter: the outputs do not distinguish positions in the sequence' AS fact,
        format('with the sequence reversed, the outputs are reversed too, to within {:.2g}; positions do see each other', leak) AS evidence, answered.* EXCLUDE (subject)
    FROM answered WHERE question = 'order' AND NOT leaks
    UNION ALL BY NAME
    SELECT 'recomputed' AS subject, 'notice' AS severity, 'the recomputation in backward draws a different dropout mask than the forward: the gradients are not those of the loss' AS fact,
        format('one forward and two backwards that differ only in the random state: {:.0f} % of the gradients differ, by up to {:.2g} of at most {:.2g}, from {} on. Activation checkpointing does not restore the random state: set preserve_rng_state=True', 100 * leak_ratio, leak, effect, subject) AS evidence, answered.* EXCLUDE (subject)
    FROM answered WHERE question = 'recomputed' AND leaks
)
SELECT NULL AS unknown, subject, severity, fact, evidence, step, model, known_by, module, class FROM facts
UNION ALL BY NAME
SELECT COALESCE('the dependence of the outputs could not be measured: ' || ANY_VALUE(refused ORDER BY t_ns DESC), 'the dependence of the outputs has not been audited yet') AS unknown
FROM audits HAVING COUNT(*) FILTER (refused IS NULL) = 0
