"""A real small training with one thing wrong in how it learns, or with nothing wrong (`clean…`).

`--fault NAME` plants it, `--seed` changes weights, data and the step `--at` which it begins (where it begins
on the way), `--pace MS` makes each step longer. Prints `READY` after three steps, `FAULT NS STEP` when the
fault begins (of what is wrong from the start after READY, with the time of the first step), and a `RESULT`
line. The faults are subclasses of `Training`; `FAULTS` is their list. Validation losses are logged with
`probe.log` where probe is there.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from gpt import CHARACTERS, GPT, Characters, Size, standard_library_text
from ledger import options

GPT_SIZE = Size(layers=2, width=32, heads=2, block=32, batch=8)
EVALUATION_EVERY = 50


class Training:
    """A character GPT with AdamW, a warm-up and nothing wrong; its faults change one method each."""

    lr = 3e-3
    begins_on_the_way = False
    warm_up = 20
    batch = GPT_SIZE.batch

    def __init__(self, step: int) -> None:
        self.at = step
        self.kept: list[Any] = []
        self.model = self.made_model()
        self.loader = DataLoader(self.made_data(), batch_size=self.batch, shuffle=True, drop_last=True)
        self.optimizer = self.made_optimizer()
        self.scheduler = self.made_scheduler()
        self.step = 0

    @property
    def wrong(self) -> bool:
        """Whether the fault has begun."""
        return self.step >= self.at

    def made_model(self) -> nn.Module:
        return GPT(GPT_SIZE)

    def made_data(self) -> Dataset[Any]:
        return Characters(standard_library_text(), GPT_SIZE.block)

    def made_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.lr)

    def made_scheduler(self) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)

    def rate(self, step: int) -> float:
        return min(1.0, (step + 1) / self.warm_up)

    def batch_of(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.model(x).view(-1, CHARACTERS), y.reshape(-1))

    def clear(self) -> None:
        self.optimizer.zero_grad()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def gradients(self) -> None:
        """Between backward and the step."""

    def update(self) -> None:
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def after(self) -> None:
        """Between two steps."""

    def make(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """One step; its loss."""
        x, y = self.batch_of(x, y)
        self.clear()
        loss = self.loss(x, y)
        self.backward(loss)
        self.gradients()
        self.update()
        self.after()
        return float(loss.detach())

    def evaluate(self, data: Dataset[Any], batches: int = 4) -> float:
        """The mean loss of some batches, without gradients."""
        self.model.eval()
        with torch.no_grad():
            losses = []
            for number, (x, y) in enumerate(DataLoader(data, batch_size=self.batch)):
                if number == batches:
                    break
                losses.append(float(self.loss(x, y)))
        self.model.train()
        return sum(losses) / len(losses)


class Regression(Training):
    """A network of a few layers on noisy sines: where that shows the fault better."""

    batch = 32
    lr = 3e-3
    layers, width = 4, 48
    activation: Any = nn.ReLU

    def made_model(self) -> nn.Module:
        layers: list[nn.Module] = []
        inputs = 8
        for _ in range(self.layers):
            layers += [nn.Linear(inputs, self.width), self.activation()]
            inputs = self.width
        return nn.Sequential(*layers, nn.Linear(inputs, 1))

    def made_data(self) -> Dataset[Any]:
        x = torch.randn(4096, 8)
        return TensorDataset(x, x.sin().sum(1, keepdim=True) + 0.1 * torch.randn(4096, 1))

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(self.model(x), y)


def log(name: str, value: float) -> None:
    """Log a value where probe is there."""
    if "probe" in sys.modules:
        sys.modules["probe"].log(name, value)


# What is wrong with the numbers ------------------------------------------------------


class NanData(Regression):
    """One value of one batch is NaN."""

    begins_on_the_way = True

    def batch_of(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.step == self.at:
            x = x.clone()
            x[3, 2] = math.nan
        return x, y


class LogOfZero(Regression):
    """The loss takes the logarithm of a probability that is 0."""

    begins_on_the_way = True

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chance = torch.sigmoid(self.model(x) * (1e4 if self.wrong else 1.0))
        target = (y > 0).float()
        return -(target * chance.log() + (1 - target) * (1 - chance).log()).mean()


class HalfOverflow(Regression):
    """A hidden value leaves the range of float16."""

    begins_on_the_way = True

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.model(x) * (1e6 if self.wrong else 1.0)
        return functional.mse_loss(hidden.half().float(), y)


class NanRate(Regression):
    """A learning rate with which the weights leave all bounds."""

    begins_on_the_way = True

    def made_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.01)

    def rate(self, step: int) -> float:
        return 1e4 if step >= self.at else 1.0


class BadWeight(Training):
    """One weight becomes NaN, as by a fault of memory."""

    begins_on_the_way = True

    def after(self) -> None:
        if self.step == self.at - 1:
            with torch.no_grad():
                self.model.blocks[1].mlp[0].weight[3, 5] = math.nan


class Overflows(Training):
    """The GradScaler finds an infinite gradient on every third step."""

    begins_on_the_way = True

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()

    def gradients(self) -> None:
        if self.wrong and self.step % 3 == 0:
            self.model.head.weight.grad[0, 0] = math.inf

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()


class SmallEps(Training):
    """Layer normalization that divides by next to nothing."""

    def made_model(self) -> nn.Module:
        model = super().made_model()
        model.blocks[1].mlp_norm.eps = 1e-30
        return model


# What is wrong with the loss ---------------------------------------------------------


class SpikeRecovers(Training):
    """One batch of noise."""

    begins_on_the_way = True

    def batch_of(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x, torch.randint_like(y, CHARACTERS)) if self.step == self.at else (x, y)


class SpikeStays(Training):
    """From one step on the targets do not belong to the inputs."""

    begins_on_the_way = True
    lr = 1e-3

    def batch_of(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x, torch.randint_like(y, CHARACTERS)) if self.wrong else (x, y)


class Diverges(Training):
    """The gradient's sign is wrong from one step on."""

    begins_on_the_way = True

    def gradients(self) -> None:
        if self.wrong:
            for parameter in self.model.parameters():
                parameter.grad.mul_(-0.1)

    def made_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)


class Plateau(Training):
    """Targets in another order than inputs: only how often each character comes can be learned."""

    def batch_of(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, y.flatten()[torch.randperm(y.numel())].view_as(y)


class Oscillates(Regression):
    """Full batches, much momentum and a rate at the edge of what is stable."""

    batch = 256
    layers, width = 2, 32
    activation = nn.Tanh

    def made_data(self) -> Dataset[Any]:
        x = torch.randn(256, 8)
        return TensorDataset(x, x.sin().sum(1, keepdim=True) + 0.1 * torch.randn(256, 1))

    def made_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.998)


class SlowDecrease(Training):
    """A rate that is a thousand times too small."""

    lr = 3e-6


class Overfits(Training):
    """Few samples, learned by heart."""

    def made_data(self) -> Dataset[Any]:
        whole = super().made_data()
        self.validation = Subset(whole, range(20000, 20032))
        return Subset(whole, range(64))

    def after(self) -> None:
        if self.step % EVALUATION_EVERY == EVALUATION_EVERY - 1:
            log("val/loss", self.evaluate(self.validation))


class Gap(Overfits):
    """The data of the validation are others."""

    def made_data(self) -> Dataset[Any]:
        text = standard_library_text()
        self.validation = Characters(text.flip(0)[:4096] // 2, GPT_SIZE.block)
        return Characters(text, GPT_SIZE.block)


# What is wrong with the gradients ----------------------------------------------------


class Explodes(Training):
    """All gradients fifty times larger from one step on; the job clips them."""

    begins_on_the_way = True

    def gradients(self) -> None:
        if self.wrong:
            for parameter in self.model.parameters():
                parameter.grad.mul_(50.0)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class ExplodesInOneLayer(Training):
    """The gradient of one matrix two hundred times larger from one step on."""

    begins_on_the_way = True
    subject = "blocks.1.mlp.0.weight"

    def gradients(self) -> None:
        if self.wrong:
            self.model.blocks[1].mlp[0].weight.grad.mul_(200.0)


class Vanishes(Training):
    """Gradients a millionth of what they were, from one step on."""

    begins_on_the_way = True

    def made_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def gradients(self) -> None:
        if self.wrong:
            for parameter in self.model.parameters():
                parameter.grad.mul_(1e-6)


class VanishesWithDepth(Regression):
    """Ten layers of sigmoids."""

    layers, width = 10, 32
    activation = nn.Sigmoid


class DeadUnits(Regression):
    """Biases so low that most units never fire."""

    subject = "3"

    def made_model(self) -> nn.Module:
        model = super().made_model()
        with torch.no_grad():
            model[2].bias[: self.width * 9 // 10] = -20.0
        return model


class SaturatedUnits(Regression):
    """Weights so large that tanh is at its bounds."""

    activation = nn.Tanh
    subject = "3"

    def made_model(self) -> nn.Module:
        model = super().made_model()
        with torch.no_grad():
            model[2].weight.mul_(60.0)
        return model


class ShiftedGradient(Training):
    """A constant is added to one gradient."""

    subject = "blocks.0.attention.qkv.weight"

    def gradients(self) -> None:
        self.model.blocks[0].attention.qkv.weight.grad.add_(0.2)


class FrozenLayer(Training):
    """One block does not need a gradient."""

    def made_model(self) -> nn.Module:
        model = super().made_model()
        model.blocks[0].requires_grad_(False)
        return model


class ForgottenParameters(Training):
    """The head is in no optimizer."""

    subject = "head"

    def made_optimizer(self) -> torch.optim.Optimizer:
        known = [value for name, value in self.model.named_parameters() if not name.startswith("head")]
        return torch.optim.AdamW(known, lr=self.lr)


class NotLearning(Training):
    """The output of one layer is detached: it never gets a gradient."""

    subject = "blocks.1.mlp"

    def made_model(self) -> nn.Module:
        model = super().made_model()
        model.blocks[1].mlp.append(Detach())
        return model


class Detach(nn.Module):
    """Cuts the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


class NoZeroGrad(Training):
    """`zero_grad` is forgotten."""

    def clear(self) -> None:
        pass


class WithDropout(GPT):
    """The GPT with dropout before its head."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.Sequential(self.norm, self.drop)


class EvalMode(Training):
    """An evaluation that leaves the model in eval mode."""

    begins_on_the_way = True

    def made_model(self) -> nn.Module:
        return WithDropout(GPT_SIZE)

    def after(self) -> None:
        if self.step == self.at:
            self.model.eval()


# What is wrong with the learning rate ------------------------------------------------


class RateTooHigh(Training):
    """A rate that is a hundred times too high."""

    lr = 0.5


class RateTooLow(Training):
    """A rate with which nothing moves."""

    lr = 1e-8


class FlatSchedule(Training):
    """A schedule that is never stepped."""

    def made_scheduler(self) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 1000)

    def update(self) -> None:
        self.optimizer.step()


class NoWarmUp(Training):
    """The highest rate from the first step on, and too high for it."""

    lr = 0.5
    warm_up = 1

    def rate(self, step: int) -> float:
        return 1.0 if step < 100 else 0.01


class RateJumps(Training):
    """Ten times the rate from one step on."""

    begins_on_the_way = True
    lr = 1e-3

    def rate(self, step: int) -> float:
        return 10.0 if step >= self.at else super().rate(step)


class RateZero(Training):
    """A schedule that is over before the training."""

    begins_on_the_way = True

    def rate(self, step: int) -> float:
        return max(0.0, 1.0 - step / self.at)


# What is slow or grows ---------------------------------------------------------------


class Slow(nn.Module):
    """Takes its time once it is told to."""

    on = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on:
            time.sleep(0.008)
        return x


class SlowModule(Training):
    """One module takes 8 ms longer from one step on."""

    begins_on_the_way = True
    subject = "blocks.1.mlp.3"

    def made_model(self) -> nn.Module:
        model = super().made_model()
        model.blocks[1].mlp.append(Slow())
        return model

    def after(self) -> None:
        self.model.blocks[1].mlp[3].on = self.step + 1 >= self.at


class SlowOther(Training):
    """Logging takes 10 ms in each step, from one on."""

    begins_on_the_way = True

    def after(self) -> None:
        if self.wrong:
            time.sleep(0.010)


class Throughput(SlowOther):
    """Steps take several times as long."""

    def after(self) -> None:
        if self.wrong:
            time.sleep(0.040)


class SlowData(Dataset[Any]):
    """A data set that waits for its storage once it is told to."""

    on = False

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if self.on:
            time.sleep(0.002)
        return self.inner[index]


class InputBound(Training):
    """Every sample takes 2 ms to read, from one step on."""

    begins_on_the_way = True

    def made_data(self) -> Dataset[Any]:
        self.slow = SlowData(super().made_data())
        return self.slow

    def after(self) -> None:
        self.slow.on = self.step + 1 >= self.at


class HostLeak(Training):
    """Half a MiB is kept in each step."""

    def after(self) -> None:
        self.kept.append(torch.ones(1 << 17))


# Nothing wrong -----------------------------------------------------------------------


class CleanEvaluations(Training):
    """Pauses for evaluations, whose loss is logged."""

    def made_data(self) -> Dataset[Any]:
        whole = super().made_data()
        self.validation = Subset(whole, range(len(whole) - 512, len(whole)))
        return Subset(whole, range(len(whole) - 512))

    def after(self) -> None:
        if self.step % 100 == 99:
            log("val/loss", self.evaluate(self.validation, 64))


class CleanCheckpoints(Training):
    """Writes its checkpoints to the disk, which takes as long as a hundred steps."""

    def after(self) -> None:
        if self.step % 100 == 99:
            state = [value.clone() for value in self.model.state_dict().values()]
            with tempfile.TemporaryFile() as file:
                until = time.monotonic() + 0.5
                while time.monotonic() < until:
                    torch.save(state, file)
                    os.fsync(file.fileno())


class CleanLengths(Training):
    """Sequences of different lengths."""

    def batch_of(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length = random.randint(4, GPT_SIZE.block)
        return x[:, :length], y[:, :length]


class CleanAccumulation(Training):
    """Four backward calls for each step."""

    def backward(self, loss: torch.Tensor) -> None:
        (loss / 4).backward()
        for part in range(3):
            x, y = next(self.more)
            (self.loss(x, y) / (4 + 0 * part)).backward()

    @property
    def more(self) -> Any:
        if not self.kept:
            self.kept = [self._forever()]
        return self.kept[0]

    def _forever(self) -> Any:
        while True:
            yield from self.loader


class CleanDecay(Training):
    """A cosine that ends, after three epochs, at a thousandth of the rate."""

    def made_data(self) -> Dataset[Any]:
        return Subset(super().made_data(), range(500 * self.batch))

    def rate(self, step: int) -> float:
        return max(1e-3, min((step + 1) / 50, (1 + math.cos(math.pi * min(step, 1500) / 1500)) / 2))


class CleanFinetune(Training):
    """A backbone that is frozen on purpose, and a new head."""

    def made_model(self) -> nn.Module:
        model = super().made_model()
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        return model

    def made_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([one for one in self.model.parameters() if one.requires_grad], lr=self.lr)


class CleanGan(Regression):
    """A generator and a discriminator, with an optimizer each."""

    def made_optimizer(self) -> torch.optim.Optimizer:
        self.other = nn.Sequential(nn.Linear(9, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.other_optimizer = torch.optim.Adam(self.other.parameters(), lr=1e-3, betas=(0.5, 0.999))
        return torch.optim.Adam(self.model.parameters(), lr=1e-3, betas=(0.5, 0.999))

    def make(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """A step of each."""
        real, fake = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        judge = functional.binary_cross_entropy_with_logits
        made = self.model(x)
        self.other_optimizer.zero_grad()
        right = judge(self.other(torch.cat([x, y], 1)), real)
        (right + judge(self.other(torch.cat([x, made.detach()], 1)), fake)).backward()
        self.other_optimizer.step()
        self.optimizer.zero_grad()
        loss = judge(self.other(torch.cat([x, made], 1)), real)
        loss.backward()
        self.update()
        return float(loss.detach())


class CleanNoise(Training):
    """One sequence in each batch."""

    batch = 1
    lr = 1e-3


class CleanAmp(Overflows):
    """A GradScaler that now and then tries a higher factor."""

    def gradients(self) -> None:
        """Nothing is made infinite."""


class CleanRegression(Regression):
    """The network of a few layers, as it should be."""


FAULTS: dict[str, type[Training]] = {
    "nan-data": NanData, "nan-log": LogOfZero, "nan-half": HalfOverflow, "nan-rate": NanRate,
    "nan-weight": BadWeight, "amp-overflow": Overflows, "small-eps": SmallEps,
    "spike-recovers": SpikeRecovers, "spike-stays": SpikeStays, "diverges": Diverges, "plateau": Plateau,
    "oscillates": Oscillates, "slow-decrease": SlowDecrease, "overfits": Overfits, "gap": Gap,
    "explodes": Explodes, "explodes-one-layer": ExplodesInOneLayer, "vanishes": Vanishes,
    "vanishes-depth": VanishesWithDepth, "dead-units": DeadUnits, "saturated-units": SaturatedUnits,
    "shifted-gradient": ShiftedGradient, "frozen-layer": FrozenLayer, "forgotten": ForgottenParameters,
    "not-learning": NotLearning, "no-zero-grad": NoZeroGrad, "eval-mode": EvalMode,
    "rate-too-high": RateTooHigh, "rate-too-low": RateTooLow, "flat-schedule": FlatSchedule,
    "no-warm-up": NoWarmUp, "rate-jumps": RateJumps, "rate-zero": RateZero,
    "slow-module": SlowModule, "slow-other": SlowOther, "throughput": Throughput,
    "input-bound": InputBound, "host-leak": HostLeak,
    "clean": Training, "clean-warmup": CleanRegression, "clean-eval-pauses": CleanEvaluations,
    "clean-checkpoint-pauses": CleanCheckpoints, "clean-variable-length": CleanLengths,
    "clean-accumulation": CleanAccumulation, "clean-small-lr-decay": CleanDecay,
    "clean-finetune-frozen-backbone": CleanFinetune, "clean-gan": CleanGan,
    "clean-noisy-small-batch": CleanNoise, "clean-amp": CleanAmp,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="clean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", type=int, default=0, help="step; 0: the seed chooses one from 300 to 500")
    parser.add_argument("--pace", type=float, default=0.0, help="ms more in each step")
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    torch.manual_seed(wanted.seed)
    random.seed(wanted.seed)
    training = FAULTS[wanted.fault](wanted.at or random.Random(wanted.seed).randint(300, 500))
    fault, said = "", False
    losses: list[float] = []
    while wanted.forever or training.step < wanted.steps:
        for x, y in training.loader:
            if not fault and (training.wrong or not training.begins_on_the_way):
                fault = f"FAULT {time.time_ns()} {training.step}"
            if fault and not said and training.step > 3:
                print(fault, flush=True)
                said = True
            losses.append(training.make(x, y))
            training.step += 1
            if training.step == 3:
                print("READY", flush=True)
            if wanted.pace:
                time.sleep(wanted.pace / 1e3)
            if not wanted.forever and training.step >= wanted.steps:
                break
    result = {"steps": training.step, "losses": losses if wanted.steps <= 10000 else []}
    print("RESULT " + json.dumps(result), flush=True)
    if wanted.hold:
        sys.stdin.readline()


if __name__ == "__main__":
    main()
