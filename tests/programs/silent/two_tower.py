"""Recommends films: a tower for people and one for films, with embeddings; the batch's others are wrong."""

from __future__ import annotations

import itertools

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

PEOPLE, FILMS, WIDTH, BATCH = 3510, 3706, 64, 512


def views(count: int, seed: int) -> torch.Tensor:
    """Rows of person, film and hour of the day; who watches what follows from tastes that nobody sees."""
    source = torch.Generator().manual_seed(seed)
    tastes = torch.Generator().manual_seed(21)
    people = torch.randint(20, (PEOPLE,), generator=tastes)
    films = torch.randint(20, (FILMS,), generator=tastes)
    by_genre = [(films == genre).nonzero()[:, 0] for genre in range(20)]
    person = torch.randint(PEOPLE, (count,), generator=source)
    film = torch.randint(FILMS, (count,), generator=source)
    for genre, members in enumerate(by_genre):
        chosen = (people[person] == genre) & (torch.rand(count, generator=source) < 0.85)
        film[chosen] = members[torch.randint(len(members), (int(chosen.sum()),), generator=source)]
    hour = (people[person] + torch.randint(5, (count,), generator=source)) % 24
    return torch.stack([person, film, hour], 1)


class Tower(nn.Module):
    def __init__(self, entries: int, extra: int) -> None:
        super().__init__()
        self.entries = nn.Embedding(entries, WIDTH)
        self.layers = nn.Sequential(nn.Linear(WIDTH + extra, 128), nn.ReLU(), nn.Linear(128, WIDTH))
        nn.init.normal_(self.entries.weight, std=0.1)

    def forward(self, entry: torch.Tensor, *extra: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.layers(torch.cat([self.entries(entry), *extra], 1)), dim=1)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.person, self.film = Tower(PEOPLE, 24), Tower(FILMS, 0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Similarity of every person of the batch with every film of the batch."""
        person, film, hour = rows.unbind(1)
        return self.person(person, F.one_hot(hour, 24).float()) @ self.film(film).T


@torch.no_grad()
def rank(model: Recommender, rows: torch.Tensor) -> float:
    """Mean place of the film that was watched among 512, as a share."""
    similarity = model(rows)
    return (similarity > similarity.diagonal()[:, None]).float().mean().item()


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    rows, held_out = views(200_000, args.seed), views(BATCH, args.seed + 10_000)
    sampler = BatchSampler(RandomSampler(range(len(rows))), BATCH, drop_last=True)
    loader = DataLoader(TensorDataset(rows), sampler=sampler, batch_size=None)
    model = Recommender()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    own = torch.arange(BATCH)
    for epoch in itertools.count():
        for number, (batch,) in enumerate(loader):
            loss = F.cross_entropy(model(batch) / 0.1, own)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.step(loss.item())
            if number % 200 == 0:
                print(f"epoch {epoch}: rank {rank(model, held_out):.3f}")


if __name__ == "__main__":
    main()
