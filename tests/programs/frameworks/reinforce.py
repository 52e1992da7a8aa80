"""The loop of pytorch/examples' reinforce.py: episodes without a loader, one update after each."""

from __future__ import annotations

from typing import Any

import torch
from account import Account, options
from torch import nn, optim
from torch.distributions import Categorical
from torch.nn import functional

GAMMA, LONGEST = 0.99, 12


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.affine1 = nn.Linear(4, 16)
        self.dropout = nn.Dropout(p=0.1)
        self.affine2 = nn.Linear(16, 2)
        self.saved_log_probs: list[Any] = []
        self.rewards: list[float] = []

    def forward(self, x: torch.Tensor) -> Any:
        x = functional.relu(self.dropout(self.affine1(x)))
        return functional.softmax(self.affine2(x), dim=1)


class Walk:
    """An environment: keep a random walk near zero."""

    def reset(self) -> torch.Tensor:
        self.state = torch.randn(4) * 0.1
        self.age = 0
        return self.state

    def step(self, action: int) -> tuple[torch.Tensor, float, bool]:
        self.state = self.state + torch.randn(4) * 0.2 + (0.1 if action else -0.1)
        self.age += 1
        return self.state, 1.0, self.age >= LONGEST or float(self.state.abs().max()) > 1.5


def select_action(policy: Policy, state: torch.Tensor) -> int:
    m = Categorical(policy(state.unsqueeze(0)))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return int(action.item())


def finish_episode(policy: Policy, optimizer: optim.Optimizer) -> torch.Tensor:
    R = 0.0
    returns = []
    for r in policy.rewards[::-1]:
        R = r + GAMMA * R
        returns.insert(0, R)
    weighed = torch.tensor(returns) - sum(returns) / len(returns)
    policy_loss = torch.cat([-p * w for p, w in zip(policy.saved_log_probs, weighed, strict=True)]).sum()
    optimizer.zero_grad()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]
    return policy_loss.detach()


def main() -> None:
    arguments = options(__doc__).parse_args()
    account = Account(arguments)
    env, policy = Walk(), Policy()
    optimizer = optim.Adam(policy.parameters(), lr=1e-2)
    if arguments.resume:
        import probe

        account.most -= probe.load_checkpoint(arguments.resume, policy=policy, optimizer=optimizer).step or 0
    while account.steps < account.most:
        state = env.reset()
        done = False
        while not done:
            action = select_action(policy, state)
            state, reward, done = env.step(action)
            policy.rewards.append(reward)
        account.loss(finish_episode(policy, optimizer))
        account.step()
    account.finish(policy)


if __name__ == "__main__":
    main()
