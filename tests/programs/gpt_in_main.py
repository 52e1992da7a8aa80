"""Job 1: a character GPT; `model`, `optimizer`, `train_loader`, `trainer` are local to `main()`."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from gpt import GPT, SIZES, Characters, standard_library_text
from ledger import Ledger, options


class Trainer:
    """Trains one model; the command asks it for `current_step` and `grad_clip`."""

    def __init__(self, model: GPT, optimizer: torch.optim.Optimizer, ledger: Ledger) -> None:
        self.model = model
        self.optimizer = optimizer
        self.ledger = ledger
        self.grad_clip = 1.0
        self.current_step = 0

    def train_step(self, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        """One step on one batch."""
        self.optimizer.zero_grad()
        with self.ledger.phase("forward"):
            logits = self.model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        with self.ledger.phase("backward"):
            loss.backward()
        self.ledger.loss(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        with self.ledger.phase("optimizer"):
            self.optimizer.step()
        self.current_step += 1


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--workers", type=int, default=0, help="workers of the DataLoader")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    size = SIZES[arguments.size]
    train_loader = DataLoader(
        Characters(standard_library_text(), size.block),
        batch_size=size.batch, shuffle=True, drop_last=True, num_workers=arguments.workers,
    )
    model = GPT(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    trainer = Trainer(model, optimizer, ledger)
    while ledger.running:
        for tokens, targets in train_loader:
            ledger.fetched("train_loader")
            trainer.train_step(tokens, targets)
            ledger.step()
            if not ledger.running:
                break
    ledger.finish(model)


if __name__ == "__main__":
    main()
