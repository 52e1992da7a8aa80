"""Reads strips of signs that were written by hand, of any length: convolutions, an LSTM and CTC, Adam."""

from __future__ import annotations

import itertools

import torch
from handwriting_modules import Recogniser, SequenceLoss, decoded
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

HEIGHT, SIGNS, BATCH = 16, 12, 16


class Strips(Dataset):
    """Strips with three to seven signs, unevenly spaced, slanted and noisy."""

    def __init__(self, count: int, seed: int) -> None:
        glyphs = torch.rand(SIGNS, 1, 5, 4, generator=torch.Generator().manual_seed(17)) > 0.5
        glyphs = F.interpolate(glyphs.float(), size=(10, 8))[:, 0]
        source = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(count):
            length = int(torch.randint(3, 8, (), generator=source))
            signs = torch.randint(1, SIGNS + 1, (length,), generator=source)
            strip, column = torch.zeros(HEIGHT, 12 * len(signs) + 6), 1
            for sign in signs.tolist():
                top = int(torch.randint(HEIGHT - 10, (), generator=source))
                strip[top : top + 10, column : column + 8] = glyphs[sign - 1]
                column += int(torch.randint(9, 13, (), generator=source))
            strip = strip * (0.6 + 0.4 * torch.rand((), generator=source))
            strip += 0.35 * torch.randn(strip.shape, generator=source)
            self.items.append(((strip - 0.3) / 0.5, signs))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.items[index]


def collate(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    strips, signs = zip(*batch, strict=True)
    columns = torch.tensor([strip.shape[1] for strip in strips])
    lengths = torch.tensor([len(each) for each in signs])
    padded = pad_sequence([strip.T for strip in strips], batch_first=True).transpose(1, 2)
    return padded, pad_sequence(signs, batch_first=True), columns, lengths


def edits_between(said: list[int], wanted: list[int]) -> int:
    row = list(range(len(wanted) + 1))
    for number, sign in enumerate(said, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(wanted, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (sign != other))
    return row[-1]


@torch.no_grad()
def character_error_rate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    wrong, total = 0, 0
    for strips, signs, columns, lengths in loader:
        log_probs, _ = model(strips)
        for said, wanted, length in zip(decoded(log_probs, columns), signs.tolist(), lengths, strict=True):
            wrong += edits_between(said, wanted[:length])
            total += int(length)
    model.train()
    return wrong / max(total, 1)


def train(model: nn.Module, loader: DataLoader, val_loader: DataLoader, progress: Progress) -> None:
    criterion = SequenceLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    for epoch in itertools.count():
        for strips, signs, columns, lengths in loader:
            log_probs, _ = model(strips)
            loss = criterion(log_probs, signs, columns, lengths)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            step += 1
            progress.step(loss.item())
            if step % 100 == 0:
                rate = character_error_rate(model, val_loader)
                print(f"epoch {epoch} step {step}: {rate:.3f} of the signs wrong")


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    train_set, val_set = Strips(4000, args.seed), Strips(48, args.seed + 10_000)
    loader = DataLoader(train_set, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)
    val_loader = DataLoader(val_set, batch_size=BATCH, collate_fn=collate)
    train(Recogniser(HEIGHT, SIGNS), loader, val_loader, progress)


if __name__ == "__main__":
    main()
