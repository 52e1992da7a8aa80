"""Balances poles: advantage actor-critic on sixteen environments at once, no data loader."""

from __future__ import annotations

import torch
from progress import Progress, options
from torch import nn, optim
from torch.distributions import Categorical


class CartPoles:
    """A batch of cart-poles; each restarts when its pole has fallen or after 200 steps."""

    def __init__(self, count: int) -> None:
        self.state = torch.zeros(count, 4)
        self.age = torch.zeros(count)
        self._restart(torch.ones(count, dtype=torch.bool))

    def _restart(self, which: torch.Tensor) -> None:
        self.state[which] = 0.1 * torch.rand(int(which.sum()), 4) - 0.05
        self.age[which] = 0

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        _, speed, angle, turn = self.state.unbind(1)
        force = 20.0 * action.float() - 10.0
        sine, cosine = angle.sin(), angle.cos()
        temp = (force + 0.05 * turn**2 * sine) / 1.1
        turning = (9.8 * sine - cosine * temp) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        moving = temp - 0.05 * turning * cosine / 1.1
        steps = torch.stack([speed, moving, turn, turning], 1)
        self.state = self.state + 0.02 * steps
        self.age += 1
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21)
        done = fallen | (self.age >= 200)
        reached = self.age.clone()
        if done.any():
            self._restart(done)
        return self.state.clone(), done.float(), reached


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.body(state), dim=-1)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.body(state)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    environments, horizon, gamma = 16, 16, 0.99
    poles = CartPoles(environments)
    actor, critic = Actor(), Critic()
    actor_optimizer = optim.Adam(actor.parameters(), lr=3e-3)
    critic_optimizer = optim.Adam(critic.parameters(), lr=5e-3)
    state = poles.state.clone()
    lengths: list[float] = []
    updates = 0
    while True:
        states, log_probs, entropies, rewards, dones = [], [], [], [], []
        for _ in range(horizon):
            policy = Categorical(actor(state))
            action = policy.sample()
            states.append(state)
            log_probs.append(policy.log_prob(action))
            entropies.append(policy.entropy())
            state, done, reached = poles.step(action)
            rewards.append(torch.ones(environments))
            dones.append(done)
            lengths += reached[done.bool()].tolist()
        values = critic(torch.stack(states)).squeeze(-1)
        with torch.no_grad():
            following = critic(state).squeeze(-1)
            returns = []
            for reward, done in zip(reversed(rewards), reversed(dones), strict=True):
                following = reward + gamma * following * (1 - done)
                returns.insert(0, following)
        returns = torch.stack(returns)
        advantage = returns - values
        actor_loss = -(torch.stack(log_probs) * advantage.detach()).mean()
        actor_loss = actor_loss - 0.01 * torch.stack(entropies).mean()
        critic_loss = advantage.pow(2).mean()
        actor_optimizer.zero_grad()
        critic_optimizer.zero_grad()
        (actor_loss + 0.5 * critic_loss).backward()
        actor_optimizer.step()
        critic_optimizer.step()
        updates += 1
        if updates % 100 == 0:
            print(f"update {updates} episode length {sum(lengths[-100:]) / max(1, len(lengths[-100:])):.1f}")
        progress.step(critic_loss.item())


if __name__ == "__main__":
    main()
