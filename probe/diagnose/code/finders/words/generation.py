"""How texts are generated: what is hidden before a word is drawn, what beams are ranked by, positions behind a cache, the mode of
the network. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    SHAPED,
    Many,
    Value,
    alternatives,
    bare,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_self, last_word, own, short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.held import is_unsteady
from probe.diagnose.code.traits.numberings import marked
from probe.diagnose.code.traits.updates import plain
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_LEAST_FILL = -20.0
_COMPARED = ("lt", "gt", "le", "ge")
_RANKED = ("topk", "sort", "kthvalue", "cumsum", "argsort", "min")
_SCALED = (*SHAPED, "div", "to", "float", "clone", "either")
_ORDERS = ("sort", "sorted", "max", "nlargest", "nsmallest", "min", "heappush", "heappushpop", "heapq.nlargest", "heapq.heappush", "heapq.heappushpop")


# What is hidden -----------------------------------------------------------------------------


@FINDERS.add("mask-without-effect")
def _hidden_as_zero(program: Program) -> Iterator[Remark]:
    """Scores that should be hidden are set to a number near 0, and a softmax of them follows."""
    computation = computation_of(program)
    for weights in computation.of("softmax", "log_softmax"):
        at = weights.args[0] if weights.args else weights
        while at.args and at is not weights and (at.op in _SCALED or (at.op == "mul" and number(at.args[-1]) is not None)) and not (at.op == "div" and number(at.args[0]) is not None):
            at = at.args[0]
        found = _filled(at)
        if found is None or not _is_choice(computation, found[0]) or _hidden_again(computation, weights, found[0]):
            continue
        yield Remark(at.node, f"{short(at.node)} is followed by a softmax (line {weights.line}): what should be hidden counts as a score of {found[1]}")
        return


def _filled(value: Value) -> tuple[Value, str] | None:
    """The mask by which some scores are set to a number near 0, and that number; None where all else is known."""
    if value.op == "where" and len(value.args) == 3:
        known = [one for one in value.args[1:] if _near_zero(one) is not None]
        scores = [one for one in value.args[1:] if _near_zero(one) is None]
        return (value.args[0], _near_zero(known[0]) or "0") if len(known) == 1 and any(one.op == "run" for one in origins(scores[0])) else None
    if value.op in ("set_item", "masked_fill") and len(value.args) == 3 and (fill := _near_zero(value.args[2])) is not None:
        return (value.args[1], fill) if any(one.op == "run" for one in origins(value.args[0])) else None
    if value.op == "mul" and len(value.args) == 2:
        masks = [one for one in value.args if bare(one).op in (*_COMPARED, "ne", "eq")]
        return (masks[0], "0") if len(masks) == 1 else None
    return None


def _near_zero(value: Value) -> str | None:
    """A number that is no large negative one, as it is written; None for all else."""
    value = bare(value)
    if value.op in ("zeros_like", "zeros"):
        return "0"
    if value.op == "tiny":
        return short(value.node)
    known = number(value)
    return f"{known:g}" if known is not None and _LEAST_FILL < known < 1 else None


def _is_choice(computation: Computation, mask: Value) -> bool:
    """Whether a mask says which words may be chosen: by a rank, by their padding."""
    inner = bare(mask, "invert", "not", "logical_not", "bool")
    if inner.op in _COMPARED and len(inner.args) == 2 and any(_is_ranked(one) for one in inner.args):
        return True
    return marked(computation, mask) is not None


def _is_ranked(value: Value) -> bool:
    """Whether a value is a score of a given rank, or a sum of those before it."""
    value = bare(value, "part", "unsqueeze", "expand", "sub")
    return value.op in _RANKED and bool(value.args) and (value.op != "min" or any(one.op == "topk" for one in origins(value.args[0], ("run",))))


def _hidden_again(computation: Computation, weights: Value, mask: Value) -> bool:
    """Whether the weights are masked after the softmax too."""
    inner = bare(mask, "invert", "not", "logical_not", "bool")
    for user in made_from(computation, weights, frozenset({"to", "float", *SHAPED})):
        if user.op in ("mul", "masked_fill", "where", "set_item") and any(each is inner or same(each, inner) for one in user.args if one is not weights for each in origins(one, ("run", "softmax"))):
            return True
    return False


# What beams are ranked by ------------------------------------------------------------------------


def probabilities_added_up(program: Program) -> Iterator[Remark]:
    """The score by which the best texts are kept is a sum of probabilities, or of scores of no scale."""
    computation = computation_of(program)
    for total in computation.of("add"):
        if len(total.args) != 2 or not total.where.loops:
            continue
        for score, said in (total.args, total.args[::-1]):
            kind = _said(said)
            if kind is None or not _is_running(score) or _said(score) is not None:
                continue
            if _ranks_texts(computation, total, score) and (kind[1].op != "run" or _chooses_words(computation, kind[1])):
                yield Remark(total.node, f"{short(total.node)} adds up {kind[0]} ({short(kind[1].node)}, line {kind[1].line}), and the best texts are kept by that sum")
                return


def _said(value: Value) -> tuple[str, Value] | None:
    """What a value says of a word that may come next: its probability, or a raw score."""
    for _ in range(30):
        value = bare(value)
        if isinstance(value, Many):
            return None
        if value.op == "softmax":
            return "probabilities", value
        if value.op in ("part", "element", "topk", "max", "gather", "item", "index_select", "div") and value.args:
            if value.op == "part" and value.args[0].op in ("topk", "max") and number(value.args[1]) == 1:
                return None
            value = value.args[0]
        elif value.op == "run" and plain(value.args[0]).op == "torch.nn.Linear":
            return "scores that are no log probabilities", value
        else:
            return None
    return None


def _is_running(score: Value) -> bool:
    """Whether a score is that of the words before: it began with a number, or in a row of numbers."""
    return all(number(one) in (0.0, 1.0) or bare(one, "part", "expand").op in ("zeros", "full", "zeros_like", "set_item", "new_zeros") or one.op in ("element", "part", "add", "list") for one in alternatives(bare(score)))


def _chooses_words(computation: Computation, score: Value) -> bool:
    """Whether the layer that gives a score learns to choose one of several, and not a reward or a value."""
    layer = plain(score.args[0])
    chosen = [one for one in computation.of("cross_entropy", "log_softmax", "softmax", "nll_loss") if any(each.op == "run" and each.args and plain(each.args[0]) is layer for each in origins(one))]
    return bool(chosen) or not any(True for _ in losses(computation))


def _goes_on(kept: Value, score: Value) -> bool:
    """Whether a score is that of what was kept in the passes before, in a loop: no sum over networks or views that begins
    anew before each choice."""
    begun: list[Value] = []
    waiting = [score]
    while waiting and len(begun) < 40:
        found = [bare(one, "part", "expand") for one in alternatives(bare(waiting.pop()))]
        begun += found
        waiting += [each for one in found if one.op == "add" for each in one.args]
    return bool(kept.where.loops) and not any((number(one) is not None or one.op in _BEGUN) and kept.where.loops[-1] in one.where.loops for one in begun)


_BEGUN = ("zeros", "full", "zeros_like", "new_zeros")


def _ranks_texts(computation: Computation, total: Value, score: Value) -> bool:
    """Whether texts are kept by a score: the largest of all are looked for, or a list of pairs is put in order by it."""
    for one in made_from(computation, total, frozenset({*SHAPED, "to", "div", "cat", "stack", "tensor", "list"})):
        if one.op == "topk" and _goes_on(one, score):
            return True
    for pair in computation.users(total):
        if not isinstance(pair, Many) or pair.op != "tuple" or len(pair.parts) < 2:
            continue
        for kept in computation.users(pair):
            row = kept.args[0] if kept.op == "append" and kept.args else kept
            if any(user.op in _ORDERS or (isinstance(user.node, ast.Call) and last_word(user.node.func) in _ORDERS) for user in (kept, *computation.users(row))):
                return True
    return False


# Positions behind a cache ------------------------------------------------------------------------


@FINDERS.add("positions-begin-again")
def _begin_again(program: Program) -> Iterator[Remark]:
    """New keys are joined to those of an earlier call, and their words are numbered from 0, as those of that call were."""
    computation = computation_of(program)
    for joined in computation.of("cat"):
        parts = joined.args[0].parts if joined.args and isinstance(joined.args[0], Many) else []
        if len(parts) != 2:
            continue
        new = _layer_of(parts[1])
        if new is None:
            continue
        before = next((one for one in origins(parts[0]) if one.op == "run" and one.args[0] is new.args[0] and one.number < new.number), None)
        places = [_places_of(one) for one in parts[::-1]] if before is not None else []
        counted = next((one for one in places[0] if any(one.node is other.node for other in places[1])), None) if places else None
        if counted is not None:
            yield Remark(counted.node, f"{short(counted.node)} begins at 0 in every call, also where {short(joined.node)} (line {joined.line}) puts the words behind those of earlier calls")
            return


@FINDERS.add("positions-begin-again")
def _turned_again_from_the_start(program: Program) -> Iterator[Remark]:
    """An object keeps the keys of earlier calls and joins new ones to them, which were turned by the first places of a table."""
    for function in program.everywhere(ast.FunctionDef):
        mine = own(function, ast.Call)
        kept = {ast.unparse(one) for one in own(function, ast.Attribute) if isinstance(one.ctx, ast.Store) and is_self(one.value)}
        for joined in (one for one in mine if program.called(one) in ("torch.cat", "torch.concat") and one.args and isinstance(one.args[0], (ast.List, ast.Tuple))):
            parts = joined.args[0].elts if isinstance(joined.args[0], (ast.List, ast.Tuple)) else []
            if len(parts) != 2 or ast.unparse(parts[0]) not in kept or not isinstance(parts[1], ast.Name):
                continue
            new = parts[1].id
            turned = [one for one in own(function, ast.Assign) if one.lineno < joined.lineno and new in {each.id for target in one.targets for each in ast.walk(target) if isinstance(each, ast.Name)}]
            for cut in (each for one in turned[-1:] for each in ast.walk(one.value) if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Slice)):
                bounds = cut.slice
                assert isinstance(bounds, ast.Slice)
                if bounds.lower is None and isinstance(bounds.upper, ast.Name) and _is_size(function, bounds.upper.id) and ast.unparse(cut.value) != new:
                    yield Remark(cut, f"{short(cut)} begins at 0 in every call, also where {short(joined)} (line {joined.lineno}) puts the words behind those of earlier calls")
                    return


def _is_size(function: ast.FunctionDef, name: str) -> bool:
    """Whether a name is only ever given a size of something, and nothing is added to it."""
    if any(isinstance(one.target, ast.Name) and one.target.id == name for one in own(function, ast.AugAssign)):
        return False
    given = [one for one in own(function, ast.Assign) if name in {each.id for target in one.targets for each in ast.walk(target) if isinstance(each, ast.Name)}]
    return bool(given) and all(any(isinstance(each, ast.Attribute) and each.attr in ("shape", "size") for each in ast.walk(one.value)) and not any(isinstance(each, ast.BinOp) for each in ast.walk(one.value)) for one in given)


def _places_of(run: Value) -> list[Value]:
    """The places, counted from 0, that what a layer is given is made with; of its own call, not of those that chose the words."""
    found = (_from_zero(one) for one in origins(run, ("size", "shape", "len", "argmax", "multinomial", "topk", "sample")))
    return [one for one in found if one is not None]


def _layer_of(value: Value) -> Value | None:
    """The layer's call whose result a value is, in another shape."""
    for _ in range(20):
        value = bare(value)
        if value.op == "run" and len(value.args) > 1:
            return value
        if value.op not in ("transpose", "permute", "part", "chunk", "split", "unbind", "add", "sub", "mul", "cat") or not value.args:
            return None  # a sum of products turns keys by their places
        value = next(iter(value.args[0].made_of()), value.args[0]) if value.op == "cat" else value.args[0]
    return None


def _from_zero(value: Value) -> Value | None:
    """The places, counted from 0 to the length of what is read, by which a value looks up positions."""
    if value.op == "run" and len(value.args) == 2 and value.args[0].op == "torch.nn.Embedding":
        index: Value | None = value.args[1]
    elif value.op == "part" and len(value.args) == 2 and value.args[0].op in ("torch.nn.Parameter", "set_item", "register_buffer", "unsqueeze", "cos", "sin", "polar"):
        index = value.args[1]
    else:
        return None
    if value.op == "part" and index is not None:
        cut = next((one for one in (index.parts if isinstance(index, Many) else [index]) if one.op == "slice" and not is_none(one.args[1])), None)
        return value if cut is not None and number(cut.args[0]) in (None, 0) and is_none(cut.args[0]) and _is_length(cut.args[1]) else None
    found = list(alternatives(index)) if index is not None else []
    counted = [bare(one, "repeat") for one in found]
    return counted[0] if len(counted) == 1 and counted[0].op == "arange" and len(counted[0].args) == 1 and _is_length(counted[0].args[0]) else None


def _is_length(value: Value) -> bool:
    """Whether a value is the length of a sequence that is read."""
    value = bare(value)
    return value.op in ("size", "len") or (value.op == "part" and value.args[0].op == "shape")


# The mode -----------------------------------------------------------------------------------------


def generated_in_train_mode(program: Program) -> Iterator[Remark]:
    """Words are chosen one by one by a network that drops units, and nothing ever calls eval()."""
    computation = computation_of(program)
    if any(True for _ in computation.of("eval")) or any(one.data == "training" for one in computation.of("set_attribute")) or any(len(one.args) > 1 or one.named for one in computation.of("train")):
        return
    if any(isinstance(one, ast.Attribute) and one.attr in ("eval", "training") for one in program.everywhere(ast.Attribute)):
        return
    learned = {id(one.args[0]) for _, loss in losses(computation) for one in origins(loss) if one.op == "run" and not one.where.no_grad}
    lines = {one.node for _, loss in losses(computation) for one in origins(loss) if one.op == "dropout" and not one.where.no_grad}
    for word in computation.of("multinomial", "argmax"):
        if not word.where.no_grad or not word.where.loops or not _is_read_again(computation, word):
            continue
        for one in origins(word):
            drops = one.op == "run" and id(one.args[0]) in learned and any(is_unsteady(each) for each in origins(one.args[0]))
            if one.where.no_grad and (drops or (one.op == "dropout" and one.node in lines and not one.named.keys() & {"training"})):
                yield Remark(word.node, f"{short(word.node)} chooses words by a network in train mode: {short(one.node)} (line {one.line}) drops units, and nothing in the program calls eval()")
                return


def _is_read_again(computation: Computation, word: Value) -> bool:
    """Whether a word that was chosen is written behind a text, which is read by the next step."""
    for one in made_from(computation, word, frozenset({"unsqueeze", "view", "to", "item", "part", "tolist", "squeeze", "reshape", "list"})):
        if one.op in ("cat", "append", "set_item", "concat"):
            return True
        if one.op == "run" and one.args[0].op == "torch.nn.Embedding" and one.number > word.number:
            return True
    return False


# Where generation stands still, or ends --------------------------------------------------------------


def window_never_moves(program: Program) -> Iterator[Remark]:
    """A text that grows at its end is read up to a fixed number of words, from its beginning, and the next word is drawn by what is
    said at the last of these."""
    computation = computation_of(program)
    for window in computation.of("part"):
        index = window.args[1] if len(window.args) == 2 else window
        parts = index.parts if isinstance(index, Many) else [index]
        cut = parts[-1]
        if not window.where.loops or cut.op != "slice" or not is_none(cut.args[0]) or (number(cut.args[1]) or 0) < 2 or not all(one.op == "slice" for one in parts):
            continue
        for grown in computation.users(window.args[0]):
            if not isinstance(grown, Many) or len(grown.parts) != 2 or grown.parts[0] is not window.args[0]:
                continue
            for joined in computation.users(grown):
                if joined.op in ("cat", "concat") and joined.where.loops == window.where.loops and _is_said_at_the_end(grown.parts[1], window):
                    yield Remark(window.node, f"{short(window.node)} is the beginning of a text that {short(joined.node)} (line {joined.line}) makes longer at its end: once it is longer than {number(cut.args[1]):g} words, the same ones are read each time")
                    return


def _is_said_at_the_end(word: Value, window: Value) -> bool:
    """Whether a word was chosen by what a network that reads a window says at its last place."""
    made = list(origins(word))
    last = any(one.op == "part" and isinstance(one.args[1], Many) and any(number(each) == -1 for each in one.args[1].parts) for one in made)
    return last and any(one is window for one in made) and any(one.op in ("multinomial", "argmax", "topk", "sample") for one in made) and any(one.op == "run" for one in made)


def ended_by_the_first(program: Program) -> Iterator[Remark]:
    """The texts of a batch are generated together, and the loop ends where any of them has come to its end."""
    computation = computation_of(program)
    for asked in computation.of("any"):
        around = program.parent.get(asked.node)
        while isinstance(around, (ast.Call, ast.Attribute)):
            around = program.parent.get(around)
        ended = bare(asked.args[0]) if asked.args else asked
        if not isinstance(around, ast.If) or not any(isinstance(one, ast.Break) for one in around.body) or len(asked.args) > 1 or asked.named or ended.op != "eq" or len(ended.args) != 2:
            continue
        word, end = ended.args if number(ended.args[1]) is not None else ended.args[::-1]
        chosen = bare(word, "part")
        if number(end) is None or chosen.op not in ("argmax", "multinomial") or not any(one.op == "run" for one in origins(chosen)) or not asked.where.loops:
            continue
        begun = [one for one in origins(chosen) if one.op in ("full", "zeros", "ones") and one.args]
        several = [one for one in begun if _is_of_a_batch(one)]
        if several:
            yield Remark(asked.node, f"{short(asked.node)} ends the loop where one text has come to its end, and {short(several[0].node)} (line {several[0].line}) begins as many as the batch has")
            return


def _is_of_a_batch(block: Value) -> bool:
    """Whether a tensor has one row for each of several samples that are given."""
    sizes = [each for one in block.args[:1] for each in (one.parts if isinstance(one, Many) else [one])]
    if not sizes:
        return False
    size = bare(sizes[0])
    of = size.args[0] if size.op in ("size", "len") and size.args else size.args[0].args[0] if size.op == "part" and size.args[0].op == "shape" else None
    if of is None or (size.op == "size" and number(size.args[1] if len(size.args) > 1 else None) != 0) or (size.op == "part" and number(size.args[1]) != 0):
        return False
    given = bare(of)
    index = given.args[1] if given.op == "part" and len(given.args) == 2 else None
    cut = index.parts[0] if isinstance(index, Many) and index.parts else index
    return of.op != "unsqueeze" and cut is not None and cut.op in ("slice", "element") and number(cut.args[1] if cut.op == "slice" else None) != 1


# States of a generation ---------------------------------------------------------------------------


_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell")
_WORDS_DRAWN = ("argmax", "multinomial", "sample", "topk", "max", "choice")
_LENGTHENED = ("cat", "concatenate", "hstack", "append", "stack")


@FINDERS.add("state-not-carried")
def _state_of_before(program: Program) -> Iterator[Remark]:
    """A loop gives a recurrent layer the word that it has drawn from it, and the state from before the loop, or none."""
    computation = computation_of(program)
    for run in computation.of("run"):
        if run.args[0].op not in _RECURRENT or not run.where.loops or len(run.args) < 2:
            continue
        loop, state = run.where.loops[-1], run.args[2] if len(run.args) > 2 else None
        parts = [] if state is None or is_none(state) else state.parts if isinstance(state, Many) else [state]
        if any(loop in one.where.loops or one.op in ("@input", "either") for one in parts) or not _feeds_back(computation, run, loop):
            continue
        if not _is_taken(computation, run, loop):
            said = f"the state as it was before the loop of line {getattr(loop, 'lineno', 0)}" if parts else "no state"
            yield Remark(run.node, f"{short(run.node)} reads the last word that was drawn in the loop of line {getattr(loop, 'lineno', 0)}, and is given {said}: what stands before that word is not known to it")
            return


def _feeds_back(computation: Computation, run: Value, loop: ast.AST) -> bool:
    """Whether a layer reads the last word alone that a loop has drawn from what it gave."""
    drawn = {id(one) for one in computation.of(*_WORDS_DRAWN) if loop in one.where.loops and any(each is run for each in origins(one))}
    known = [one for one in origins(run.args[1], _LENGTHENED) if one.number < run.number]
    if not any(one.op == "one_hot" or (one.op == "run" and one.args[0].op == "torch.nn.Embedding") for one in known):
        return False
    given = {id(one) for one in known}
    for added in computation.of("append") if drawn else ():
        row = added.args[0]
        if loop in added.where.loops and any(id(one) in drawn for one in origins(added.args[1])) and isinstance(row, Many) and id(row) not in given and any(id(one) in given for one in row.parts):
            return True
    names = {target.id for target, values in computation.stored.items() if any(id(one) in given for one in values)}
    inside = {node for node in ast.walk(loop) if isinstance(node, ast.Name)}
    for target, values in computation.stored.items() if drawn else ():
        for one in values if target.id in names and target in inside else ():
            if any(id(each) in drawn for each in origins(one)):
                longer = any(each.op in _LENGTHENED and any(id(part) in drawn for part in origins(each)) for each in origins(one, tuple(_WORDS_DRAWN)))
                return not longer or any(_is_last(each) for each in known)
    return False


def _is_last(value: Value) -> bool:
    """Whether a value is the last one of a row of words."""
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    ends = index.parts[-1:] if isinstance(index, Many) else [index] if index is not None else []
    return any(number(one) == -1 or (one.op == "slice" and number(one.args[0]) == -1) for one in ends)


def _is_taken(computation: Computation, run: Value, loop: ast.AST) -> bool:
    """Whether something in a loop reads the state that a layer gives, or keeps it."""
    cell = run.args[0].op.endswith("Cell")
    states = [run] if cell else [one for one in computation.users(run) if one.op == "part" and number(one.args[1]) in (1, -1)]
    whole = [*states, *(one for each in states for one in computation.users(each) if one.op == "part")]
    if any(one.op in ("set_attribute", "set_item", "append") and any(part is each for part in one.args[1:] for each in whole) for each in whole for one in computation.users(each)):
        return True
    read = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    inside = {node for node in ast.walk(loop) if isinstance(node, ast.Name)}
    before = _holders(computation, run, loop)
    return any(
        target in inside and target.id in (before or read) and any(part is each for one in values for part in ((one, *one.made_of()) if cell else origins(one, _WORDS_DRAWN)) for each in whole)
        for target, values in computation.stored.items()
    )


def _holders(computation: Computation, run: Value, loop: ast.AST) -> set[str]:
    """The names that the function around a loop has given the state that a layer is given."""
    state = run.args[2] if len(run.args) > 2 else None
    given = [] if state is None or is_none(state) else [state, *(state.parts if isinstance(state, Many) else ())]
    around = [one for one in run.where.functions if any(node is loop for node in ast.walk(one))]
    own = {node for node in ast.walk(around[-1]) if isinstance(node, ast.Name)} if around else set()
    return {target.id for target, values in computation.stored.items() if target in own and any(one is each or (isinstance(one, Many) and each in one.parts) for one in values for each in given)}
