"""Finds its way over a grid: Q-learning with a replay buffer and a target network."""

from __future__ import annotations

import random
from collections import deque

import torch
from progress import Progress, options
from torch import nn

SIZE, ACTIONS = 7, 4
MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))


class Grid:
    """From a random field to the corner: -0.05 for each move, 1 at the goal, at most 40 moves."""

    def reset(self) -> torch.Tensor:
        self.place = [random.randrange(SIZE), random.randrange(SIZE - 1)]
        self.moves = 0
        return self.observation()

    def observation(self) -> torch.Tensor:
        seen = torch.zeros(2, SIZE)
        seen[0, self.place[0]] = seen[1, self.place[1]] = 1
        return seen.flatten()

    def step(self, action: int) -> tuple[torch.Tensor, float, bool]:
        for axis in range(2):
            self.place[axis] = min(SIZE - 1, max(0, self.place[axis] + MOVES[action][axis]))
        self.moves += 1
        arrived = self.place == [SIZE - 1, SIZE - 1]
        return self.observation(), 1.0 if arrived else -0.05, arrived or self.moves >= 40


class QNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * SIZE, 128)
        self.fc2 = nn.Linear(128, 128)
        self.out = nn.Linear(128, ACTIONS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.out(x)


class Agent:
    def __init__(self) -> None:
        self.policy_net, self.target_net = QNet(), QNet()
        self.target_net.load_state_dict(self.policy_net.state_dict())
        self.optimizer = torch.optim.Adam(self.policy_net.parameters(), lr=5e-4)
        self.memory: deque = deque(maxlen=20_000)
        self.gamma, self.epsilon = 0.97, 1.0

    def act(self, state: torch.Tensor) -> int:
        self.epsilon = max(0.1, self.epsilon * 0.9995)
        if random.random() < self.epsilon:
            return random.randrange(ACTIONS)
        with torch.no_grad():
            return int(self.policy_net(state).argmax())

    def learn(self, batch_size: int = 64) -> torch.Tensor:
        state, action, reward, following, done = zip(*random.sample(self.memory, batch_size), strict=True)
        q = self.policy_net(torch.stack(state)).gather(1, torch.tensor(action)[:, None]).squeeze(1)
        with torch.no_grad():
            best = self.target_net(torch.stack(following)).max(1).values
        target = torch.tensor(reward) + self.gamma * best * (1 - torch.tensor(done).float())
        loss = (q - target).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def synchronise(self) -> None:
        self.target_net.load_state_dict(self.policy_net.state_dict())


def main() -> None:
    args = options(__doc__)
    random.seed(args.seed)
    progress = Progress(args)
    grid, agent = Grid(), Agent()
    state, returned, returns = grid.reset(), 0.0, deque(maxlen=100)
    while True:
        for _ in range(8):
            action = agent.act(state)
            following, reward, done = grid.step(action)
            agent.memory.append((state, action, reward, following, done))
            state, returned = following, returned + reward
            if done:
                returns.append(returned)
                state, returned = grid.reset(), 0.0
        if len(agent.memory) < 512:
            continue
        loss = agent.learn()
        progress.step(loss.item())
        if progress.steps % 100 == 0:
            agent.synchronise()
        if progress.steps % 500 == 0:
            print(f"update {progress.steps} return {sum(returns) / len(returns):.3f}")


if __name__ == "__main__":
    main()
