"""A variational autoencoder of small digits, after pytorch/examples."""

from __future__ import annotations

import torch
from progress import Progress, options
from synthetic import digits
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 200)
        self.fc21 = nn.Linear(200, 16)
        self.fc22 = nn.Linear(200, 16)
        self.fc3 = nn.Linear(16, 200)
        self.fc4 = nn.Linear(200, 784)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.fc4(F.relu(self.fc3(z)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mu, logvar = self.encode(x.view(-1, 784))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy_with_logits(recon_x, x.view(-1, 784), reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / len(x)


def train(epoch, model, optimizer, train_loader, progress):
    model.train()
    train_loss = 0.0
    for (data,) in train_loader:
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
        progress.step(loss.item())
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader):.4f}")


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    images = digits(12800, seed=args.seed)[0].float() / 255
    train_loader = DataLoader(TensorDataset(images), batch_size=128, shuffle=True)
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    epoch = 1
    while True:
        train(epoch, model, optimizer, train_loader, progress)
        epoch += 1


if __name__ == "__main__":
    main()
