"""PPO on Atari in PyTorch, eager, with the settings of CleanRL's `ppo_atari_envpool.py`.

jaxrl's peer in `ppo_throughput.py`: the same environments, network, losses, epochs and minibatches.
CleanRL's layout of images is PyTorch's default; `channels_last` suits a CPU better. The network is
on the GPU if there is one.
"""

from __future__ import annotations

import importlib
import time
from typing import Any, NamedTuple

import numpy as np

from jaxrl.distributed.spread import num_cores
from jaxrl.networks import torsos
from tasks import Task

torch: Any = importlib.import_module("torch")


class Batch(NamedTuple):
    """Transitions, leaves `[B, ...]`."""

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    advantage: Any


def orthogonal(layer: Any, gain: float = 2**0.5) -> Any:
    """Give a layer CleanRL's initial weights and return it."""
    torch.nn.init.orthogonal_(layer.weight, gain)
    torch.nn.init.zeros_(layer.bias)
    return layer


TORSOS = {
    "nature_cnn": (torsos.NATURE_CONVOLUTIONS, 512),
    "ga3c_cnn": (torsos.GA3C_CONVOLUTIONS, 256),
}


class ActorCritic(torch.nn.Module):
    """A convolutional torso, a policy and a value."""

    def __init__(self, torso: str, num_actions: int, channels_last: bool):
        super().__init__()
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        convolutions, width = TORSOS[torso]
        layers, channels, side = [], 4, 84
        for features, size, stride in convolutions:
            convolution = torch.nn.Conv2d(channels, features, size, stride)
            layers += [orthogonal(convolution), torch.nn.ReLU()]
            channels, side = features, (side - size) // stride + 1
        last = orthogonal(torch.nn.Linear(channels * side**2, width))
        self.torso = torch.nn.Sequential(*layers, torch.nn.Flatten(), last, torch.nn.ReLU())
        self.policy = orthogonal(torch.nn.Linear(width, num_actions), 0.01)
        self.value = orthogonal(torch.nn.Linear(width, 1), 1.0)
        self.to(memory_format=self.layout)

    def forward(self, obs: Any) -> tuple[Any, Any]:
        """Return the distribution over actions and the value for uint8 images `[B, 4, 84, 84]`."""
        images = obs.to(torch.float32, memory_format=self.layout) / 255
        features = self.torso(images)
        distribution = torch.distributions.Categorical(logits=self.policy(features))
        return distribution, self.value(features)[:, 0]


class TorchPPO:
    """An agent in training (`peers.Learner`)."""

    compile_seconds = None

    def __init__(self, task: Task, envs: Any, channels_last: bool):
        self.config, self.envs = task.config, envs
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        network = ActorCritic(task.config.torso, int(envs.action_space.n), channels_last)
        self.network = network.to(self.device)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), task.config.learning_rate, eps=task.config.adam_eps
        )
        self.num_parameters = sum(x.numel() for x in self.network.parameters())
        self.obs, self.ended = envs.reset()[0], np.zeros(task.num_envs, bool)

    def __call__(self) -> float:
        torch.set_num_threads(num_cores())
        began = time.perf_counter()
        batch, valid = self.rollout()
        self.learn(batch)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return valid / (time.perf_counter() - began)

    @torch.no_grad()
    def rollout(self) -> tuple[Batch, int]:
        """Return a batch of transitions and the number of valid ones."""
        rows, valid = [], 0
        for _ in range(self.config.num_steps):
            obs, first = self.tensor(self.obs.copy()), self.ended
            distribution, value = self.network(obs)
            action = distribution.sample()
            self.obs, reward, terminated, truncated, _ = self.envs.step(action.cpu().numpy())
            self.ended = terminated | truncated
            valid += int((~first).sum())
            reward, ended = self.tensor(reward), self.tensor(self.ended)
            rows.append((obs, action, distribution.log_prob(action), value, reward, ended))
        obs, action, log_prob, value, reward, ended = (
            torch.stack(column) for column in zip(*rows, strict=True)
        )
        _, last_value = self.network(self.tensor(self.obs.copy()))
        advantage = self.advantages(reward, value, last_value, ended)
        columns = (obs, action, log_prob, value, advantage)
        return Batch(*(column.flatten(0, 1) for column in columns)), valid

    def tensor(self, array: np.ndarray) -> Any:
        """Return an array as a tensor on the network's device."""
        return torch.from_numpy(array).to(self.device)

    def advantages(self, reward: Any, value: Any, last_value: Any, ended: Any) -> Any:
        """Return generalized advantage estimates `[T, N]`."""
        config = self.config
        continues = (~ended).float()
        following = torch.cat([value[1:], last_value[None]])
        delta = reward + config.gamma * continues * following - value
        advantages, advantage = torch.zeros_like(delta), torch.zeros_like(last_value)
        for t in reversed(range(len(delta))):
            advantage = delta[t] + config.gamma * config.gae_lambda * continues[t] * advantage
            advantages[t] = advantage
        return advantages

    def learn(self, batch: Batch) -> None:
        """Learn from a batch for all epochs of an update."""
        size = len(batch.action)
        for _ in range(self.config.num_epochs):
            order = torch.randperm(size, device=self.device)
            for rows in order.split(size // self.config.num_minibatches):
                self.optimizer.zero_grad()
                self.loss(Batch(*(column[rows] for column in batch))).backward()
                torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_grad_norm)
                self.optimizer.step()

    def loss(self, batch: Batch) -> Any:
        """Return PPO's loss, with a clipped value loss."""
        config, clip = self.config, self.config.clip_epsilon
        distribution, value = self.network(batch.obs)
        ratio = (distribution.log_prob(batch.action) - batch.log_prob).exp()
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        policy_gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        target = batch.advantage + batch.value
        clipped = batch.value + (value - batch.value).clamp(-clip, clip)
        value_loss = torch.max((value - target) ** 2, (clipped - target) ** 2).mean() / 2
        entropy = distribution.entropy().mean()
        return config.value_coef * value_loss - policy_gain.mean() - config.entropy_coef * entropy
