"""Questions: tests which inputs a model's outputs depend on, by replacing parts of its arguments.

Runs only in a forked child (`dependence_audit`). Parts are replaced by other parts of the same batch, so that
the inputs stay like those the model was trained on. Each answer is a row of python.dependence: `effect` is
the largest change of an output that should change, `leak` the largest change of one that should not. Uses the
job's torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from probe.base.isolation import capture, describe
from probe.job.instruments.core.object_access import unwrapped
from probe.job.instruments.core.tensor_summaries import torch_module
from probe.job.instruments.dependence.call_arguments import Arguments, Layout, layout_of, padding_mask
from probe.job.instruments.dependence.gradient_direction import gradient_row
from probe.job.instruments.dependence.repeated_forwards import Place, RepeatedForwards
from probe.job.instruments.nan.nan_trace import no_collectives
from probe.job.instruments.tensors.loss_functions import target_of

LEAK_RATIO = 1e-4
"""A change below this fraction of the expected one is rounding: with the same shapes, an output that does not
depend on the replaced part is computed in the same order, and is bitwise equal on most processors."""
MOST_ALIKE = 8
"""Other modules of one kind that are looked at."""
ENOUGH_S = 8.0
"""No further question is started after this time."""
Send = Callable[[str, Any], None]
Row = dict[str, Any]


class Scene(NamedTuple):
    """The objects that the audit held. References only, no copies."""

    call: Any
    """See `forward.RootCall`."""
    first: Any
    """Node of the loss's graph next to its root."""
    samples: int | None
    """Size of the loader's batch, from the indices that its sampler drew; None if unknown."""
    alone: bool
    """Whether no other rank takes part in a backward."""
    path: Callable[[Any], str | None]


def ask(scene: Scene, send: Send) -> None:
    """Answer every question that the batch allows, the cheapest first; each answer is sent at once."""
    torch = torch_module()
    torch.set_num_threads(1)
    no_collectives()
    rows = _rows(torch, scene, time.monotonic())
    number = 0
    while True:
        row, error = capture(lambda: next(rows, None))
        if error is not None:
            row = {"question": "all", "refused": describe(error)}
        if row is None:
            return
        send(str(number), row)
        number += 1


def _rows(torch: Any, scene: Scene, begun_s: float) -> Iterator[Row]:
    call = scene.call
    model = unwrapped(call.module)
    given = Arguments(torch, call.args, call.kwargs)
    target, ignored = target_of(scene.first)
    layout = layout_of(torch, given, scene.samples, target, ignored)
    forwards = RepeatedForwards(torch, model, given, call.autocast)
    plain = forwards.run({})
    refused = ""
    if not plain:
        refused = "the model returns no tensor of floating point"
    elif not _equal(torch, plain, forwards.run({})):
        refused = "its outputs differ from one call to the next, with the same arguments and random state"
    elif not all(bool(torch.isfinite(one).all()) for one in plain):
        refused = "its outputs are not finite"
    if refused:
        yield {"question": "all", "refused": refused}
        return
    asked = Questions(torch, model, given, forwards, plain, layout, scene.path)
    parts = [asked.inputs, asked.later, asked.samples, asked.padding, asked.order]
    if scene.alone:
        parts.append(asked.recomputed)
    parts.append(asked.gradients)
    for part in parts:
        if time.monotonic() - begun_s > ENOUGH_S:
            yield {"question": "all", "refused": f"not all questions were asked within {ENOUGH_S:.0f} s"}
            return
        yield from _each(part.__name__, part())


def _each(question: str, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of one question. If it fails, because the model rejects an argument, the others are asked."""
    while True:
        row, error = capture(lambda: next(rows, None))
        if error is not None:
            row = {"question": question, "refused": describe(error)}
        if row is None:
            return
        yield row


class Questions:
    """Each method answers one question with rows; no rows if the question does not apply."""

    def __init__(
        self, torch: Any, model: Any, given: Arguments, forwards: RepeatedForwards, plain: list[Any],
        layout: Layout | str, path: Callable[[Any], str | None],
    ) -> None:
        self._torch, self._model, self._given = torch, model, given
        self._forwards, self._plain = forwards, plain
        self._layout = layout if isinstance(layout, Layout) else None
        self._unknown = layout if isinstance(layout, str) else ""
        self._known_path, self._paths = path, {id(one): name for name, one in model.named_modules()}

    def inputs(self) -> Iterator[Row]:
        """Does any output depend on each argument at all? Tested by exchanging samples of that argument."""
        torch = self._torch
        axis = self._layout.axis if self._layout else 0
        for name, tensor in [*self._given.tensors.items(), ("", None)]:
            changes = {
                key: one.roll(1, axis if one.dim() > axis else 0)
                for key, one in self._given.tensors.items() if name in ("", key)
            }
            if all(torch.equal(new, self._given.tensors[key]) for key, new in changes.items()):
                continue
            if len(changes) == len(self._given.tensors) and all(one.numel() == 1 for one in self._plain):
                continue  # one number for a whole batch, such as a loss, does not depend on sample order
            quiet = self._largest(self._plain, self._forwards.run(changes))
            effect = quiet or self._largest(
                self._forwards.run({}, training=True), self._forwards.run(changes, training=True)
            )
            known = tensor is not None and tensor.is_floating_point()
            yield {
                "question": "input", "subject": name or "all arguments", "effect": effect,
                "values": known and bool(((tensor != 0) & (tensor != 1)).any()),
            }

    def samples(self) -> Iterator[Row]:
        """Do the outputs of a sample depend on another sample of the batch?"""
        layout = self._layout
        if layout is None:
            yield {"question": "samples", "refused": self._unknown}
            return
        torch, place = self._torch, layout.samples // 2
        changes: dict[str, Any] = {}
        for name, tensor in self._given.tensors.items():
            new = tensor.clone()
            rows = layout.of_samples(new)
            if rows is not None:
                rows[place] = rows[(place + 1) % layout.samples]
                changes[name] = new
        others = [one for one in range(layout.samples) if one != place]
        outputs = self._pairs(changes, layout.by_sample)
        if not outputs:
            yield self._unfit("samples", "the samples")
            return
        changed = torch.stack([_by_first(one - other) for one, other in outputs]).amax(0)
        effect, leak = float(changed[place]), float(changed[others].max())
        row: Row = {
            "question": "samples", "effect": effect, "leak": leak,
            "leak_ratio": float((changed[others] > LEAK_RATIO * effect).double().mean()) if effect else None,
            "effect_ratio": self._positions_mix(place), **self._known(),
        }
        if effect and leak > LEAK_RATIO * effect:
            limit = LEAK_RATIO * effect

            def differs(one: Any, other: Any) -> bool:
                pair = [_samples_first(layout, each) for each in (one, other)]
                if pair[0] is None:
                    return False
                moved = _by_first(pair[0] - pair[1])
                return bool(moved[others].max() > min(limit, LEAK_RATIO * float(moved.max())))

            found = self._forwards.first_difference(changes, differs)
            row |= self._place(found)
            if found is not None and (found.attends or isinstance(found.module, torch.nn.RNNBase)):
                row["effect_ratio"] = self._inside(found, place)
        yield row

    def _inside(self, found: Place, place: int) -> float | None:
        """Share of a sample's other positions that change in the output of a module that attends or recurs,
        when its input is replaced at one: the largest of this one and the others of its kind, which may take
        turns."""
        share = self._positions_mix_in(found.module, place)
        if share:
            return share
        alike = self._forwards.attending() if found.attends else [
            one for one in self._model.modules() if isinstance(one, self._torch.nn.RNNBase)
        ]
        others = [one for one in alike if one is not found.module][:MOST_ALIKE]
        shares = [share, *(self._inner_positions_mix(one, place) for one in [found.module, *others])]
        return max((one for one in shares if one is not None), default=None)

    def _inner_positions_mix(self, module: Any, place: int) -> float | None:
        """`_positions_mix_in` where only the model knows the positions: replaces one in its input."""
        layout = self._layout
        assert layout is not None
        before = self._forwards.output_of(module)
        found: list[float | None] = []
        for part in (0.0, 0.5, 1.0):
            at: list[int] = []

            def other(given: Any, part: float = part, at: list[int] = at) -> Any:
                new = given.clone()
                rows = _samples_first(layout, new) if new.dim() == 3 else None
                if rows is not None and rows.shape[1] > 1:
                    at.append(int(part * (rows.shape[1] - 1)))
                    rows[place, at[0]] = rows[(place + 1) % len(rows), at[0]]
                return new

            after = self._forwards.output_of(module, other)
            pair = [None if one is None else _samples_first(layout, one) for one in (before, after)]
            if at and pair[0] is not None and pair[1] is not None and pair[0].dim() == 3:
                found.append(_moved_elsewhere(pair[0] - pair[1], place, at[0]))
        return max((one for one in found if one is not None), default=None)

    def _positions_mix_in(self, module: Any, place: int) -> float | None:
        """Share of a sample's other positions that change in a module's output when the sample is replaced at
        one position, in its tokens or in a three-dimensional floating-point argument."""
        layout = self._layout
        assert layout is not None
        found: list[float | None] = []
        for name, tensor in self._given.tensors.items():
            if name != layout.tokens and not (tensor.dim() == 3 and tensor.is_floating_point()):
                continue
            rows = layout.of_samples(tensor)
            for position in () if rows is None else (0, rows.shape[1] // 2, rows.shape[1] - 1):
                new = rows.clone()
                new[place, position] = rows[(place + 1) % len(rows), position]
                changed = new.transpose(0, 1) if layout.axis else new
                pair = [
                    None if one is None else _samples_first(layout, one)
                    for one in self._forwards.of_module(module, {name: changed.contiguous()})
                ]
                if pair[0] is None or pair[1] is None or pair[0].shape[:2] != rows.shape[:2]:
                    continue
                found.append(_moved_elsewhere(pair[0] - pair[1], place, position))
        return max((one for one in found if one is not None), default=None)

    def _positions_mix(self, place: int) -> float | None:
        """Share of a sample's other positions that change when one of its tokens is replaced. Tries the
        first, middle and last token, because some may be padding, or attention may be causal."""
        layout = self._layout
        if layout is None or not layout.positions:
            return None
        found: list[float] = []
        for position in (0, layout.positions // 2, layout.positions - 1):
            changes, replaced = self._other_tokens(lambda tokens: tokens[place], position)
            outputs = self._pairs(changes, layout.by_position)
            if not outputs or not bool(replaced[place]):
                continue
            changed = self._torch.stack([_by_two(one - other)[place] for one, other in outputs]).amax(0)
            own = float(changed.max())
            others = [one for one in range(layout.positions) if one != position]
            found.append(float((changed[others] > LEAK_RATIO * own).double().mean()) if own else 0.0)
        return max(found, default=None)

    def later(self) -> Iterator[Row]:
        """If the targets are the next tokens: do outputs depend on later tokens?"""
        layout = self._layout
        if layout is None or not layout.shifted or layout.positions < 4:
            return
        torch, position = self._torch, layout.positions // 2
        changes, replaced = self._other_tokens(lambda tokens: tokens, position)
        outputs = self._pairs(changes, layout.by_position) or self._pairs(changes, layout.behind_channels)
        if not outputs or not bool(replaced.any()):
            yield self._unfit("later", "the positions")
            return
        changed = torch.stack([_by_two(one - other) for one, other in outputs]).amax(0)[replaced]
        counted = torch.ones_like(changed, dtype=torch.bool)
        if layout.counted is not None:
            counted = layout.counted[replaced]
        before = (changed * counted)[:, :position]
        own, after = changed[:, position], changed[:, position + 1 :]
        effect, leak = float(changed.max()), float(before.max())
        limit = LEAK_RATIO * effect
        row: Row = {
            "question": "later", "subject": layout.tokens, "leak": leak,
            "effect": float(torch.maximum(own, after.amax(1)).max()),
            "leak_ratio": float((before.amax(0) > limit).double().mean()),
            "effect_ratio": float((after.amax(0) > limit).double().mean()), **self._known(),
        }
        if effect and leak > limit:
            row |= self._place(
                self._forwards.first_difference(changes, _moves_before(layout, position, limit))
            )
        yield row

    def padding(self) -> Iterator[Row]:
        """If an argument is a padding mask: do outputs at real tokens depend on the padding?"""
        layout = self._layout
        found = padding_mask(self._torch, self._given, layout) if layout is not None else None
        if layout is None or found is None:
            return
        torch, (name, padding) = self._torch, found
        tokens = layout.of_samples(self._given.tensors[layout.tokens])
        real = ~padding
        rows = padding.any(1) & (real.sum(1) > 1)
        other = tokens[real][torch.arange(int(padding.sum())) % int(real.sum())]
        new = tokens.clone()
        new[padding] = other
        leak, leaking = self._at(self._tokens_as(new), real, rows)
        first = real.double().argmax(1)
        new = tokens.clone()
        lines = torch.arange(len(tokens))
        new[lines, first] = new.roll(1, 0)[lines, first.roll(1)]
        elsewhere = real.clone()
        elsewhere[lines, first] = False
        moved = rows & (new[lines, first] != tokens[lines, first])
        effect, reached = self._at(self._tokens_as(new), elsewhere, moved)
        if leak is None or effect is None:
            yield {"subject": name, **self._unfit("padding", "the samples")}
            return
        limit = LEAK_RATIO * max(leak, effect)
        yield {
            "question": "padding", "subject": name, "effect": effect, "leak": leak,
            "leak_ratio": float((leaking > limit).double().mean()),
            "effect_ratio": float((reached > limit).double().mean()), **self._known(),
        }

    def _at(self, changes: dict[str, Any], where: Any, rows: Any) -> tuple[float | None, Any]:
        """The largest change at these positions of these samples, and the change at each; per whole sample if
        the outputs have no positions."""
        layout = self._layout
        assert layout is not None
        outputs = self._pairs(changes, layout.by_position)
        if outputs:
            changed = self._torch.stack([_by_two(one - other) for one, other in outputs]).amax(0)
            chosen = changed[where & rows[:, None]]
        else:
            outputs = self._pairs(changes, layout.by_sample)
            if not outputs:
                return None, None
            chosen = self._torch.stack([_by_first(one - other) for one, other in outputs]).amax(0)[rows]
        return (float(chosen.max()), chosen) if chosen.numel() else (None, None)

    def order(self) -> Iterator[Row]:
        """If there is an output per position: does the order of the positions matter? Tested by reversing
        it."""
        layout = self._layout
        if layout is None or not layout.positions or layout.shifted or layout.positions < 4:
            return
        mix = self._positions_mix(layout.samples // 2)
        turned = {
            name: one.flip(1 - layout.axis) for name, one in self._given.tensors.items()
            if one.shape[:2] == self._given.tensors[layout.tokens].shape
        }
        outputs = self._pairs(turned, layout.by_position)
        if not outputs or not mix:
            return
        leak = max(float((one.flip(1) - other).abs().max()) for one, other in outputs)
        effect = max(float((one - other).abs().max()) for one, other in outputs)
        yield {
            "question": "order", "subject": layout.tokens, "effect": effect, "leak": leak,
            "effect_ratio": mix, **self._known(),
        }

    def gradients(self) -> Iterator[Row]:
        """Do the gradients point in the direction in which the outputs grow?"""
        row = gradient_row(self._torch, self._model, self._forwards)
        if row is not None:
            yield row

    def recomputed(self) -> Iterator[Row]:
        """Does the gradient depend on random numbers drawn in backward, for example because a recomputed part
        draws a different dropout mask?"""
        torch, forwards = self._torch, self._forwards
        if not forwards.draws():
            return
        first, again, other = (forwards.gradients(*seeds) for seeds in ((1, 2), (1, 2), (1, 3)))
        named = [name for name, _ in self._model.named_parameters()]
        effect = leak = 0.0
        changed = []
        for name, one, same, another in zip(named, first, again, other, strict=True):
            if one is None or same is None or another is None:
                continue
            if not torch.equal(one, same):
                yield {"question": "recomputed", "refused": "gradients differ from one backward to the next"}
                return
            effect = max(effect, float(one.abs().max()))
            leak = max(leak, float((one - another).abs().max()))
            if not torch.equal(one, another):
                changed.append(name)
        if effect:
            yield {
                "question": "recomputed", "subject": changed[0] if changed else None, "effect": effect,
                "leak": leak, "leak_ratio": len(changed) / len(named),
            }

    # Helpers ----------------------------------------------------------------

    def _known(self) -> Row:
        layout = self._layout
        return {} if layout is None else {
            "samples": layout.samples, "positions": layout.positions or None, "axis": layout.axis,
            "known_by": layout.known_by,
        }

    def _unfit(self, question: str, what: str) -> Row:
        return {"question": question, "refused": f"no output has a dimension of {what}", **self._known()}

    def _pairs(self, changes: dict[str, Any], view: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
        """Outputs before and after, each through `view`; without outputs that have no such view."""
        found = []
        for one, other in zip(self._plain, self._forwards.run(changes), strict=False):
            if one.shape == other.shape and view(one) is not None:
                found.append((view(one).double(), view(other).double()))
        return found

    def _largest(self, before: list[Any], after: list[Any]) -> float:
        """The largest change of an output; infinite for a change of shape."""
        if [one.shape for one in before] != [one.shape for one in after]:
            return float("inf")
        pairs = zip(before, after, strict=True)
        moved = [(one.double() - other.double()).abs().max() for one, other in pairs]
        return max((float(one) for one in moved), default=0.0)

    def _other_tokens(
        self, part: Callable[[Any], Any], position: int
    ) -> tuple[dict[str, Any], Any]:
        """The tokens at a position replaced by others of the batch, in the chosen part; and a mask of the
        samples in which the new token differs."""
        layout = self._layout
        assert layout is not None
        tokens = layout.of_samples(self._given.tensors[layout.tokens])
        old = tokens[:, position]
        # Of the same position if they differ: each column of a table has values of its own.
        candidates = [tokens.roll(shift, dimension)[:, position] for dimension in (0, 1) for shift in (1, 2)]
        same = max(candidates[:2], key=lambda one: int((one != old).sum()))
        enough = 2 * int((same != old).sum()) >= len(old)
        best = same if enough else max(candidates, key=lambda one: int((one != old).sum()))
        new = tokens.clone()
        new[:, position] = best
        mixed = tokens.clone()
        part(mixed)[...] = part(new)
        return self._tokens_as(mixed), best != old

    def _tokens_as(self, tokens: Any) -> dict[str, Any]:
        """The changes that pass these tokens, given as [samples, positions]."""
        layout = self._layout
        assert layout is not None
        return {layout.tokens: tokens.T.contiguous() if layout.axis else tokens}

    def _place(self, found: Place | None) -> Row:
        if found is None:
            return {}
        path = self._known_path(found.module) or self._paths.get(id(found.module)) or ""
        return {"module": path, "class": type(found.module).__name__, "attends": found.attends}


def _samples_first(layout: Layout, tensor: Any) -> Any:
    """A module's input or output with samples first: inside the model they may be in another dimension. None
    if the shape does not match."""
    found = layout.by_sample(tensor)
    if found is None and tensor.dim() > 1 and tensor.shape[1 - layout.axis] == layout.samples:
        found = tensor.transpose(0, 1 - layout.axis)
    return found if found is not None and len(found) == layout.samples else None


def _moves_before(layout: Layout, position: int, limit: float) -> Callable[[Any, Any], bool]:
    def differs(one: Any, other: Any) -> bool:
        pair = [layout.by_position(each) for each in (one, other)]
        if pair[0] is None:
            pair = [layout.behind_channels(each) for each in (one, other)]
        if pair[0] is None or pair[1] is None:
            return False
        moved = _by_two((pair[0] - pair[1]).double())
        return bool(moved[:, :position].max() > min(limit, LEAK_RATIO * float(moved.max())))

    return differs


def _by_first(change: Any) -> Any:
    """The largest change of each sample."""
    return change.double().abs().reshape(len(change), -1).amax(1)


def _by_two(change: Any) -> Any:
    """The largest change of each position of each sample."""
    return change.double().abs().reshape(*change.shape[:2], -1).amax(2)


def _moved_elsewhere(change: Any, place: int, position: int) -> float | None:
    """Share of a sample's other positions that changed; None if the one that was replaced did not."""
    moved = _by_two(change)[place]
    elsewhere = [one for one in range(len(moved)) if one != position]
    if not elsewhere or not float(moved[position]):
        return None
    return float((moved[elsewhere] > LEAK_RATIO * float(moved.max())).double().mean())


def _equal(torch: Any, ones: list[Any], others: list[Any]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))
