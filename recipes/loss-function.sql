-- title = "loss function does not match its inputs"
-- severity = "notice"
-- symptoms = ["loss", "gradients"]
-- order = 130
-- scope = "rank"
-- needs = "the autograd graph of the loss, from a few sampled steps"
-- what = "{fact}"
-- why = [
--   "{evidence}",
--   "in all of the last {n} sampled steps, from step {step} to {last}: {function} of {shape}, produced by {behind}",
-- ]
-- next = [
--   "probe {endpoint} query \"SELECT step, function, reduction, behind, shape, broadcast, classes, smoothing, ignored_ratio, top_ratio, entropy FROM python.loss_functions ORDER BY step DESC LIMIT 10\"",
-- ]
-- false_positives = "pairwise losses that compare each prediction with every target; class weights that exclude a class on purpose; one-class labels on purpose, as in anomaly detection; non-negative targets after a ReLU (`info`); large targets or errors that are learned anyway, and returns in reinforcement learning (`info`); outputs dropped or bounded on purpose; contrastive cosine losses without a temperature (`info`). Left out: noisy discriminator labels slightly above 1 or below 0, contrastive cosine losses with a temperature, and contrastive losses with a softmax over both sides of a square matrix"
-- explains = ["gradients-vanishing", "gradient-shifted", "dead-units", "plateau", "no-warm-up", "learning-rate-too-high", "learning-rate-too-low", "slow-decrease", "divergence", "output-constant", "loss-unbounded", "clipping", "gradients-exploding", "gradient-exploding-layer", "loss-spike"]
-- [parameters.least]
-- value = 3
-- unit = "sampled steps"
-- source = "ours"
-- [parameters.smoothing]
-- value = 0.5
-- unit = "ratio"
-- source = "practice: 0.1, at most 0.2; above 0.5 the correct class gets less than half of the target, as when the confidence is passed instead"
-- [parameters.counted]
-- value = 0.001
-- unit = "ratio of the loss"
-- source = "ours: class weights are meant to raise rare classes; a class with such a small share of the loss is not learned"
-- [parameters.occurs]
-- value = 0.01
-- unit = "ratio of the targets"
-- source = "ours: a class that hardly occurs is not judged"
-- [parameters.ignored]
-- value = 0.95
-- unit = "ratio of the targets"
-- source = "practice: masked language models leave out 85 %"
-- [parameters.looks]
-- value = 5
-- unit = "sampled batches"
-- source = "ours"
-- [parameters.labels]
-- value = 64
-- unit = "labels"
-- source = "ours: even if nine tenths of the labels are of one class, this many in a row occur once in a thousand times"
-- [parameters.padding]
-- value = 0.2
-- unit = "ratio of the targets"
-- source = "ours: a fifth of the averaged loss is then for predicting padding"
-- [parameters.large]
-- value = 100.0
-- unit = "root mean square of the targets"
-- source = "practice: networks are initialized for outputs of about 1; prices and pixels are hundreds and more"
-- [parameters.outside]
-- value = 0.5
-- unit = "above 1 or below 0"
-- source = "practice: labels of a discriminator are smoothed up to 1.2; 2, 255 and -1 are not probabilities"
-- [parameters.sure]
-- value = 0.9
-- unit = "probability"
-- source = "ours: label smoothing asks for 0.9; an output that cannot reach it cannot learn its targets"
-- [parameters.errors]
-- value = 30.0
-- unit = "root mean square of the errors"
-- source = "practice: networks are initialized for outputs of about 1, and an update moves them by some hundredths"
-- [parameters.enormous]
-- value = 1000.0
-- unit = "root mean square of the errors"
-- source = "ours: from here on, a loss that has fallen by half may only be approaching the mean of the targets"
-- [parameters.settled]
-- value = 200
-- unit = "steps"
-- source = "ours: by then the loss has fallen by half if such targets do no harm"
-- [parameters.step_size]
-- value = 1.0
-- unit = "learning rate times summed elements"
-- source = "practice: rates of plain gradient descent on a mean are 0.001 to 0.5"
WITH recent AS (
    -- A loss may have several terms of one form, of which one is broadcast.
    SELECT *, broadcast IS NOT NULL AS spreads, ROW_NUMBER() OVER (PARTITION BY function, behind, layer, broadcast IS NOT NULL ORDER BY step DESC) AS ago FROM python.loss_functions
), calls AS (
    SELECT function, behind, layer, spreads, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, ARG_MAX(broadcast, step) AS broadcast,
        BOOL_AND(reduction = 'sum') AS summed, MEDIAN(COALESCE(targets, 1)) AS elements,
        BOOL_AND(over_batch AND shape <> format('[{}, {}]', classes, classes)) AS over_batch,
        BOOL_AND(broadcast IS NOT NULL AND len(CAST(shape AS BIGINT[])) = 2 AND CAST(shape AS BIGINT[])[1] = CAST(shape AS BIGINT[])[2]
            AND CAST(broadcast AS BIGINT[]) IN ([CAST(shape AS BIGINT[])[1], 1], [CAST(shape AS BIGINT[])[1]], [1, CAST(shape AS BIGINT[])[1]])) AS spread,
        BOOL_AND(weighted IS NOT NULL AND shape = format('[{}, 1]', CAST(weighted AS BIGINT[])[1]) AND weighted = format('[{0}, {0}]', CAST(weighted AS BIGINT[])[1])) AS weights_spread, ARG_MAX(weighted, step) AS weighted,
        CASE WHEN COUNT(mixed) = COUNT(*) THEN ARG_MAX(mixed, step) END AS mixed,
        MIN(smoothing) AS smoothing, MAX(least_share) AS share, MIN(least_frequency) AS frequency, MIN(weights_ratio) AS weights_ratio,
        MIN(ignored_ratio) AS ignored, MIN(top_ratio) AS top, MAX(classes) AS classes, MIN(target_mean) AS target_mean, MAX(target_mean) AS target_most,
        BOOL_AND(COALESCE(target_mean < target_std, false)) AS below_zero, MEDIAN(target_std) AS target_std,
        MIN(target_min) AS target_least, MAX(target_max) AS target_greatest, MIN(target_max) AS target_top,
        CASE WHEN COUNT(output_high) = COUNT(*) THEN MAX(output_high) END AS output_high, CASE WHEN COUNT(output_low) = COUNT(*) THEN MIN(output_low) END AS output_low, ARG_MAX(bounded_by, step) AS bounded_by
    FROM recent WHERE ago <= 6 GROUP BY ALL HAVING COUNT(*) >= $least
), partial AS (
    -- The rows are samples where there are as many as a batch has; of positions or layers, one is often taken on purpose.
    SELECT rows, rows_used, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ANY_VALUE(function) AS function, ANY_VALUE(behind) AS behind, ANY_VALUE(layer) AS layer, ARG_MAX(shape, step) AS shape
    FROM (SELECT *, COUNT(*) OVER (PARTITION BY step, micro_step) AS functions, ROW_NUMBER() OVER (ORDER BY step DESC) AS newest FROM python.loss_functions)
    WHERE newest <= 6 AND functions = 1 GROUP BY rows, rows_used HAVING COUNT(*) >= $least AND rows_used <= rows // 4 AND rows >= 8
        AND rows = (SELECT MEDIAN(samples / GREATEST(micro_steps, 1)) FROM (SELECT samples, micro_steps FROM python.steps WHERE samples IS NOT NULL ORDER BY step DESC LIMIT 100))
), padded AS (
    SELECT function, ANY_VALUE(behind) AS behind, ANY_VALUE(layer) AS layer, COUNT(*) AS n, MIN(step) AS step, MAX(step) AS last, ARG_MAX(shape, step) AS shape, MEDIAN(padding_ratio) AS padding, MIN(padding_ratio) AS least
    FROM (SELECT * FROM recent WHERE padding_ratio IS NOT NULL AND reduction <> 'other' ORDER BY step DESC LIMIT 8) GROUP BY function HAVING COUNT(*) >= $least
), labels AS (
    SELECT MIN(min) AS label, COUNT(*) AS looks, SUM(looked_at) AS labels FROM (
        SELECT *, DENSE_RANK() OVER (ORDER BY step DESC) AS ago FROM python.model_inputs WHERE module = 'batch'
    ) WHERE ago <= 6 GROUP BY name HAVING COUNT(*) >= $looks AND MIN(min) = MAX(max) AND SUM(looked_at) >= $labels
), errors AS (
    SELECT function, behind, layer, MEDIAN(error_rms) FILTER (i <= 3) AS error_first, MEDIAN(error_rms) FILTER (i > k - 3) AS error_now, MEDIAN(error_rms) AS error_usual
    FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY function, behind, layer ORDER BY step) AS i, COUNT(*) OVER (PARTITION BY function, behind, layer) AS k FROM python.loss_functions WHERE isfinite(error_rms)) GROUP BY ALL
), reach AS (
    SELECT *, CASE WHEN function = 'cross_entropy' THEN 1 / (1 + (classes - 1) * EXP(output_low - output_high)) ELSE GREATEST(1 / (1 + EXP(-output_high)), 1 / (1 + EXP(output_low))) END AS surest,
        CASE WHEN bounded_by LIKE 'cosine%' THEN format('cosines of normalized vectors{}', CASE WHEN output_high = 1 THEN ' without a scale (temperature)' ELSE format(' times {:.3g}', output_high) END) ELSE format('bounded by {}', bounded_by) END AS how
    FROM calls WHERE output_high > output_low AND (function = 'cross_entropy' AND bounded_by <> 'Softmax' AND classes > 1 OR function = 'binary_cross_entropy_with_logits' AND bounded_by <> 'Sigmoid')
), losses AS (
    SELECT MEDIAN(loss) FILTER (i <= 20) AS loss_first, MEDIAN(loss) FILTER (i > k - 20) AS loss_now, MAX(k) AS losses
    FROM (SELECT loss, ROW_NUMBER() OVER (ORDER BY step) AS i, COUNT(*) OVER () AS k FROM python.steps WHERE isfinite(loss))
), scaled AS (
    -- The gradients are divided, or clipped, before the step.
    SELECT COALESCE(MEDIAN(step_rms / gradient_rms) < 0.5, false) AS down FROM python.updates WHERE gradient_rms > 0
), rate AS (
    SELECT ARG_MAX(optimizer, t_ns) AS optimizer, ARG_MAX(lr, t_ns) AS lr FROM python.optimizers WHERE param_group = 0
), facts AS (
    SELECT 'softmax' AS subject, 'notice' AS severity, 'softmax is applied before cross_entropy, which applies it again' AS fact,
        'its outputs lie between 0 and 1, so the loss cannot come near 0 and its gradients are small: pass the logits' AS evidence, calls.*
    FROM calls WHERE function = 'cross_entropy' AND behind LIKE 'LogSoftmax < Softmax%'
    UNION ALL BY NAME
    SELECT 'sigmoid' AS subject, 'notice' AS severity, 'a sigmoid is applied before binary_cross_entropy_with_logits, which applies it again' AS fact,
        'its outputs lie between 0 and 1, so no probability below 0.5 can be given: pass the logits' AS evidence, calls.*
    FROM calls WHERE function = 'binary_cross_entropy_with_logits' AND behind LIKE 'Sigmoid%'
    UNION ALL BY NAME
    SELECT 'softmax' AS subject, 'notice' AS severity, format('softmax runs over the batch (dim 0, {} samples) instead of the classes', classes) AS fact,
        'each sample''s probabilities depend on the other samples and do not sum to 1: use the last dimension' AS evidence, calls.*
    FROM calls WHERE over_batch AND function IN ('cross_entropy', 'nll_loss', 'softmax')
    UNION ALL BY NAME
    SELECT 'one class' AS subject, 'notice' AS severity, format('the softmax before {} runs over a single output: it is always 1, whatever the model computes', function) AS fact,
        CASE WHEN function = 'cross_entropy' THEN 'the loss is 0 from the first step and has no gradient: give it one output for each class, or use binary_cross_entropy_with_logits on one output' ELSE 'the loss gives the model no gradient: use a sigmoid for one output, not a softmax' END AS evidence, calls.*
    FROM calls WHERE classes = 1 AND (function IN ('cross_entropy', 'nll_loss', 'softmax') OR behind LIKE '%Softmax%')
    UNION ALL BY NAME
    SELECT 'broadcast' AS subject, 'notice' AS severity, format('prediction of shape {} is broadcast to {} against its target: each prediction is compared with every target', broadcast, shape) AS fact,
        'the best the model can learn is the mean of all targets; give both the same shape (unsqueeze(1) or squeeze(1))' AS evidence, calls.*
    FROM calls WHERE spread AND last = (SELECT MAX(step) FROM python.loss_functions)
    UNION ALL BY NAME
    SELECT 'weights' AS subject, 'notice' AS severity, format('the losses of shape {} times weights (or a mask) give {}: each sample''s loss is multiplied by the weights of all samples', shape, weighted) AS fact,
        'each sample counts as much as any other, whatever its weight: give both the same shape (unsqueeze(1) or squeeze(1))' AS evidence, calls.*
    FROM calls WHERE weights_spread
    UNION ALL BY NAME
    SELECT 'axes' AS subject, 'notice' AS severity, format('a view mixes the classes with another axis: {} becomes {} without a permutation', mixed, shape) AS fact,
        format('each row of {} classes holds numbers of several positions, so outputs are compared with the labels of other positions: move the classes to their place first (permute, movedim or transpose)', classes) AS evidence, calls.*
    FROM calls WHERE mixed IS NOT NULL AND function IN ('cross_entropy', 'nll_loss')
    UNION ALL BY NAME
    SELECT 'relu' AS subject, CASE WHEN function LIKE '%cross_entropy%' OR below_zero THEN 'notice' ELSE 'info' END AS severity,
        'a ReLU follows the last layer: the output is never negative, and gets no gradient where it is 0' AS fact,
        'operations from the loss back to the last layer: ' || behind || ', ' || layer AS evidence, calls.*
    FROM calls WHERE behind IN ('Relu', 'LogSoftmax < Relu') AND layer IS NOT NULL
    UNION ALL BY NAME
    SELECT 'probabilities' AS subject, 'notice' AS severity, 'nll_loss gets probabilities instead of log-probabilities: use log_softmax instead of softmax' AS fact,
        'its value is minus the probability of the correct class, between -1 and 0; use log_softmax, or cross_entropy on the logits' AS evidence, calls.*
    FROM calls WHERE function = 'nll_loss' AND behind LIKE 'Softmax%'
    UNION ALL BY NAME
    SELECT 'dropout' AS subject, 'notice' AS severity, 'dropout stands after the last layer: outputs are randomly set to 0 before the loss' AS fact,
        'when this hits the correct class, its loss is that of chance: move dropout before the last layer' AS evidence, calls.*
    FROM calls WHERE behind IN ('Dropout', 'LogSoftmax < Dropout') AND layer IS NOT NULL
    UNION ALL BY NAME
    SELECT 'rows' AS subject, 'notice' AS severity, format('the loss is computed from {} of the {} samples of each batch: all others are thrown away', rows_used, rows) AS fact,
        'the model''s output is sliced along its first dimension, which is as long as a batch has samples' AS evidence, partial.* EXCLUDE (rows, rows_used)
    FROM partial
    UNION ALL BY NAME
    SELECT 'label_smoothing' AS subject, 'notice' AS severity, format('label smoothing is {:.2g}: the targets are nearly uniform', smoothing) AS fact,
        format('the correct class gets {:.0f} % of the target; a smoothing of 0.1 is usual', 100 * (1 - smoothing + smoothing / classes)) AS evidence, calls.*
    FROM calls WHERE smoothing > $smoothing
    UNION ALL BY NAME
    SELECT 'class weights' AS subject, 'notice' AS severity, format('class weights: a class that is {:.1f} % of the targets makes {:.2g} % of the loss', 100 * frequency, 100 * share) AS fact,
        format('the smallest weight is {:.1g} times the largest; class weights are matched by index, and rare classes need the larger weights', weights_ratio) AS evidence, calls.*
    FROM calls WHERE share < $counted AND frequency > $occurs
    UNION ALL BY NAME
    SELECT 'targets' AS subject, 'notice' AS severity, format('the targets that count are all of one class, {:.0f}; ignore_index leaves out {:.0f} %', target_mean, 100 * ignored) AS fact,
        format('there are {} classes: ignore_index is probably the index of a real class', classes) AS evidence, calls.*
    FROM calls WHERE top = 1 AND ignored > 0 AND classes > 1 AND target_mean = target_most AND elements >= 16
    UNION ALL BY NAME
    SELECT 'labels' AS subject, 'notice' AS severity, format('all labels are of one class, {:.0f}, of the {} that the model distinguishes', label, classes) AS fact,
        format('the {} labels of the last {} sampled batches are equal, and they are the targets of the loss: a constant output is enough', labels, looks) AS evidence, calls.*
    FROM calls, labels WHERE function IN ('cross_entropy', 'nll_loss') AND top = 1 AND COALESCE(ignored, 0) = 0 AND classes > 1 AND target_mean = label AND target_most = label AND elements >= 8 AND COALESCE(behind, '') NOT LIKE '%Cat%'
    UNION ALL BY NAME
    SELECT 'targets' AS subject, 'info' AS severity, format('{:.1f} % of the targets are ignored by the loss', 100 * ignored) AS fact,
        'the loss is the mean over the few that remain; padding and prompts are often ignored on purpose' AS evidence, calls.*
    FROM calls WHERE ignored > $ignored
    UNION ALL BY NAME
    SELECT 'padding' AS subject, 'notice' AS severity, format('padding counts in the loss: {:.0f} % of the targets that count are padding', 100 * padding) AS fact,
        'after the end of each sequence, input and target repeat one token: exclude it with ignore_index' AS evidence, padded.* EXCLUDE (padding, least)
    FROM padded WHERE padding >= $padding AND least > 0
    UNION ALL BY NAME
    SELECT 'targets' AS subject, CASE WHEN loss_now > 0.5 * loss_first AND EXISTS (SELECT 1 FROM python.batches WHERE state = 'done') THEN 'notice' ELSE 'info' END AS severity,
        format('the targets are not scaled: their mean is {:.4g}, their standard deviation {:.3g}, and an untrained network outputs about 0', target_mean, target_std) AS fact,
        format('the loss was {:.4g} at first and is {:.4g} now: subtract the mean of the targets and divide by their standard deviation', loss_first, loss_now) AS evidence, calls.*
    FROM calls, losses WHERE function IN ('mse_loss', 'l1_loss', 'smooth_l1_loss', 'huber_loss') AND SQRT(target_mean * target_mean + target_std * target_std) > $large AND losses >= $settled
    UNION ALL BY NAME
    SELECT 'targets' AS subject, 'notice' AS severity, format('the targets of {} lie outside 0 to 1: from {:.4g} to {:.4g}', function, target_least, target_greatest) AS fact,
        'this loss expects probabilities: above 1 or below 0 it has no lower bound, and the outputs grow without end; divide bytes by 255, compare masks with a threshold, turn -1 and 1 into 0 and 1' AS evidence, calls.*
    FROM calls WHERE function IN ('binary_cross_entropy', 'binary_cross_entropy_with_logits') AND (target_greatest > 1 + $outside OR target_least < -$outside)
    UNION ALL BY NAME
    SELECT 'targets' AS subject, 'notice' AS severity, 'the targets of soft_margin_loss are 0 and 1, where it expects -1 and 1: those of 0 have no gradient' AS fact,
        format('they lie between {:.4g} and {:.4g}: one of the two classes has no effect on training', target_least, target_greatest) AS evidence, calls.*
    FROM calls WHERE function = 'soft_margin_loss' AND target_least = 0 AND target_greatest = 1
    UNION ALL BY NAME
    SELECT 'bounds' AS subject, CASE WHEN bounded_by = 'cosine of outputs' THEN 'info' ELSE 'notice' END AS severity,
        format('the logits stay between {:.3g} and {:.3g}, {}: no probability can be above {:.2f}', output_low, output_high, how, surest) AS fact,
        format('so the loss cannot fall below {:.3g}, its floor, however well the classes are separated; it is {:.4g} now. {}', -LN(surest), loss_now, CASE WHEN bounded_by LIKE 'cosine%' THEN 'Multiply the cosines by a scale of 10 to 64, or a learned one' ELSE 'Logits should not be bounded' END) AS evidence,
        reach.* EXCLUDE (surest, how)
    FROM reach, losses WHERE surest < $sure AND (bounded_by <> 'cosine of outputs' OR output_high <= 1)
    UNION ALL BY NAME
    SELECT 'bounds' AS subject, 'notice' AS severity, format('most of the targets are out of reach: a {} keeps the outputs between {:.3g} and {:.3g}, the targets are {:.4g} ± {:.3g}', LOWER(bounded_by), output_low, output_high, target_mean, target_std) AS fact,
        'no weights can make the outputs larger: scale the targets to these bounds, or remove the last operation' AS evidence, calls.*
    FROM calls WHERE function IN ('mse_loss', 'l1_loss', 'smooth_l1_loss', 'huber_loss') AND output_high > output_low AND (target_mean + target_std > output_high + 0.1 * (output_high - output_low) OR target_mean - target_std < output_low - 0.1 * (output_high - output_low))
        -- Within bounds, the variance is at most this product: that of values at the two bounds.
        AND target_std * target_std > 1.1 * (target_mean - output_low) * (output_high - target_mean)
    UNION ALL BY NAME
    SELECT 'targets' AS subject, CASE WHEN loss_now > CASE WHEN error_first > $enormous THEN 0.1 ELSE 0.5 END * loss_first AND EXISTS (SELECT 1 FROM python.batches WHERE state = 'done') THEN 'notice' ELSE 'info' END AS severity,
        format('the targets (or rewards) are not scaled: the predictions are off by {:.3g}, and an untrained network outputs about 0', error_first) AS fact,
        format('root mean square of the errors: {:.4g} at first, {:.4g} now; the loss was {:.4g} at first and is {:.4g} now: divide the targets by their standard deviation', error_first, error_now, loss_first, loss_now) AS evidence, calls.*
    FROM calls JOIN errors ON calls.function = errors.function AND calls.behind IS NOT DISTINCT FROM errors.behind AND calls.layer IS NOT DISTINCT FROM errors.layer, losses
    WHERE LEAST(error_first, error_usual) > $errors AND losses >= $settled AND (target_std IS NULL OR SQRT(target_mean * target_mean + target_std * target_std) <= $large)
    UNION ALL BY NAME
    SELECT 'reduction' AS subject, CASE WHEN optimizer = 'SGD' AND lr * elements > $step_size AND NOT scaled.down THEN 'notice' ELSE 'info' END AS severity,
        format('the loss is summed over {:.0f} elements, not averaged: the gradient is that much larger', elements) AS fact,
        format('{} with learning rate {:.3g}: on the mean of the losses that would be a rate of {:.3g}', optimizer, lr, lr * elements) AS evidence, calls.*
    FROM calls, rate, scaled WHERE summed AND elements > 1
)
SELECT NULL AS unknown, * REPLACE (COALESCE(behind || ', ', '') || COALESCE(layer, 'operations that were not traced') AS behind) FROM facts
UNION ALL BY NAME
SELECT format('the loss was sampled in {} steps, {} are needed', COUNT(*), $least) AS unknown FROM python.loss_functions HAVING COUNT(*) < $least
