"""PPO on a pole on a cart, with many carts at once, in the style of CleanRL."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from progress import Progress, options
from torch.distributions.categorical import Categorical

NUM_ENVS, NUM_STEPS, MINIBATCHES, EPOCHS, NUM_UPDATES = 8, 64, 4, 4, 3000
GAMMA, GAE_LAMBDA, CLIP, ENT_COEF, VF_COEF, MAX_GRAD_NORM, LR = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5, 2.5e-3


class Carts:
    """Push the carts left or right, so that their poles stay up; an episode ends after 200 moves at most."""

    def __init__(self, seed: int) -> None:
        self.source = np.random.default_rng(seed)
        self.state = np.zeros((NUM_ENVS, 4))
        self.age = np.zeros(NUM_ENVS, dtype=np.int64)

    def reset(self) -> np.ndarray:
        self.state = self.source.uniform(-0.05, 0.05, (NUM_ENVS, 4))
        self.age[:] = 0
        return self.state.astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
        x, speed, angle, turn = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        part = (force + 0.05 * turn**2 * np.sin(angle)) / 1.1
        bend = (9.8 * np.sin(angle) - np.cos(angle) * part) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        push = part - 0.05 * bend * np.cos(angle) / 1.1
        self.state = np.stack(
            [x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend], 1
        )
        self.age += 1
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 12 * math.pi / 180)
        done = fallen | (self.age >= 200)
        lengths = self.age[done].tolist()
        self.state[done] = self.source.uniform(-0.05, 0.05, (int(done.sum()), 4))
        self.age[done] = 0
        return self.state.astype(np.float32), np.ones(NUM_ENVS, dtype=np.float32), done, lengths


def layer_init(layer: nn.Linear, std: float = math.sqrt(2)) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
            layer_init(nn.Linear(64, 2), std=0.01),
        )

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x)

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


if __name__ == "__main__":
    args = options(__doc__)
    progress = Progress(args)
    np.random.seed(args.seed)
    envs = Carts(args.seed)
    agent = Agent()
    optimizer = optim.Adam(agent.parameters(), lr=LR, eps=1e-5)

    obs = torch.zeros(NUM_STEPS, NUM_ENVS, 4)
    actions = torch.zeros(NUM_STEPS, NUM_ENVS, dtype=torch.long)
    logprobs, rewards, dones, values = torch.zeros(4, NUM_STEPS, NUM_ENVS)
    next_obs = torch.from_numpy(envs.reset())
    next_done = torch.zeros(NUM_ENVS)
    episodes: list[int] = []

    for update in itertools.count(1):
        frac = max(0.0, 1.0 - (update - 1.0) / NUM_UPDATES)
        optimizer.param_groups[0]["lr"] = frac * LR

        for step in range(NUM_STEPS):
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            next_state, reward, done, lengths = envs.step(action.numpy())
            rewards[step] = torch.from_numpy(reward)
            next_obs, next_done = torch.from_numpy(next_state), torch.from_numpy(done).float()
            episodes += lengths

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(-1)
            advantages = torch.zeros_like(rewards)
            lastgaelam = torch.zeros(NUM_ENVS)
            for t in reversed(range(NUM_STEPS)):
                if t == NUM_STEPS - 1:
                    nextnonterminal, nextvalues = 1.0 - next_done, next_value
                else:
                    nextnonterminal, nextvalues = 1.0 - dones[t + 1], values[t + 1]
                delta = rewards[t] + GAMMA * nextvalues * nextnonterminal - values[t]
                lastgaelam = delta + GAMMA * GAE_LAMBDA * nextnonterminal * lastgaelam
                advantages[t] = lastgaelam
            returns = advantages + values

        b_obs, b_actions = obs.reshape(-1, 4), actions.reshape(-1)
        b_logprobs, b_advantages = logprobs.reshape(-1), advantages.reshape(-1)
        b_returns = returns.reshape(-1)
        total = 0.0
        for _ in range(EPOCHS):
            for mb_inds in torch.randperm(NUM_STEPS * NUM_ENVS).chunk(MINIBATCHES):
                mb_obs, mb_actions = b_obs[mb_inds], b_actions[mb_inds]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(mb_obs, mb_actions)
                ratio = (newlogprob - b_logprobs[mb_inds]).exp()
                mb_advantages = b_advantages[mb_inds]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
                pg_loss1 = -mb_advantages * ratio
                pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)
                pg_loss = torch.max(pg_loss1, pg_loss2).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
                loss = pg_loss - ENT_COEF * entropy.mean() + VF_COEF * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
                optimizer.step()
                total += loss.item()
        progress.step(total / (EPOCHS * MINIBATCHES))
        if update % 20 == 0 and episodes:
            print(f"update {update}: episodes last {np.mean(episodes[-100:]):.1f} moves")
            del episodes[:-100]
