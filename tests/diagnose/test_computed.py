"""What a program computes: each value has one name for its operation, however it is written."""

from __future__ import annotations

import pytest

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Value, comes_from, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.traits.basic import losses, terms, variance_of
from probe.diagnose.code.traits.extents import last, rank

HEAD = """
import argparse
from collections import deque, namedtuple
from dataclasses import dataclass
from functools import partial
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
"""


def computed(text: str, **others: str) -> Computation:
    return Computation(Program({"train.py": HEAD + text, **{f"{name}.py": other for name, other in others.items()}}))


def shown(text: str, **others: str) -> Value:
    """What `show` is given."""
    found = list(computed(text, **others).of("show"))
    assert len(found) == 1
    return found[0].args[1]


@pytest.mark.parametrize("written", [
    "torch.softmax(x, 1)", "F.softmax(x, dim=1)", "x.softmax(dim=1)", "nn.Softmax(dim=1)(x)", "nn.Softmax(1)(x)",
    "(lambda z: F.softmax(z, 1))(x)", "partial(F.softmax, dim=1)(x)", "nn.Sequential(nn.Softmax(dim=1))(x)",
    "torch.utils.checkpoint.checkpoint(nn.Softmax(1), x, use_reentrant=False)", "torch.jit.script(nn.Softmax(1))(x)",
    "torch.utils.checkpoint.checkpoint_sequential(nn.Sequential(nn.Softmax(1)), 1, x)",
])
def test_an_operation_has_one_name_however_it_is_written(written: str) -> None:
    value = shown(f"tool.show({written})")
    assert value.op == "softmax" and repr(value.args[0]) == "@input()<x>"
    assert number(value.argument("dim", 1)) == 1


@pytest.mark.parametrize("program", [
    "def f(a, b=2):\n    return a, b\n_, two = f(1)\ntool.show(two)",
    "@dataclass\nclass Config:\n    one: int = 1\n    two: int = 2\ntool.show(Config().two)",
    "class Config:\n    two = 2\n    @property\n    def it(self):\n        return self.two\ntool.show(Config().it)",
    "parser = argparse.ArgumentParser()\nparser.add_argument('--the-two', type=int, default=2)\ntool.show(parser.parse_args().the_two)",
    "pair = {'a': 1, 'b': 2}\n*_, two = pair.values()\ntool.show(pair['b'])",
    "Pair = namedtuple('Pair', 'one two')\ntool.show(Pair(two=2, one=1).two)",
    "tool.show([n for n in (1, 2)][-1])",
    "class A:\n    def __init__(self):\n        self.n = self.of(1)\n    def of(self, n):\n        return n + 1\nclass B(A):\n    pass\ntool.show(B().n)",
    "import other\ntool.show(other.TWO)",
    "from other import TWO\ntool.show(TWO)",
    "x = None\nif x is None:\n    x = 2\ntool.show(x)",
    "rows = []\nrows.append((1, 2))\nones, twos = zip(*rows)\ntool.show(twos[0])",
    "def g():\n    yield 1, 2\nfor one, two in g():\n    tool.show(two)",
    "def f():\n    n = 1\n    def g():\n        nonlocal n\n        n = 2\n    g()\n    return n\ntool.show(f())",
])
def test_a_value_is_followed_through_functions_objects_and_containers(program: str) -> None:
    assert number(shown(program, other="TWO = 2\n")) == 2


def test_a_batch_is_what_the_data_set_and_the_collate_function_make_of_a_sample() -> None:
    value = shown("""
class Texts(Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __getitem__(self, i):
        return self.rows[i], len(self.rows[i])
def collate(batch):
    rows, sizes = zip(*batch)
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor(sizes)
for words, sizes in DataLoader(Texts(all_rows), 8, collate_fn=collate):
    tool.show(words)
""")
    assert value.op == "torch.nn.utils.rnn.pad_sequence" and value.where.loops


def test_both_branches_of_an_unknown_condition_count_and_neither_of_them_is_certain() -> None:
    found = computed("""
x = torch.zeros(3)
if setting:
    x = x.exp()
else:
    x = x.log()
tool.show(x)
""")
    [value] = found.of("show")
    assert value.args[1].op == "either" and {one.op for one in value.args[1].args} == {"exp", "log"}
    assert all(one.where.maybe for one in found.of("exp", "log")) and not value.where.maybe


def test_where_a_value_is_computed_is_known() -> None:
    found = computed("""
def score(model, x):
    with torch.no_grad():
        return model(x).exp()
for epoch in range(3):
    score(model, x)
""")
    [value] = found.of("exp")
    assert value.where.no_grad and len(value.where.loops) == 1 and len(value.where.functions) == 1


def test_functions_that_nothing_calls_run_with_inputs() -> None:
    [value] = computed("class Net(nn.Module):\n    def forward(self, x, scale=None):\n        return x.exp() * scale\n").of("mul")
    assert [one.op for one in value.args] == ["exp", "@input"]


def test_the_terms_of_a_loss_have_their_weights() -> None:
    found = computed("""
def total(a, b):
    return 2 * a - b / 4
loss = total(F.mse_loss(x, y), z.mean())
loss.backward()
""")
    [(_, loss)] = losses(found)
    assert [(one.op, weight) for one, weight in terms(loss)] == [("mse_loss", 2.0), ("mean", -0.25)]


@pytest.mark.parametrize("written", [
    "x.var(0)", "np.var(x, axis=0)", "torch.var_mean(x, 0)[0]", "x.std(0) ** 2", "((x - x.mean(0)) ** 2).mean(0)",
    "(x - np.mean(x, 0)).square().mean(0)",
])
def test_a_variance_is_one_however_it_is_computed(written: str) -> None:
    value = shown(f"tool.show({written})")
    of = variance_of(value)
    assert of is not None and comes_from(value, of)


@pytest.mark.parametrize(("written", "axes", "length"), [
    ("nn.Linear(3, 1)(torch.zeros(8, 3))", 2, 1), ("nn.Linear(3, 1)(torch.zeros(8, 3)).squeeze(1)", 1, None),
    ("torch.zeros(8, 3)[0]", 1, 3), ("torch.zeros(8, 3).mean(1, keepdim=True)", 2, 1), ("torch.zeros(8, 3).max(1)[0]", 1, None),
    ("torch.arange(3)[None, :]", 2, None), ("torch.zeros(8, 3).view(-1)", 1, None), ("unknown.mean(0)", None, None),
    ("F.mse_loss(x, y)", 0, None), ("torch.zeros(8, 3) * torch.zeros(3)", 2, 3),
])
def test_the_axes_of_a_value_follow_from_how_it_is_computed(written: str, axes: int | None, length: int | None) -> None:
    value = shown(f"tool.show({written})")
    assert (rank(value), last(value)) == (axes, length)


@pytest.mark.parametrize("program", [
    "def f(n):\n    return f(n - 1)\nf(3)", "while True:\n    x = [x]\n", "x = x.x.x\n", "a, b, *c = f\n", "class A(A): pass\nA().b.c = A()[1]\n",
    "def f(*a, **k):\n    return f(*a, **k)\nf(*f, **f)", "from . import x\nfrom .a import b\nimport a.b.c as d\n", "x[1:2, ...] += y\ndel x\n",
    "lambda: (yield)\n", "match x:\n    case 1: y = 2\n", "try:\n    x\nexcept E as e:\n    raise\nfinally:\n    y\n",
    "x = [0] * 10 ** 9\n", "x = 10.0 ** 300 * 10.0 ** 300\ny = 2 ** 10 ** 6\nz = 'a' * 10 ** 9",
])
def test_no_program_is_too_odd_to_be_followed(program: str) -> None:
    assert computed(program).complete


def test_a_program_that_computes_too_much_is_followed_for_a_while() -> None:
    calls = "".join(f"def f{n + 1}():\n    f{n}()\n    f{n}()\n    f{n}()\n" for n in range(12))
    assert not computed(f"def f0():\n    x.exp()\n{calls}f12()\n").complete


def test_a_mask_that_an_object_keeps_is_what_was_set_in_it() -> None:
    value = shown("class A:\n    def __init__(self):\n        self.known = torch.zeros(9)\n        self.known[torch.randperm(9)[:4]] = True\ntool.show(A().known)")
    assert value.op == "set_item" and any(one.op == "randperm" for one in value.args[1].made_of())


def test_a_list_that_grows_is_the_same_one_turned_round() -> None:
    value = shown("kept = []\nfor x in xs:\n    kept.append(x.exp())\ntool.show(torch.stack(kept[::-1]))")
    assert [one.op for one in value.args[0].made_of()] == ["exp"]


def test_a_batch_is_not_none() -> None:
    value = shown("def f(x, y=None):\n    return x.exp() if y is None else x.log()\nfor x, y in DataLoader(TensorDataset(a, b), 8):\n    tool.show(f(x, y))")
    assert value.op == "log"
