"""One rank of a data-parallel language model: lines of text, padded, with micro-steps under no_sync."""

from __future__ import annotations

import contextlib
import itertools

import torch
import torch.distributed as dist
from progress import Progress, options
from synthetic import text
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

PAD, VOCABULARY, BLOCK, WIDTH, HEADS = 0, 128, 48, 48, 4


def lines(count: int) -> list[torch.Tensor]:
    """Lines of 8 to 49 characters."""
    characters = text()
    ends = (characters == 10).nonzero().flatten().tolist()
    found = [characters[a + 1 : b + 1] for a, b in itertools.pairwise(ends) if b - a > 8]
    return [line[: BLOCK + 1] for line in found[:count]]


def collate(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    padded = pad_sequence(batch, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.apply(self.initialise)

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(h)))


def train(args) -> None:
    progress = Progress(args)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dataset = lines(6000)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, collate_fn=collate, drop_last=True)
    model = GPT()
    ddp_model = DDP(model)
    base_lr, accumulate = 1e-3, 2
    optimizer = torch.optim.AdamW(ddp_model.parameters(), lr=base_lr * world_size**0.5, weight_decay=0.01)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            last = (number + 1) % accumulate == 0
            with contextlib.nullcontext() if last else ddp_model.no_sync():
                logits = ddp_model(x)
                loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), y.reshape(-1), ignore_index=PAD)
                (loss / accumulate).backward()
            if last:
                torch.nn.utils.clip_grad_norm_(ddp_model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                progress.step(loss.item())
        epoch += 1
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")


if __name__ == "__main__":
    arguments = options(__doc__)
    dist.init_process_group("gloo")
    train(arguments)
