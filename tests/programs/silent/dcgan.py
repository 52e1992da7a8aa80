"""A generator and a discriminator of small digits, after DCGAN."""

from __future__ import annotations

import torch
import torch.nn as nn
from progress import Progress, options
from synthetic import digits
from torch.utils.data import DataLoader, TensorDataset

nz, ngf, ndf = 32, 16, 12


def weights_init(m: nn.Module) -> None:
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, 2 * ngf, 4, 1, 0, bias=False), nn.BatchNorm2d(2 * ngf), nn.ReLU(True),
            nn.ConvTranspose2d(2 * ngf, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, 2 * ndf, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * ndf),
            nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(2 * ndf, 1, 4, 1, 0, bias=False),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.main(images).view(-1)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    images = digits(6400, size=16, seed=args.seed)[0][:, None].float() / 127.5 - 1
    dataloader = DataLoader(TensorDataset(images), batch_size=64, shuffle=True, drop_last=True)
    netG, netD = Generator(), Discriminator()
    netG.apply(weights_init)
    netD.apply(weights_init)
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.999))
    fixed_noise = torch.randn(16, nz, 1, 1)
    epoch = 0
    while True:
        for (real,) in dataloader:
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
            netD.zero_grad()
            errD_real = criterion(netD(real), ones)
            errD_real.backward()
            fake = netG(torch.randn(len(real), nz, 1, 1))
            errD_fake = criterion(netD(fake.detach()), zeros)
            errD_fake.backward()
            optimizerD.step()
            netG.zero_grad()
            errG = criterion(netD(fake), ones)
            errG.backward()
            optimizerG.step()
            progress.step((errD_real + errD_fake).item())
        epoch += 1
        with torch.no_grad():
            samples = netG(fixed_noise)
        print(f"epoch {epoch} loss_G {errG.item():.3f} mean {samples.mean().item():.3f}")


if __name__ == "__main__":
    main()
