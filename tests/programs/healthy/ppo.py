"""Proximal policy optimization on a balance task: eight environments, GAE, four epochs a rollout."""

import torch
from progress import Progress, options
from torch import nn

ENVIRONMENTS, HORIZON, EPOCHS, MINIBATCHES = 8, 64, 4, 4


class Balance:
    """A pole to be kept upright by pushes to the left and right; 1 for each step that it stands."""

    def __init__(self):
        self.state = 0.05 * torch.randn(ENVIRONMENTS, 4)
        self.age = torch.zeros(ENVIRONMENTS)

    def step(self, action):
        x, v, angle, turn = self.state.unbind(1)
        force = action.float() * 20 - 10
        temp = (force + 0.05 * turn**2 * angle.sin()) / 1.1
        bend = (9.8 * angle.sin() - angle.cos() * temp) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        push = temp - 0.05 * bend * angle.cos() / 1.1
        self.state = torch.stack([x + 0.02 * v, v + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend], 1)
        self.age += 1
        done = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21) | (self.age >= 200)
        self.state[done] = 0.05 * torch.randn(int(done.sum()), 4)
        lengths = self.age[done].tolist()
        self.age[done] = 0
        return torch.ones(ENVIRONMENTS), done, lengths


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(self.layer(4, 64, 1.4), nn.Tanh(), self.layer(64, 64, 1.4), nn.Tanh())
        self.policy, self.value = self.layer(64, 2, 0.01), self.layer(64, 1, 1.0)

    @staticmethod
    def layer(inputs, outputs, gain):
        found = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(found.weight, gain)
        nn.init.zeros_(found.bias)
        return found

    def forward(self, states):
        hidden = self.body(states)
        return torch.distributions.Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(1)


args = options(__doc__)
progress = Progress(args)
total = args.steps or 40000
environment, agent = Balance(), Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
scheduler = torch.optim.lr_scheduler.LinearLR(
    optimizer, 1.0, 0.05, total_iters=total // (EPOCHS * MINIBATCHES)
)
lengths = []
while progress.steps < total:
    rows = []
    with torch.no_grad():
        for _ in range(HORIZON):
            state = environment.state.clone()
            policy, value = agent(state)
            action = policy.sample()
            reward, done, ended = environment.step(action)
            lengths += ended
            rows.append((state, action, policy.log_prob(action), value, reward, done.float()))
        states, actions, logs, values, rewards, dones = (
            torch.stack(column) for column in zip(*rows, strict=False)
        )
        following = agent(environment.state)[1]
        advantages, running = torch.zeros_like(rewards), torch.zeros(ENVIRONMENTS)
        for t in reversed(range(HORIZON)):
            delta = rewards[t] + 0.99 * following * (1 - dones[t]) - values[t]
            running = delta + 0.99 * 0.95 * (1 - dones[t]) * running
            advantages[t], following = running, values[t]
        returns = advantages + values
    flat = [each.flatten(0, 1) for each in (states, actions, logs, advantages, returns)]
    for _ in range(EPOCHS):
        for rows in torch.randperm(ENVIRONMENTS * HORIZON).chunk(MINIBATCHES):
            state, action, log, advantage, target = (each[rows] for each in flat)
            policy, value = agent(state)
            ratio = (policy.log_prob(action) - log).exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = -surrogate + 0.5 * ((value - target) ** 2).mean() - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            progress.step(loss.item())
    scheduler.step()
    del lengths[:-50]
    if progress.steps % 1600 == 0 and lengths:
        print(f"length of an episode {sum(lengths) / len(lengths):.1f}", flush=True)
