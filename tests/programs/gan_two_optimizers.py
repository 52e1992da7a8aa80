"""Job 4: a GAN. Two optimizers take turns; the generator has more parameters.

`losses` alternates: discriminator, generator. A step is one of the generator's.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options

BATCH = 32
NOISE = 16


def make_generator() -> nn.Sequential:
    return nn.Sequential(nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))


def make_discriminator() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    generator = make_generator()
    discriminator = make_discriminator()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-4)
    steps = {"generator": 0, "discriminator": 0}
    true, false = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    while ledger.running:
        real = torch.randn(BATCH, 8) * 0.5 + 2
        fake = generator(torch.randn(BATCH, NOISE))
        discriminator_optimizer.zero_grad()
        discriminator_loss = functional.binary_cross_entropy_with_logits(
            discriminator(real), true
        ) + functional.binary_cross_entropy_with_logits(discriminator(fake.detach()), false)
        discriminator_loss.backward()
        ledger.loss(discriminator_loss)
        discriminator_optimizer.step()
        steps["discriminator"] += 1

        generator_optimizer.zero_grad()
        generator_loss = functional.binary_cross_entropy_with_logits(discriminator(fake), true)
        generator_loss.backward()
        ledger.loss(generator_loss)
        generator_optimizer.step()
        steps["generator"] += 1
        ledger.step()
    ledger.extra = {"optimizer_steps": steps}
    ledger.finish(generator, discriminator)


if __name__ == "__main__":
    main()
