"""The guard classes a snippet as whoever writes it expects, runs nothing of it, and errs on the safe side."""

from __future__ import annotations

import ast
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as some

from control.judged import EXPECTED, FIRST_GUARD, READING, READS_BUT_WAITS
from control.looked_upon import TOUCHED, job, named
from control.pythons import interpreter
from harness import PATIENCE_S, PROGRAMS, ROOT
from probe.base.isolation import capture
from probe.job.introspection.snippet_names import names_used
from probe.job.snippets.guard import lookup
from probe.job.snippets.guard.classify import Judgement, classify
from probe.job.snippets.guard.kinds import rulebook
from probe.job.snippets.guard.rules import CLASSES, GROUPS, REFUSED_GROUPS, SEVERITY


class Objects(Mapping[str, Any]):
    """The objects of a job, made when the first is used: compiling takes seconds of imports."""

    @functools.cached_property
    def _made(self) -> dict[str, Any]:
        return job()

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


OBJECTS = Objects()
ITS_OWN_INPUT = ("input", "input.shape")
"""Snippets in which `input` is a variable of the job."""
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def nothing_was_run() -> Iterator[None]:
    TOUCHED.clear()
    yield
    assert TOUCHED == []


def judge(code: str, **more: Any) -> Judgement:
    tree, names = named({**OBJECTS, **more}, code)
    if code not in ITS_OWN_INPUT:
        names.pop("input", None)
    return classify(tree, names)


# A test for each snippet would cost more than judging it.


@pytest.mark.parametrize("kind", EXPECTED)
def test_snippets_are_classed_as_whoever_writes_them_expects(kind: str) -> None:
    judged = {code: judged_without_effect(code) for code in EXPECTED[kind]}
    assert {code: one.findings for code, one in judged.items() if one.kind != kind} == {}
    for code, judgement in judged.items():
        findings = judgement.findings
        assert (findings == ()) == (kind == "reading"), code
        kinds = [one.kind for one in findings]
        assert kinds == sorted(kinds, key=SEVERITY.__getitem__, reverse=True), code
        assert all(1 <= one.line <= code.count("\n") + 1 and one.what and one.why for one in findings), code


def judged_without_effect(code: str) -> Judgement:
    """The judgement; nothing of the job has run or changed."""
    before = OBJECTS["model"][0].weight.clone(), random.getstate(), OBJECTS["torch"].get_rng_state()
    judgement = judge(code)
    assert TOUCHED == [], code
    after = OBJECTS["model"][0].weight, random.getstate(), OBJECTS["torch"].get_rng_state()
    assert before[0].equal(after[0]) and before[1] == after[1] and before[2].equal(after[2]), code
    return judgement


def test_there_are_enough_of_them() -> None:
    assert sum(map(len, EXPECTED.values())) >= 300 and set(EXPECTED) == set(CLASSES)


def test_few_that_only_read_wait_now_and_none_is_judged_milder_than_by_the_first_guard() -> None:
    assert len(READING) + len(READS_BUT_WAITS) == FIRST_GUARD["reading"]
    assert 6 * len(READS_BUT_WAITS) <= FIRST_GUARD["reading"]
    assert all(len(EXPECTED[kind]) >= count for kind, count in FIRST_GUARD.items() if kind != "reading")


def test_a_finding_says_where_and_why() -> None:
    (finding,) = judge("x.shape\noptimizer.step()").findings
    assert finding == ("changing", 2, "optimizer.step()", "steps an optimizer or a scheduler")
    (finding,) = judge("dist.all_reduce(x)").findings
    assert (finding.kind, finding.why) == ("collective", "waits for the other ranks")


def test_a_variable_of_the_job_is_not_the_builtin_of_that_name() -> None:
    assert classify(ast.parse("input()"), {}).kind == "refused"
    assert classify(ast.parse("input.shape"), {"input": OBJECTS["x"]}).kind == "reading"
    assert classify(ast.parse("print(1)"), {"print": OBJECTS["train_step"]}).kind == "changing"


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("reading", ("globals()", "sorted(globals())", "dir()", "len(vars())", "print(locals())",
                     "[n for n, v in globals().items() if isinstance(v, torch.nn.Module)]",
                     "globals()['model'].training")),
        ("changing", ("globals()['x'].zero_()", "globals().update(x=1)", "y = x\nglobals()['y'].zero_()",
                      "[locals() for y in [x]]", "'%(odd)r' % globals()", "'{odd}'.format(**globals())")),
    ],
)
def test_names_can_be_listed_and_what_is_reached_through_them_is_judged(
    kind: str, codes: tuple[str, ...]
) -> None:
    own_methods = {"input", "odd", "strange", "described"} if kind == "reading" else {"input"}
    everything = {name: thing for name, thing in OBJECTS.items() if name not in own_methods}
    assert {code: classify(ast.parse(code), everything).kind for code in codes} == dict.fromkeys(codes, kind)


# Something that changes the job, planted anywhere ----------------------------------------------

CHANGES = (
    "optimizer.step()", "optimizer.zero_grad()", "x.add_(1)", "setattr(trainer, 'lr', 1)",
    "trainer.validate()",
    "history.append(1)", "history.pop()", "next(iterator)", "torch.manual_seed(0)", "model(x)",
    "model.eval()",
    "model.load_state_dict({})", "loss.backward()", "torch.rand(2)", "trainer.computed", "odd + 1", "odd.a",
    "list(iterator)", "next(iter(train_loader))", "delattr(trainer, 'lr')", "exec(text)", "open('f', 'w')",
    "model[0].weight.zero_()", "next(model.parameters()).zero_()", "[*model.parameters()][0].fill_(1)",
    "getattr(optimizer, 'zero_' + 'grad')()", "(lambda o: o.step())(optimizer)", "train_step()",
    "list(map(torch.Tensor.zero_, model.parameters()))", "vars(trainer).update(lr=1)", "torch.save(x, 'f')",
    "optimizer.param_groups[0].update(lr=1)", "optimizer.param_groups[0].setdefault('lr', 1)",
    "[g.update(lr=1) for g in optimizer.param_groups]", "scheduler.step()", "torch.set_num_threads(1)",
)
ONE = "ONE"
"""Where something is planted in the shapes below."""
WITHIN = (
    "[ONE]", "(ONE, 1)", "{'k': ONE}", "{1: 2, **{'k': ONE}}", "f'{ONE}'", "f'{1:{ONE}}'", "(lambda: ONE)()",
    "(lambda a=ONE: a)()", "[ONE for _ in [1]]", "[1 for _ in [ONE]]", "[1 for _ in [1] if ONE]",
    "{ONE: 1 for _ in [1]}", "sum(1 for _ in [1] if ONE)", "(walrus := ONE)", "(1 if ONE else 2)",
    "(ONE if 1 else 2)", "(None or ONE)", "(1 and ONE)", "not ONE", "str(ONE)",
    "max(1, 2, key=lambda k: ONE)",
    "print(*[ONE])", "dict(**{'k': ONE})", "[1, 2][0:ONE]", "{'a': [ONE]}['a']",
    "sorted([1], key=lambda k: ONE)",
    "(yes for yes in [ONE])", "list(map(lambda k: ONE, [1]))", "(1 < ONE < 3)", "type(ONE)", "len([ONE])",
)
AROUND = (
    "{}", "if 1:\n    {}", "if 0:\n    pass\nelse:\n    {}", "for _ in [1]:\n    {}", "while 0:\n    {}",
    "for _ in []:\n    pass\nelse:\n    {}", "try:\n    {}\nexcept Exception:\n    pass",
    "try:\n    1 / 0\nexcept ZeroDivisionError:\n    {}", "try:\n    pass\nfinally:\n    {}",
    "try:\n    pass\nexcept ValueError:\n    pass\nelse:\n    {}", "def f():\n    {}\nf()",
    "def f():\n    {}",
    "async def f():\n    {}", "class A:\n    {}", "class A:\n    def m(self):\n        {}\nA().m()",
    "with torch.no_grad():\n    {}", "match 1:\n    case 1:\n        {}",
    "def g():\n    yield 1\n    {}\nlist(g())",
    "def outer():\n    def inner():\n        {}\n    return inner\nouter()()",
    "if 1:\n    pass\nelif 1:\n    {}",
)
STATEMENTS = (
    "ONE", "a = ONE", "a, b = ONE, 1", "a: int = ONE", "return_ = [ONE]", "assert ONE", "assert 1, ONE",
    "del [ONE][0]",
    "import math; ONE", "a = b = ONE", "for _ in [ONE]: pass", "while ONE: break", "if ONE: pass",
    "with torch.no_grad() as a: ONE", "a = [1]; a[0] = ONE", "a = {}; a[ONE] = 1", "a = 1; a += ONE",
    "raise ValueError(ONE)", "def d(k=ONE): pass", "def d(*, k=ONE): pass", "def d(k: ONE): pass",
    "class B:\n    item = ONE", "@(lambda f: ONE)\ndef d(): pass", "match ONE:\n    case _: pass",
    "match 1:\n    case _ if ONE: pass", "(a.b for a in [ONE])", "lambda: ONE",
)
HARMLESS = [code for code in READING if "del " not in code and "input" not in code and code]


class Planter(ast.NodeTransformer):
    """Puts an expression in the place of ONE, and statements in that of `...`."""

    def __init__(self, expression: ast.expr | None, statements: list[ast.stmt]) -> None:
        self._expression = expression
        self._statements = statements

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._expression if node.id == ONE and self._expression is not None else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Constant) and node.value.value is ...:
            return self._statements
        return self.generic_visit(node)


def filled(shape: str, expression: ast.expr | None = None,
statements: list[ast.stmt] | None = None) -> ast.Module:
    tree = Planter(expression, statements or []).visit(ast.parse(shape.replace("{}",
    "...") if statements else shape))
    assert isinstance(tree, ast.Module)
    return ast.fix_missing_locations(tree)


def planted(change: str, within: list[str], statement: str, around: list[str]) -> ast.Module:
    tree = ast.parse(change)
    for shape in within:
        tree = filled(shape, value_of(tree))
    tree = filled(statement, value_of(tree))
    for shape in around:
        tree = filled(shape, None, tree.body)
    return tree


def value_of(tree: ast.Module) -> ast.expr:
    (only,) = tree.body
    assert isinstance(only, ast.Expr)
    return only.value


def kind_of(tree: ast.Module) -> str:
    used = names_used(tree) - {"input"}
    return classify(tree, {name: thing for name, thing in OBJECTS.items() if name in used}).kind


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    some.sampled_from(CHANGES), some.lists(some.sampled_from(WITHIN), max_size=3),
    some.sampled_from(STATEMENTS),
    some.lists(some.sampled_from(AROUND), max_size=3), some.sampled_from(HARMLESS),
    some.sampled_from(HARMLESS),
)
def test_something_that_changes_is_found_wherever_it_is(
    change: str, within: list[str], statement: str, around: list[str], before: str, after: str
) -> None:
    tree = planted(change, within, statement, around)
    tree.body = [*ast.parse(before).body, *tree.body, *ast.parse(after).body]
    assert kind_of(tree) not in ("reading", "blocking"), ast.unparse(tree)
    assert TOUCHED == []


@pytest.mark.parametrize("change", CHANGES)
def test_something_that_changes_is_found_in_each_place(change: str) -> None:
    for shape in (*WITHIN, *STATEMENTS):
        assert kind_of(planted(change, [], shape, [])) != "reading", shape


def test_the_shapes_are_reading_without_it() -> None:
    wrong = [shape for shape in (*WITHIN, *STATEMENTS) if judge(shape.replace(ONE, "1")).kind != "reading"]
    assert wrong == []
    for shape in AROUND:
        assert kind_of(filled(shape, None, ast.parse("print(1)").body)) == "reading", shape


# Whatever it is given --------------------------------------------------------------------------

PARTS = (*CHANGES, *HARMLESS, *(code for kind in EXPECTED for code in EXPECTED[kind]))
SUBJECTS = ("odd", "strange", "described", "described.slot", "described.described", "trainer.computed",
"odd.a")
USES = (
    "{0}", "{0}.a", "{0}()", "{0}[0]", "{0} + {0}", "{0} * 3", "3 * {0}",
    "{0} % 2", "{0} ** 2", "2 << {0}", "{0} == {0}", "{0} in [{0}]", "1 in {0}", "[*{0}]",
    "{{**{0}}}",
    "for _ in {0}: pass", "print({0})", "f'{{{0}}}'", "len({0})", "bool({0})", "if {0}: pass", "not {0}",
    "{{{0}: 1}}", "{{{0}}}", "x[{0}]", "with {0}: pass", "del {0}.a", "{0}.a = 1", "{0}[0] = 1", "raise {0}",
    "match {0}:\n    case [a, b]: pass\n    case {{'a': b}}: pass\n    case int(): pass",
    "isinstance({0}, {0})",
    "getattr({0}, 'a')", "hasattr({0}, 'a')", "vars({0})", "dir({0})", "type({0})", "iter({0})", "next({0})",
    "sorted([{0}])", "sum([{0}])", "max({0}, {0})", "str({0})", "'%s' % {0}", "torch.isnan({0})",
    "x.add({0})",
    "class A({0}): pass", "@{0}\ndef f(): pass", "import copy; copy.copy({0})", "assert {0}", "lambda: {0}",
    "try: pass\nexcept {0}: pass", "{0} if {0} else {0}", "{0} < {0} < {0}", "-{0}", "{0} and {0}",
    "[1, 2][{0}]",
)


SWAPPED = ("value", "func", "test", "left", "right", "iter", "elt", "operand", "orelse")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_nothing_of_the_jobs_is_run_to_judge_a_snippet(subject: str) -> None:
    names = dict(OBJECTS)
    for use in USES:
        code = use.format(subject)
        tree = ast.parse(code)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert classify(tree, {name: names[name] for name in used if name in names}).kind in CLASSES
        assert TOUCHED == [], code


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(some.randoms(use_true_random=False), some.lists(some.sampled_from(PARTS), min_size=2, max_size=5))
def test_no_tree_makes_it_raise(chance: random.Random, codes: list[str]) -> None:
    tree = ast.parse("\n".join(codes))
    expressions = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    for node in list(ast.walk(tree)):
        for field, value in ast.iter_fields(node):
            if field in SWAPPED and isinstance(value, ast.expr) and chance.random() < 0.05:
                swapped = chance.choice(expressions)
                if node not in ast.walk(swapped) and not isinstance(getattr(swapped, "ctx", None), ast.Store):
                    setattr(node, field, swapped)
    _, error = capture(lambda: compile(ast.fix_missing_locations(tree), "", "exec"))
    assume(error is None)
    judgement = classify(tree, dict(OBJECTS))
    assert judgement.kind in CLASSES
    assert not any("could not be judged" in one.why for one in judgement.findings)


def test_what_is_too_deep_to_judge_is_changing() -> None:
    tree = ast.parse("print(" + "(" * 50 + "1" + ")" * 50 + ")")
    assert classify(tree, {}).kind == "reading"
    deep: ast.expr = ast.Constant(1)
    for _ in range(5 * sys.getrecursionlimit()):
        deep = ast.UnaryOp(ast.USub(), deep)
    judgement = classify(ast.Module([ast.Expr(deep)], []), {})
    assert (judgement.kind, judgement.findings[0].why) == ("changing", "could not be judged (RecursionError)")


def test_a_snippet_is_judged_with_many_modules_and_much_state_too() -> None:
    torch = OBJECTS["torch"]
    model = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(2000)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    optimizer.state.update({p: {"momentum_buffer": p.detach()} for p in model.parameters()})
    many = {"model": model, "optimizer": optimizer}
    for code in (
        "[n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m.weight.norm() > 9]",
        "sum(s['momentum_buffer'].norm().item() for s in optimizer.state.values())",
        "[p.shape for g in optimizer.param_groups for p in g['params']]",
        "model",
    ):
        assert judge(code, **many).kind == "reading", judge(code, **many).findings
    assert judge("[m.weight.zero_() for m in model.modules()]", **many).kind == "changing"
    blocks = list(model)
    assert judge("[b.half() for b in blocks]", blocks=blocks).kind == "changing"
    assert judge("[b.weight.norm() for b in blocks]", blocks=blocks).kind == "reading"
    assert judge("[p.zero_() for g in optimizer.param_groups for p in g['params']]",
    **many).kind == "changing"


def test_what_a_class_of_the_job_runs_when_it_is_subscripted_is_not_known() -> None:
    own = type("Own", (), {"__class_getitem__": classmethod(lambda cls, key: TOUCHED.append(key))})
    assert judge("Own['a']", Own=own).kind == "changing"
    assert judge("list[int]").kind == "reading"


def test_a_method_of_a_process_group_waits_for_the_other_ranks() -> None:
    group = OBJECTS["dist"].ProcessGroup(0, 1)
    assert judge("group.allreduce([x])", group=group).kind == "collective"
    assert judge("group.size()", group=group).kind == "changing"


# The rules ---------------------------------------------------------------------------------------


def test_every_name_in_the_rules_is_one_that_exists_in_some_version() -> None:
    """A mistyped name would never be found. Those that other versions have, or make late, are listed."""
    elsewhere = {
        "concurrent.futures.ProcessPoolExecutor", "itertools.batched", "itertools.pairwise",
        "sys._settraceallthreads", "sys._setprofileallthreads", "threading.settrace_all_threads",
        "threading.setprofile_all_threads", "faulthandler._fatal_error_c_thread", "faulthandler._fatal_error",
        "torch.nn.utils.get_total_norm",
        "torch.accelerator.memory_allocated", "torch.accelerator.max_memory_allocated",
        "torch.accelerator.memory_reserved", "torch.accelerator.max_memory_reserved",
        "torch.accelerator.memory_stats",
        "torch.distributed.is_backend_available", "torch.distributed.get_node_local_rank",
    }
    missing = []
    for group in GROUPS:
        owner = lookup.by_name(group.of)
        if owner is None or group.names == ("*",):
            continue
        for name in group.names:
            if lookup.is_class(owner):
                there = lookup.find(owner, name) is not None
            else:
                there = name in lookup.module_dict(owner)
            if not there and f"{group.of}.{name}" not in elsewhere:
                missing.append(f"{group.of}.{name}")
    assert missing == []


def test_what_is_refused_is_refused_under_its_own_name() -> None:
    import importlib

    for group in REFUSED_GROUPS:
        if group.of in ("torch", "builtins") or importlib.util.find_spec(group.of) is None:
            continue
        module = importlib.import_module(group.of)
        for name in group.names:
            if hasattr(module, name):
                assert judge(f"import {group.of}\n{group.of}.{name}()").kind == "refused", name
    assert rulebook().of(exit) is not None


def alone(code: str) -> bool:
    """Whether a snippet needs neither a job nor a library, nor syntax that is newer than Python 3.10."""
    tree = ast.parse(code)
    used = names_used(tree)
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return not used & set(OBJECTS) and not any(name.startswith(("torch", "numpy")) for name in imported)


@pytest.mark.parametrize("minor", (10, 12, 13))
def test_every_supported_python_judges_alike(minor: int) -> None:
    cases = [(kind, code) for kind in EXPECTED for code in EXPECTED[kind] if alone(code)]
    assert len(cases) > 80
    done = subprocess.run(
        [interpreter(minor), str(PROGRAMS / "judges_snippets.py")], input=json.dumps([code for _,
        code in cases]),
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    wrong = [(code, kind, *judged) for (kind, code), judged in zip(cases, found,
    strict=True) if judged[0] != kind]
    assert wrong == []
