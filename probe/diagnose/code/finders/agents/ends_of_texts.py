"""Texts that end early, and where their scores and their caches are. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_own, last_word, own, short
from probe.diagnose.code.traits.backwards import has_gradient
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.likelihoods import is_likelihood

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_DRAWN = frozenset({"multinomial", "sample", "generate", "argmax"})


# Scores ---------------------------------------------------------------------------------


def reward_behind_the_end(program: Program) -> Iterator[Remark]:
    """Words behind the end of a text do not count, and the score of the text is put at the last place of its row."""
    computation = computation_of(program)
    fades = next((one for one in computation.of("mul") if any(0 < (number(a) or 0) < 1 and (bare(b).op in ("zeros", "zeros_like") or number(b) == 0) for a, b in (one.args, one.args[::-1]) if len(one.args) == 2)), None)
    for _, loss in losses(computation) if fades is not None else ():
        whole = list(origins(loss))
        mask = next((one for value in whole if value.op == "mul" and len(value.args) == 2 and any(_is_of_words(each) for each in origins(value, stop=("run",))) for one in value.args if _tells_ends(one)), None)
        put = next((one for one in whole if one.op == "set_item" and len(one.args) == 3 and _is_last_column(one.args[1]) and number(one.args[2]) is None and _is_score(one)), None)
        if mask is not None and put is not None and fades is not None:
            yield Remark(put.node, f"{short(put.node)} stands in the last place of each row, and {short(bare(mask).node)} (line {bare(mask).line}) says that texts end before it: their score fades by {short(fades.node)} (line {fades.line}) with each place of the padding")
            return


def _is_of_words(value: Value) -> bool:
    return value.op == "gather" and is_likelihood(value)


def _is_score(put: Value) -> bool:
    """Whether what is put in one place of a row is a number for the whole row, and no gradient comes from it."""
    given = put.args[2]
    more = given.args[1] if given.op == "add" and len(given.args) == 2 and bare(given.args[0]).op == "part" else given
    return not has_gradient(more) and bare(more).op not in ("part", "run", "gather")


def _tells_ends(mask: Value) -> bool:
    """Whether a factor says which of the words that were drawn stand before the end of their text."""
    inside = list(origins(mask, stop=("run",)))
    drawn = any(one.op in _DRAWN for one in inside)
    return drawn and any(one.op in _COMPARED and len(one.args) == 2 and any(number(each) is not None for each in one.args) for one in inside) and not any(one.op in ("log_softmax", "gather") for one in inside)


def _is_last_column(index: Value) -> bool:
    """`[:, -1]`."""
    return isinstance(index, Many) and len(index.parts) == 2 and index.parts[0].op == "slice" and all(is_none(one) for one in index.parts[0].args) and number(index.parts[1]) == -1


# Caches -----------------------------------------------------------------------------------


def cache_never_emptied(program: Program) -> Iterator[Remark]:
    """A layer keeps the keys of all calls, nothing empties them, and several texts are generated one after the other."""
    for frame in program.everywhere(ast.ClassDef):
        methods = [one for one in frame.body if isinstance(one, ast.FunctionDef)]
        for method in (one for one in methods if one.name != "__init__"):
            for call in own(method, ast.Call):
                parts = call.args[0].elts if program.called(call) in ("torch.cat", "torch.concat") and call.args and isinstance(call.args[0], (ast.List, ast.Tuple)) else []
                kept = parts[0] if len(parts) == 2 else None
                if not is_own(kept) or not _grows(method, kept.attr) or _is_stored_elsewhere(program, method, kept.attr):
                    continue
                asked = _generated_again(program)
                if asked is not None:
                    yield Remark(call, f"{short(call)} joins new words to all that {short(kept)} has ever been given, nothing empties it, and {short(asked)} (line {asked.lineno}) begins other texts")
                    return


def _grows(method: ast.FunctionDef, name: str) -> bool:
    """Whether a method stores in an attribute."""
    return any(one.attr == name and isinstance(one.ctx, ast.Store) for one in own(method, ast.Attribute))


def _is_stored_elsewhere(program: Program, method: ast.FunctionDef, name: str) -> bool:
    """Whether something outside of a method and of what makes the object sets an attribute, or may by its name."""
    inside = {id(one) for one in ast.walk(method)}
    for one in program.everywhere(ast.Attribute):
        if one.attr == name and isinstance(one.ctx, (ast.Store, ast.Del)) and id(one) not in inside:
            around = next((each for each in program.parents(one) if isinstance(each, ast.FunctionDef)), None)
            if around is None or around.name != "__init__":
                return True
    if any(isinstance(one.ctx, ast.Store) and one.attr == name and isinstance(program.parent.get(one), ast.Assign) and isinstance(getattr(program.parent.get(one), "value", None), ast.Constant) for one in own(method, ast.Attribute)):
        return True
    return any(last_word(one.func) in ("setattr", "delattr", "deepcopy") for one in program.calls())


def _generated_again(program: Program) -> ast.Call | None:
    """A call, in a loop or beside another one, of a function that draws words one after the other."""
    for function in program.everywhere(ast.FunctionDef):
        draws = any(last_word(one.func) in ("argmax", "multinomial") for loop in own(function, ast.For, ast.While) for one in ast.walk(loop) if isinstance(one, ast.Call))
        asked = [one for one in program.calls() if last_word(one.func) == function.name] if draws else []
        again = next((one for one in asked if program.loops(one)), asked[1] if len(asked) > 1 else None)
        if again is not None:
            return again
    return None


# Prompts -----------------------------------------------------------------------------------


def prompt_left_out_in_part(program: Program) -> Iterator[Remark]:
    """Words stand before a prompt, and as many places are left out as the prompt has words: its last ones are asked for too."""
    computation = computation_of(program)
    for value in computation.of("set_item"):
        if len(value.args) != 3:
            continue
        row, size = _left_out(value)
        prompt = bare(size.args[0]) if size is not None and size.op == "len" and size.args else None
        if row is None or prompt is None or size is None:
            continue
        before = 0
        for piece in pieces_of(row):
            if bare(piece) is prompt:
                break
            known = len(piece.parts) if isinstance(piece, Many) and not piece.grown else 1 if bare(piece).op == "@constant" else None
            if known is None:
                before = 0
                break
            before += known
        else:
            before = 0
        if before and not _is_asked_beyond(computation, value):
            yield Remark(value.node, f"{short(value.node)} counts {short(size.node)} places from the start of the row, and {before} {'words stand' if before > 1 else 'word stands'} before the prompt there ({short(row.node)}, line {row.line}): as many of the prompt are among the labels")
            return


def _left_out(value: Value) -> tuple[Value | None, Value | None]:
    """The row of which places are left out, from its start to a number, and the number."""
    base, index, put = value.args
    if number(put) == -100:
        cut = index.args if index.op == "slice" else ()
        if len(cut) == 3 and (is_none(cut[0]) or number(cut[0]) == 0):
            return bare(base), bare(cut[1])
        return (bare(base), bare(index.args[0])) if index.op == "index" and len(index.args) == 1 else (None, None)
    filled = bare(base)
    taken = bare(put)
    if filled.op == "full" and number(filled.argument("fill_value", 1)) == -100 and index.op == "slice" and taken.op == "part" and taken.args[1].op == "slice" and taken.args[1].args[0] is index.args[0]:
        return bare(taken.args[0]), bare(index.args[0])
    return None, None


def pieces_of(row: Value) -> Iterator[Value]:
    """What a row is joined of, in its order."""
    if row.op == "add" and len(row.args) == 2:
        yield from pieces_of(row.args[0])
        yield from pieces_of(row.args[1])
    elif row.op == "cat" and row.args and isinstance(row.args[0], Many):
        yield from row.args[0].parts
    else:
        yield row


def _is_asked_beyond(computation: Computation, value: Value) -> bool:
    """Whether more places of the labels are left out after that."""
    return any(user.op in ("set_item", "masked_fill") and number(user.args[-1]) == -100 for user in computation.users(value) if user.args and user.args[0] is value)
