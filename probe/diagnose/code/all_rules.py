"""All rules about source code, in the order in which they are tried. Pure."""

from __future__ import annotations

from itertools import chain

from probe.diagnose.code import effect_rules
from probe.diagnose.code.data import (
    byte_rules,
    class_rules,
    draw_rules,
    graph_rules,
    loader_rules,
    order_rules,
    pair_rules,
    sample_rules,
    scale_rules,
    stream_rules,
    text_rules,
    token_rules,
    view_rules,
    window_rules,
    word_rules,
)
from probe.diagnose.code.evaluation import (
    fitted_rules,
    held_out_rules,
    leaked_rules,
    mean_rules,
    measure_rules,
    metric_rules,
    report_rules,
    selection_rules,
)
from probe.diagnose.code.finders.agents import kept_rows, opposing_terms
from probe.diagnose.code.finders.axes import (
    all_pairs,
    columns_beside_rows,
    derived_by,
    kept_sizes,
    matrix_roots,
    merged_axes,
    risk_orders,
    row_orders,
    turned_axes,
)
from probe.diagnose.code.finders.data import (
    averages,
    batch_scores,
    embeddings,
    encoded_targets,
    fitted,
    held_out,
    held_out_pairs,
    measures,
    moved_inputs,
    padding,
    pairs,
    precision_curves,
    samples,
    scales,
    splits,
    whole_sets,
)
from probe.diagnose.code.finders.evaluation import (
    chosen_rows,
    dropped_rows,
    padded_scores,
    ranked_classes,
    raw_inputs,
    rollouts,
    tied_ranks,
    written_on,
)
from probe.diagnose.code.finders.graphs import (
    mirrored_pairs,
    own_connections,
    sampled_items,
)
from probe.diagnose.code.finders.images import (
    cut_boxes,
    drawn_codes,
    drawn_in_evaluation,
    focal_weights,
    own_noise,
    steps_of_schedules,
    target_ranges,
)
from probe.diagnose.code.finders.losses import (
    adversaries,
    bootstraps,
    densities,
    distances,
    end_flags,
    ends,
    followers,
    lost_ends,
    padded_time,
    policy_terms,
    reductions,
    scores,
    signs_of_terms,
    token_targets,
)
from probe.diagnose.code.finders.measured import (
    cycles,
    distances_for_scores,
    fitted_before,
    lopsided_errors,
    steps_of_time,
    two_scales,
    unused_weights,
)
from probe.diagnose.code.finders.objectives import adapted_models, edges, mined_pairs, own_limits
from probe.diagnose.code.finders.objects import (
    best_directions,
    best_scores,
    folds,
    frozen_in_loop,
    hand_optimizers,
    hooks,
    latent_terms,
    own_functions,
    pairwise_ranks,
    scaled_gradients,
    thrown_results,
    whole_numbers,
)
from probe.diagnose.code.finders.pictures import (
    half_flows,
    mirrored_boxes,
    moved_pixels,
    moved_together,
    pasted,
    sounds,
)
from probe.diagnose.code.finders.rows import (
    byte_differences,
    byte_ranges,
    candidates,
    copied_rows,
    related_rows,
    worker_streams,
)
from probe.diagnose.code.finders.runs import (
    attacks,
    best_so_far,
    changed_batches,
    compared_outputs,
    judges,
    other_networks,
    rate_searches,
    resumed_runs,
    scaled_losses,
    turned_signs,
)
from probe.diagnose.code.finders.sequences import (
    found_texts,
    likeness,
    log_probabilities,
    masked_patches,
    padded_words,
    preferences,
    readings,
    references,
    rotations,
    same_words,
)
from probe.diagnose.code.finders.training import (
    chosen_scores,
    explorations,
    gradient_paths,
    kept,
    kept_statistics,
    networks,
    own_weights,
    passes,
    rates,
    repeated_layers,
    schedule_lengths,
    softmaxes,
    stored_transitions,
    unread,
    whose_gradients,
)
from probe.diagnose.code.finders.weights import (
    another_order,
    class_orders,
    kept_best,
    own_state,
    resumed_parts,
    stored_averages,
    tied_copies,
    weight_averages,
)
from probe.diagnose.code.finders.words import (
    causal_masks,
    ends_left_out,
    gates,
    generation,
    histories,
    kept_directions,
    last_scores,
    layouts,
    read_by_steps,
    rounded_positions,
    soft_targets,
)
from probe.diagnose.code.formulas import (
    column_rules,
    comparison_rules,
    detection_rules,
    distance_rules,
    embedding_rules,
    generative_rules,
    gradient_rules,
    image_rules,
    overlap_rules,
    picture_data_rules,
    picture_rules,
    ranking_rules,
    reduction_rules,
    score_rules,
    sequence_rules,
)
from probe.diagnose.code.loop import (
    average_rules,
    best_rules,
    call_order_rules,
    carried_rules,
    group_rules,
    holder_rules,
    kept_rules,
    loss_rules,
    machine_rules,
    mode_rules,
    name_rules,
    reach_rules,
    schedule_rules,
    setting_rules,
    state_rules,
)
from probe.diagnose.code.model import (
    attention_rules,
    axes,
    initial_rules,
    layers,
    masks,
    norm_rules,
    ranges,
    reuse_rules,
    sampling_rules,
)
from probe.diagnose.code.rollout import (
    agent_rules,
    bootstrap_rules,
    critic_rules,
    divergence_rules,
    objective_rules,
    one_rank,
    policies,
    replay_rules,
    return_rules,
    several_ranks,
    signs,
    steps,
    targets,
    wrapper_rules,
)
from probe.diagnose.code.rule import Finders, Rule, with_finders

_FINDERS: tuple[Finders, ...] = (
    ends_left_out.FINDERS, rounded_positions.FINDERS, weight_averages.FINDERS, stored_averages.FINDERS, kept_best.FINDERS, resumed_parts.FINDERS,
    all_pairs.FINDERS, another_order.FINDERS, class_orders.FINDERS, columns_beside_rows.FINDERS, matrix_roots.FINDERS, turned_axes.FINDERS, kept_sizes.FINDERS, merged_axes.FINDERS, causal_masks.FINDERS, tied_copies.FINDERS, read_by_steps.FINDERS, soft_targets.FINDERS, row_orders.FINDERS, chosen_rows.FINDERS, dropped_rows.FINDERS, ranked_classes.FINDERS, tied_ranks.FINDERS, raw_inputs.FINDERS, rollouts.FINDERS, padded_scores.FINDERS, written_on.FINDERS,
    averages.FINDERS, batch_scores.FINDERS, byte_differences.FINDERS, byte_ranges.FINDERS, copied_rows.FINDERS, embeddings.FINDERS, encoded_targets.FINDERS, fitted.FINDERS, held_out.FINDERS, held_out_pairs.FINDERS, measures.FINDERS, moved_inputs.FINDERS, padding.FINDERS, pairs.FINDERS, precision_curves.FINDERS, related_rows.FINDERS, worker_streams.FINDERS, samples.FINDERS, scales.FINDERS, splits.FINDERS,
    adversaries.FINDERS, attacks.FINDERS, best_so_far.FINDERS, changed_batches.FINDERS, compared_outputs.FINDERS, judges.FINDERS, other_networks.FINDERS, rate_searches.FINDERS, resumed_runs.FINDERS, scaled_losses.FINDERS, turned_signs.FINDERS, bootstraps.FINDERS, densities.FINDERS, distances.FINDERS, end_flags.FINDERS, ends.FINDERS, followers.FINDERS, lost_ends.FINDERS, padded_time.FINDERS, policy_terms.FINDERS, reductions.FINDERS, scores.FINDERS, signs_of_terms.FINDERS, token_targets.FINDERS,
    chosen_scores.FINDERS, explorations.FINDERS, gradient_paths.FINDERS, kept.FINDERS, networks.FINDERS, whose_gradients.FINDERS, own_weights.FINDERS, passes.FINDERS, schedule_lengths.FINDERS, rates.FINDERS, repeated_layers.FINDERS, softmaxes.FINDERS, kept_statistics.FINDERS, stored_transitions.FINDERS, unread.FINDERS,
    preferences.FINDERS, readings.FINDERS, references.FINDERS, rotations.FINDERS, same_words.FINDERS, found_texts.FINDERS, gates.FINDERS, generation.FINDERS, histories.FINDERS, kept_directions.FINDERS, last_scores.FINDERS, layouts.FINDERS, padded_words.FINDERS, log_probabilities.FINDERS, masked_patches.FINDERS,
    best_scores.FINDERS, frozen_in_loop.FINDERS, folds.FINDERS, latent_terms.FINDERS, pairwise_ranks.FINDERS, thrown_results.FINDERS, whole_sets.FINDERS, best_directions.FINDERS, hand_optimizers.FINDERS, hooks.FINDERS, own_functions.FINDERS, scaled_gradients.FINDERS, whole_numbers.FINDERS,
    distances_for_scores.FINDERS, steps_of_time.FINDERS, two_scales.FINDERS, fitted_before.FINDERS, cycles.FINDERS, own_state.FINDERS, own_noise.FINDERS, lopsided_errors.FINDERS, unused_weights.FINDERS, agent_rules.FINDERS, opposing_terms.FINDERS, kept_rows.FINDERS, own_connections.FINDERS, derived_by.FINDERS, risk_orders.FINDERS, report_rules.FINDERS, graph_rules.FINDERS, stream_rules.FINDERS, sampled_items.FINDERS, adapted_models.FINDERS, average_rules.FINDERS, edges.FINDERS, mirrored_pairs.FINDERS, mined_pairs.FINDERS, candidates.FINDERS, own_limits.FINDERS, half_flows.FINDERS, moved_pixels.FINDERS, sounds.FINDERS, likeness.FINDERS, mirrored_boxes.FINDERS, moved_together.FINDERS, pasted.FINDERS, drawn_in_evaluation.FINDERS, target_ranges.FINDERS, steps_of_schedules.FINDERS, drawn_codes.FINDERS, cut_boxes.FINDERS, focal_weights.FINDERS,
)
_RULES: tuple[Rule, ...] = (
    *effect_rules.RULES,
    *call_order_rules.RULES, *schedule_rules.RULES, *loss_rules.RULES, *reach_rules.RULES, *machine_rules.RULES, *carried_rules.RULES, *name_rules.RULES,
    *kept_rules.RULES, *setting_rules.RULES, *state_rules.RULES, *average_rules.RULES, *group_rules.RULES, *best_rules.RULES, *mode_rules.RULES, *holder_rules.RULES,
    *overlap_rules.RULES, *ranking_rules.RULES, *score_rules.RULES, *sequence_rules.RULES, *embedding_rules.RULES, *detection_rules.RULES, *distance_rules.RULES, *gradient_rules.RULES,
    *sample_rules.RULES, *pair_rules.RULES, *byte_rules.RULES, *draw_rules.RULES, *loader_rules.RULES, *metric_rules.RULES, *mean_rules.RULES, *selection_rules.RULES, *held_out_rules.RULES, *leaked_rules.RULES, *measure_rules.RULES, *report_rules.RULES,
    *window_rules.RULES, *scale_rules.RULES, *class_rules.RULES, *word_rules.RULES, *view_rules.RULES, *order_rules.RULES, *token_rules.RULES, *graph_rules.RULES, *stream_rules.RULES, *text_rules.RULES, *fitted_rules.RULES,
    *layers.RULES, *initial_rules.RULES, *ranges.RULES, *axes.RULES, *masks.RULES, *attention_rules.RULES, *sampling_rules.RULES,
    *reuse_rules.RULES, *norm_rules.RULES, *reduction_rules.RULES, *comparison_rules.RULES, *generative_rules.RULES, *column_rules.RULES, *picture_rules.RULES, *picture_data_rules.RULES, *image_rules.RULES,
    *signs.RULES, *divergence_rules.RULES, *targets.RULES, *steps.RULES, *return_rules.RULES, *policies.RULES, *critic_rules.RULES, *bootstrap_rules.RULES, *objective_rules.RULES, *replay_rules.RULES, *one_rank.RULES, *several_ranks.RULES, *wrapper_rules.RULES, *agent_rules.RULES,
)
RULES: tuple[Rule, ...] = tuple(with_finders(_RULES, chain(*_FINDERS)))
