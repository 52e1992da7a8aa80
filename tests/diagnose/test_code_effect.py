"""Rules about code without effect, and about gradients that can be infinite: what they remark on, and look-alikes."""

from __future__ import annotations

import pytest

from probe.diagnose.code.program import Program
from probe.diagnose.code.reading import remarks_of

START = """
import copy
import torch
import torch.nn.functional as F
from torch import nn
import numpy as np
import pandas as pd
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
x = torch.ones(3)
y = torch.ones(3)
"""
WRONG = {
    "infinite-gradient": (
        """net = nn.Linear(3, 3)
for x, y in loader:
    share = F.relu(net(x))
    plogp = torch.where(share != 0, share.log(), torch.zeros_like(share))
    plogp.sum().backward()""",
        """class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
    def forward(self, x):
        h = self.inner(x).abs()
        return torch.where(h > 1e-6, h ** 0.5, h)
net = Root()
for x, y in loader:
    F.mse_loss(net(x), y).backward()""",
        """def distance(a, b):
    return torch.sqrt(((a - b) ** 2).sum(dim=-1))
def triplet(ea, ep, en):
    return torch.relu(distance(ea, ep) - distance(ea, en) + 0.5).mean()
for a, p, n in loader:
    loss = triplet(model(a), model(p), model(n))
    loss.backward()""",
        """def angular(pred, target):
    cosine = (pred * target).sum(dim=1).clamp(-1.0, 1.0)
    return torch.acos(cosine).mean()
for x, d in loader:
    angular(model(x), d).backward()""",
        """class Lengths(nn.Module):
    def forward(self, x):
        return (x[:, 0] ** 2 + x[:, 1] ** 2) ** 0.5
net = Lengths()
for x, y in loader:
    loss = F.mse_loss(net(x), y)
    loss.backward()""",
        """def between(made, true):
    turn = made.transpose(-1, -2) @ true
    trace = turn.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.acos(((trace - 1) / 2).clamp(-1.0, 1.0))
net = nn.Linear(6, 9)
for x, r in loader:
    angle = between(net(x).view(-1, 3, 3), r)
    angle.mean().backward()""",
    ),
    "result-thrown-away": (
        "torch.clamp(x, 0, 1)", "x.sort()", "with torch.no_grad():\n    x.clamp(0, 1)", "torch.compile(model)",
        "frame = pd.read_csv('a')\nframe.dropna()", "scaler = torch.amp.GradScaler()\nscaler.scale(x.sum())",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.LayerNorm(3)\n    def forward(self, x):\n        self.norm(x)\n        return x",
        "class Trainer:\n    def __init__(self):\n        self.scale = torch.ones(1)\n"
        "    def to(self, device):\n        self.scale.to(device)",
        "def mask(module, inputs, output):\n    output = output.clamp(min=0)\n"
        "net = nn.Linear(2, 2)\nnet.register_forward_hook(mask)",
        "def make(scale):\n    def hook(grad):\n        grad = grad * scale\n    return hook\n"
        "w = torch.ones(2, requires_grad=True)\nw.register_hook(make(0.1))",
        "net = nn.Linear(2, 2)\nnet(torch.ones(1, 2)).sum().backward()\nfor p in net.parameters():\n    p.grad.div(4)",
    ),
    "method-not-called": (
        "for batch in batches:\n    optimizer.zero_grad", "criterion(x, y).backward", "torch.manual_seed",
        "def setup():\n    print(1)\nsetup",
        "class Net(nn.Module):\n    def __init__(self):\n        self.start\n    def start(self):\n        pass",
    ),
    "manager-not-entered": ("torch.no_grad()\nmodel(x)", "torch.inference_mode()", "torch.autocast('cuda')"),
    "iterator-not-run": (
        "map(model.apply, [x])", "(p.zero_() for p in model.parameters())",
        "def train():\n    for batch in x:\n        yield batch\ntrain()",
        "async def train():\n    print(1)\ntrain()",
    ),
    "attribute-of-nothing": (
        "optimizer.lr = 0.01", "model.requires_grad = False", "model.training = False",
        "for layer in model.children():\n    layer.requires_grad = False",
        "for p in model.parameters():\n    p.requires_grad_ = False", "torch.set_grad_enabled = False",
        "loader = torch.utils.data.DataLoader(x)\nloader.shuffle = True",
        "class Ramp:\n    def __init__(self, given):\n        self.given = given\n    def begin(self, epoch):\n"
        "        self.given.momentum = min(0.9, epoch / 10)\nramp = Ramp(optimizer)\nramp.begin(1)",
    ),
    "compared-not-assigned": ("x.requires_grad == True", "model.weight.grad == None", "x == y"),
    "never-equal": (
        """from enum import Enum
class Split(Enum):
    TRAIN = "train"
    DEV = "dev"
def loader(split):
    return DataLoader(data, shuffle=(split == "train"))
train, dev = loader(Split.TRAIN), loader(Split.DEV)""",
        """import enum
class Mode(enum.Enum):
    FAST = 1
if Mode.FAST != "fast":
    step()""",
    ),
    "sign-after-equals": ("total = 0\ntotal =+ x", "total =- 1", "class A:\n    def f(self):\n        self.n =+ 1"),
    "overwritten-unread": (
        "loss = criterion(x, y)\nloss = F.l1_loss(x, y)\nloss.backward()",
        "def step():\n    loss = F.mse_loss(x, y) * 2\n    loss = x.abs().mean()\n    return loss",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Linear(3, 3)\n        self.b = nn.Linear(3, 3)\n"
        "    def forward(self, x):\n        h = self.a(x)\n        h = self.b(x)\n        return h",
    ),
}
RIGHT = {
    "infinite-gradient": (
        """net = nn.Linear(3, 3)
for x, y in loader:
    h = F.relu(net(x))
    safe = torch.where(h > 0, h, torch.ones_like(h))
    torch.where(h > 0, safe.sqrt(), torch.zeros_like(h)).sum().backward()""",
        """net = nn.Linear(3, 3)
for x, y in loader:
    h = F.softplus(net(x))
    torch.where(h > 0, h.log(), torch.zeros_like(h)).sum().backward()""",
        """def distance(a, b):
    return torch.sqrt(((a - b) ** 2).sum(dim=-1) + 1e-8)
for a, p in loader:
    loss = distance(model(a), model(p)).mean()
    loss.backward()""",
        """def angular(pred, target):
    return torch.acos((pred * target).sum(dim=1).clamp(-1 + 1e-6, 1 - 1e-6)).mean()
for x, d in loader:
    angular(model(x), d).backward()""",
        """radius = torch.sqrt(xx ** 2 + yy ** 2)
for x, y in loader:
    F.mse_loss(model(x), y).backward()
    error = torch.sqrt(((model(x) - y) ** 2).mean())""",
        """net = nn.Linear(6, 3)
for x, y in loader:
    cosine = F.cosine_similarity(net(x), y).clamp(-1.0, 1.0)
    (1 - cosine).mean().backward()
    print(torch.acos(cosine.detach()).mean())""",
    ),
    "result-thrown-away": (
        "net = nn.Linear(2, 2)\nnet(torch.ones(1, 2)).sum().backward()\nfor p in net.parameters():\n    p.grad.div_(4)",
        "x.clamp_(0, 1)", "torch.clamp(x, 0, 1, out=x)", "try:\n    x.cuda()\nexcept RuntimeError:\n    pass",
        "for _ in range(10):\n    torch.relu(x)", "model.to('cpu')", "items = [1]\nitems.sort()",
        "def mask(module, inputs, output):\n    output = output.clamp(min=0)\n    return output\n"
        "net = nn.Linear(2, 2)\nnet.register_forward_hook(mask)",
        "kept = {}\ndef keep(module, inputs, output):\n    output = output.detach()\n    kept['a'] = output\n"
        "net = nn.Linear(2, 2)\nnet.register_forward_hook(keep)",
        "def f(x):\n    x.clip(0, 1)", "torch.relu(torch.ones(1))",
    ),
    "method-not-called": ("optimizer.zero_grad()", "step = optimizer.step", "from a import b\nb",
                          "class A:\n    def __init__(self):\n        self.ready\n    @property\n"
                          "    def ready(self):\n        return 1"),
    "manager-not-entered": ("with torch.no_grad():\n    model(x)", "torch.set_grad_enabled(False)",
                            "@torch.no_grad()\ndef f():\n    pass"),
    "iterator-not-run": ("list(map(print, [x]))", "def train():\n    print(1)\ntrain()",
                         "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield\nf()"),
    "attribute-of-nothing": (
        "for p in model.parameters():\n    p.requires_grad = False", "x.requires_grad = True",
        "optimizer.lr = 0.1\nprint(optimizer.lr)", "for m in model.modules():\n    m.training = False",
        "def f(model):\n    model.requires_grad = False",
        "class Ramp:\n    def __init__(self, given):\n        self.given = given\n    def begin(self, epoch):\n"
        "        self.momentum = min(0.9, epoch / 10)\n        for group in self.given.param_groups:\n"
        "            group['momentum'] = self.momentum\nramp = Ramp(optimizer)\nramp.begin(1)",
    ),
    "compared-not-assigned": ("assert (x == y).all()", "with timed():\n    x == y"),
    "never-equal": (
        """from enum import Enum
class Split(str, Enum):
    TRAIN = "train"
def loader(split):
    return DataLoader(data, shuffle=(split == "train"))
train = loader(Split.TRAIN)""",
        """from enum import Enum
class Split(Enum):
    TRAIN = "train"
def loader(split):
    return DataLoader(data, shuffle=(split.value == "train"), sampler=split == Split.TRAIN)
train = loader(Split.TRAIN)""",
        """from enum import Enum
class Split(Enum):
    TRAIN = "train"
def loader(split):
    return DataLoader(data, shuffle=(split == "train"))
train, dev = loader("train"), loader(Split.TRAIN)""",
    ),
    "sign-after-equals": ("total = +1", "total = -x", "total=-1"),
    "overwritten-unread": (
        "loss = criterion(x, y)\nprint(loss)\nloss = F.l1_loss(x, y)", "h = torch.zeros(3)\nh = torch.ones(3)",
        "loss = criterion(x, y)\nloss = loss + F.l1_loss(x, y)",
    ),
}


def remarked(text: str) -> set[str]:
    rows = remarks_of(Program({"train.py": START + text}))
    return {row["rule"] for row in rows if row["area"] in ("effect", "numerics")}


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in WRONG.items() for text in texts])
def test_a_rule_remarks_on_its_mistake(rule: str, text: str) -> None:
    assert remarked(text) == {rule}


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in RIGHT.items() for text in texts])
def test_code_that_looks_alike_is_left_alone(rule: str, text: str) -> None:
    assert rule not in remarked(text)
