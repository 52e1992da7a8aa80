"""Job 2: the character GPT with everything at module level, as in a notebook or a short script."""

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from gpt import GPT, SIZES, Characters, standard_library_text
from ledger import Ledger, options


class Trainer:
    """What the command asks: where the run is."""

    grad_clip = 1.0
    current_step = 0


parser = options(__doc__)
parser.add_argument("--size", choices=SIZES, default="small")
arguments = parser.parse_args()
ledger = Ledger(arguments)
size = SIZES[arguments.size]
train_loader = DataLoader(
    Characters(standard_library_text(), size.block), batch_size=size.batch, shuffle=True, drop_last=True
)
model = GPT(size)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
trainer = Trainer()

while ledger.running:
    for tokens, targets in train_loader:
        ledger.fetched("train_loader")
        optimizer.zero_grad()
        with ledger.phase("forward"):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        with ledger.phase("backward"):
            loss.backward()
        ledger.loss(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.grad_clip)
        with ledger.phase("optimizer"):
            optimizer.step()
        trainer.current_step += 1
        ledger.step()
        if not ledger.running:
            break
ledger.finish(model)
