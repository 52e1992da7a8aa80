"""Estimates the energy of made-up molecules: a network that passes messages along their bonds, Adam.

With `--out`, it goes on from the newest checkpoint there, and writes one every fifty steps.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import NamedTuple

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

ATOMS, BONDS, BATCH = 9, 3, 32


class Molecule(NamedTuple):
    atoms: torch.Tensor
    bonds: torch.Tensor
    orders: torch.Tensor
    energy: float


class Batch(NamedTuple):
    atoms: torch.Tensor
    bonds: torch.Tensor
    orders: torch.Tensor
    owner: torch.Tensor
    energy: torch.Tensor


def molecules(count: int, seed: int) -> list[Molecule]:
    """Trees of 6 to 18 atoms with a ring or two; the energy is that of atoms, of bonds and of corners."""
    law = torch.Generator().manual_seed(41)
    of_atom = torch.randn(ATOMS, generator=law)
    of_bond = torch.randn(ATOMS, ATOMS, BONDS, generator=law)
    of_bond = of_bond + of_bond.transpose(0, 1)
    source = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        size = int(torch.randint(6, 19, (), generator=source))
        atoms = torch.randint(ATOMS, (size,), generator=source)
        tree = [(int(torch.randint(atom, (), generator=source)), atom) for atom in range(1, size)]
        rings = torch.randint(size, (2, 2), generator=source).tolist()
        pairs = torch.tensor(tree + [(a, b) for a, b in rings if a != b]).T
        orders = torch.randint(BONDS, (pairs.shape[1],), generator=source)
        degree = torch.bincount(pairs.flatten(), minlength=size)
        energy = of_atom[atoms].sum() + of_bond[atoms[pairs[0]], atoms[pairs[1]], orders].sum()
        energy = energy + (0.5 * (degree > 2) * of_atom[atoms]).sum()
        both = torch.cat([pairs, pairs.flip(0)], 1)
        found.append(Molecule(atoms, both, orders.repeat(2), energy.item()))
    return found


def collate(chosen: list[Molecule], mean: float, std: float) -> Batch:
    sizes = torch.tensor([len(molecule.atoms) for molecule in chosen])
    offsets = sizes.cumsum(0) - sizes
    bonds = [molecule.bonds + offset for molecule, offset in zip(chosen, offsets, strict=True)]
    energy = torch.tensor([molecule.energy for molecule in chosen])
    return Batch(
        torch.cat([molecule.atoms for molecule in chosen]),
        torch.cat(bonds, 1),
        torch.cat([molecule.orders for molecule in chosen]),
        torch.repeat_interleave(torch.arange(len(chosen)), sizes),
        (energy - mean) / std,
    )


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.order = nn.Embedding(BONDS, width)
        self.message = nn.Sequential(nn.Linear(3 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, bonds: torch.Tensor, orders: torch.Tensor) -> torch.Tensor:
        sender, receiver = bonds
        messages = self.message(torch.cat([x[sender], x[receiver], self.order(orders)], 1))
        received = torch.zeros_like(x).index_add(0, receiver, messages)
        return self.norm(x + self.update(torch.cat([x, received], 1)))


class MessagePassing(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.atoms = nn.Embedding(ATOMS, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(3))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, batch: Batch) -> torch.Tensor:
        x = self.atoms(batch.atoms)
        for layer in self.layers:
            x = layer(x, batch.bonds, batch.orders)
        per_atom = self.readout(x).squeeze(1)
        return per_atom.new_zeros(len(batch.energy)).index_add(0, batch.owner, per_atom)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    random.seed(args.seed)
    folder = Path(args.out) if args.out else None
    train, held_out = molecules(3000, args.seed), molecules(256, args.seed + 10_000)
    energies = torch.tensor([molecule.energy for molecule in train])
    mean, std = energies.mean().item(), energies.std().item()
    validation = collate(held_out, mean, std)
    model = MessagePassing()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.8)
    step = 0
    saved = sorted(folder.glob("model-*.pt"), key=lambda path: int(path.stem[6:])) if folder else []
    if saved:
        state = torch.load(saved[-1], weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        step = state["step"]
    for epoch in itertools.count():
        order = random.sample(train, len(train))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = collate(order[start : start + BATCH], mean, std)
            loss = F.mse_loss(model(batch), batch.energy)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if folder and step % 50 == 0:
                parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
                state = {name: part.state_dict() for name, part in parts.items()}
                torch.save({**state, "step": step}, folder / f"model-{step}.pt")
            progress.step(loss.item())
        with torch.no_grad():
            error = F.l1_loss(model(validation), validation.energy).item() * std
        print(f"epoch {epoch}: held-out error {error:.3f}")


if __name__ == "__main__":
    main()
