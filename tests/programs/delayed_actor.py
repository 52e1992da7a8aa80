"""A critic that takes a step each time, and an actor that takes one every second time, through the critic.

The actor's loss leaves gradients in the critic, cleared before the critic's own backward; not with --forgets.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--forgets", action="store_true", help="never clear the critic's gradients")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    actor, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    actor_optimizer = torch.optim.Adam(actor.parameters(), 1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
    turn = 0
    while ledger.running:
        turn += 1
        state, action = torch.randn(16, 4), torch.randn(16, 2)
        loss = functional.mse_loss(critic(torch.cat([state, action], 1)), state[:, :1] * action[:, :1])
        if not arguments.forgets:
            critic_optimizer.zero_grad()
        loss.backward()
        ledger.loss(loss)
        critic_optimizer.step()
        ledger.step()
        if turn % 2 == 0:
            actor_loss = -critic(torch.cat([state, actor(state)], 1)).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
    ledger.finish(critic)


if __name__ == "__main__":
    main()
