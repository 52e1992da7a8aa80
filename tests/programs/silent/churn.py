"""Predicts which customers will leave: a dataclass configures, and factories build what it says."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class DataConfig:
    customers: int = 40_000
    numbers: int = 12
    categories: tuple[int, ...] = (40, 12, 7, 90)
    batch_size: int = 128


@dataclass
class OptimizerConfig:
    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.02
    warmup: int = 60
    total: int = 40_000
    max_norm: float = 5.0


@dataclass
class Config:
    width: int = 128
    embedding: int = 8
    dropout: float = 0.1
    every: int = 200
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


def customers(cfg: DataConfig, count: int, seed: int) -> TensorDataset:
    """Numbers, categories, and whether the customer left (about one in thirteen)."""
    taste = torch.Generator().manual_seed(31)
    of_number = torch.randn(cfg.numbers, generator=taste)
    of_category = [torch.randn(size, generator=taste) for size in cfg.categories]
    source = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, cfg.numbers, generator=source)
    columns = [torch.randint(size, (count,), generator=source) for size in cfg.categories]
    risk = numbers @ of_number + 1.5 * (numbers[:, 0] * numbers[:, 1]).tanh() - 3.6
    risk = risk + sum(0.6 * worth[column] for worth, column in zip(of_category, columns, strict=True))
    left = (torch.rand(count, generator=source) < (2.5 * risk).sigmoid()).float()
    return TensorDataset(numbers, torch.stack(columns, 1), left)


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(self.norm(x))


class ChurnModel(nn.Module):
    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, cfg.embedding) for size in cfg.data.categories)
        inputs = cfg.data.numbers + cfg.embedding * len(cfg.data.categories)
        self.enter = nn.Linear(inputs, cfg.width)
        self.blocks = nn.Sequential(Block(cfg.width, cfg.dropout), Block(cfg.width, cfg.dropout))
        self.norm = nn.LayerNorm(cfg.width)
        self.out = nn.Linear(cfg.width, 1)

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        embedded = [table(column) for table, column in zip(self.embeddings, categories.T, strict=True)]
        x = self.blocks(self.enter(torch.cat([numbers, *embedded], 1)))
        return self.out(self.norm(x)).squeeze(1)


def build_loader(cfg: Config, dataset: TensorDataset) -> DataLoader:
    return DataLoader(dataset, batch_size=cfg.data.batch_size, shuffle=True, drop_last=True)


def build_optimizer(cfg: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    decay = [p for p in model.parameters() if p.ndim >= 2]
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": decay, "weight_decay": cfg.weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}
    return kinds[cfg.name](groups, lr=cfg.lr)


def build_scheduler(cfg: OptimizerConfig, optimizer: torch.optim.Optimizer) -> LRScheduler:
    def factor(step: int) -> float:
        if step < cfg.warmup:
            return (step + 1) / cfg.warmup
        return max(0.02, 1.0 - (step - cfg.warmup) / (cfg.total - cfg.warmup))

    return LambdaLR(optimizer, factor)


def f1(probability: torch.Tensor, left: torch.Tensor, threshold: float) -> float:
    said = probability > threshold
    return 2 * (said & (left > 0)).sum().item() / max((said.sum() + left.sum()).item(), 1.0)


def average_precision(probability: torch.Tensor, left: torch.Tensor) -> float:
    ranked = left[probability.argsort(descending=True)]
    precision = ranked.cumsum(0) / torch.arange(1, len(ranked) + 1)
    return (precision * ranked).sum().item() / max(ranked.sum().item(), 1.0)


@torch.no_grad()
def predict(model: nn.Module, dataset: TensorDataset) -> tuple[torch.Tensor, torch.Tensor]:
    model.eval()
    numbers, categories, left = dataset.tensors
    probability = model(numbers, categories).sigmoid()
    model.train()
    return probability, left


def run(cfg: Config, args) -> None:
    progress = Progress(args)
    train_set = customers(cfg.data, cfg.data.customers, args.seed)
    val_set = customers(cfg.data, 1500, args.seed + 10_000)
    test_set = customers(cfg.data, 1500, args.seed + 20_000)
    loader = build_loader(cfg, train_set)
    model = ChurnModel(cfg)
    optimizer = build_optimizer(cfg.optimizer, model)
    scheduler = build_scheduler(cfg.optimizer, optimizer)
    left = train_set.tensors[2]
    pos_weight = (1 - left).sum() / left.sum()
    best_path = Path(args.out or tempfile.mkdtemp(prefix="churn-")) / "best.pt"
    best, step = 0.0, 0
    for _ in itertools.count():
        for numbers, categories, wanted in loader:
            loss = F.binary_cross_entropy_with_logits(
                model(numbers, categories), wanted, pos_weight=pos_weight
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), cfg.optimizer.max_norm)
            optimizer.step()
            scheduler.step()
            step += 1
            progress.step(loss.item())
            if step % cfg.every:
                continue
            score = average_precision(*predict(model, val_set))
            if score > best:
                best = score
                torch.save(model.state_dict(), best_path)
            tuned = predict(model, val_set)
            threshold = max((i / 20 for i in range(1, 20)), key=lambda level: f1(*tuned, level))
            tested = f1(*predict(model, test_set), threshold)
            print(f"step {step}: AP {score:.3f}, best {best:.3f}, F1 {tested:.3f} at {threshold:.2f}")


if __name__ == "__main__":
    run(Config(), options(__doc__))
