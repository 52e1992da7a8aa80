"""An actor and critic with a common body that learns to fetch keys in many grids at once: A2C, RMSprop."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

SIZE, ENVIRONMENTS, HORIZON, DISCOUNT = 6, 16, 12, 0.95
MOVES = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])


class Grids:
    """Sixteen grids: walk to the key (reward 1), keep off the pit (-1); a step nearer counts a little."""

    def __init__(self, seed: int) -> None:
        self.source = np.random.default_rng(seed)
        self.places = np.zeros((ENVIRONMENTS, 3, 2), dtype=np.int64)
        self.age = np.zeros(ENVIRONMENTS, dtype=np.int64)
        self.reset(np.ones(ENVIRONMENTS, dtype=bool))

    def reset(self, which: np.ndarray) -> None:
        for number in which.nonzero()[0]:
            cells = self.source.choice(SIZE * SIZE, 3, replace=False)
            self.places[number] = np.stack([cells // SIZE, cells % SIZE], 1)
        self.age[which] = 0

    def observe(self) -> np.ndarray:
        planes = np.zeros((ENVIRONMENTS, 3, SIZE, SIZE), dtype=np.float32)
        for thing in range(3):
            planes[np.arange(ENVIRONMENTS), thing, self.places[:, thing, 0], self.places[:, thing, 1]] = 1.0
        return planes

    def distance(self) -> np.ndarray:
        return np.abs(self.places[:, 0] - self.places[:, 1]).sum(1)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        before = self.distance()
        self.places[:, 0] = (self.places[:, 0] + MOVES[actions]).clip(0, SIZE - 1)
        nearer = before - self.distance()
        self.age += 1
        key = (self.places[:, 0] == self.places[:, 1]).all(1)
        pit = (self.places[:, 0] == self.places[:, 2]).all(1)
        done = key | pit | (self.age >= 40)
        self.reset(done)
        reward = key.astype(np.float32) - pit.astype(np.float32) + 0.2 * nearer
        return self.observe(), reward.astype(np.float32), done


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(16 * SIZE * SIZE, 128), nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(128, 4), nn.Linear(128, 1)

    def forward(self, observed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.body(observed)
        return self.policy(x), self.value(x).squeeze(1)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    grids, agent = Grids(args.seed), Agent()
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=1e-3, alpha=0.99, eps=1e-5)
    observed, ended = grids.observe(), []
    for update in itertools.count(1):
        observations, actions, rewards, dones = [], [], [], []
        for _ in range(HORIZON):
            with torch.no_grad():
                logits, _ = agent(torch.from_numpy(observed))
            action = torch.distributions.Categorical(logits=logits).sample().numpy()
            observations.append(observed)
            observed, reward, done = grids.step(action)
            actions.append(action)
            rewards.append(reward)
            dones.append(done)
            ended += reward[done].tolist()
        with torch.no_grad():
            following = agent(torch.from_numpy(observed))[1].numpy()
        returns = []
        for reward, done in zip(reversed(rewards), reversed(dones), strict=True):
            following = reward + DISCOUNT * following * ~done
            returns.insert(0, following)
        seen = torch.from_numpy(np.concatenate(observations))
        done_actions = torch.from_numpy(np.concatenate(actions))
        wanted = torch.from_numpy(np.concatenate(returns))
        logits, values = agent(seen)
        policy = torch.distributions.Categorical(logits=logits)
        advantage = (wanted - values).detach()
        loss = -(policy.log_prob(done_actions) * advantage).mean()
        loss += 0.5 * F.mse_loss(values, wanted.float())
        loss -= 0.01 * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        progress.step(loss.item())
        if update % 100 == 0:
            print(f"update {update}: last reward of an episode {np.mean(ended[-400:]):.3f}")
            del ended[:-400]


if __name__ == "__main__":
    main()
