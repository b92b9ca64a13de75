"""Distributions over actions as functions of one parameter tensor [..., P].

No ``torch.distributions``: its objects and checks cost several times the arithmetic on an actor's batches.

Sampling [1024, 2] logits on one CPU thread, microseconds: ``multinomial`` 110, exponential race 96, inverse
CDF 62, Gumbel from uniforms 24 ([1024, 6]: 256, 240, 126, 49), and for two actions one uniform against
a sigmoid 13. So: the last for two actions, Gumbel for more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.api import Action
from shoal.fast import small_batch
from shoal.ops import forbid

_LOG_2PI = math.log(2 * math.pi)
_TINY = torch.finfo(torch.float32).tiny


def sample_categorical(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return actions int64 [...] sampled from logits [..., A]."""
    return _categorical(logits, _uniform(logits.shape[:-1], logits.shape[-1], generator, logits.device))


def _uniform(
    shape: Sequence[int], classes: int, generator: torch.Generator | None, device: torch.device | str
) -> Tensor:
    """Return the uniform random numbers in [0, 1) for a choice among ``classes``: one for each element of ``shape`` if
    there are two classes, else one for each class."""
    return torch.rand((*shape, *([] if classes == 2 else [classes])), device=device, generator=generator)


def _categorical(logits: Tensor, u: Tensor) -> Tensor:
    """Return actions int64 [...] for logits [..., A] and their ``_uniform`` numbers, which are overwritten."""
    if logits.shape[-1] == 2:
        if logits.ndim == 2 and small_batch.is_small_batch(u):
            return small_batch.categorical(logits, u)
        return (u < torch.sigmoid(logits[..., 1] - logits[..., 0])).long()
    if u.ndim == 2 and small_batch.is_small_batch(u):
        return small_batch.categorical(logits, u)
    # The logarithm of u = 0 would be infinite and an action of logit -inf could win, so u is at least the smallest
    # float
    return (logits - u.clamp_min_(_TINY).log_().neg_().log_()).argmax(-1)


class ActionDistribution:
    """The distribution of actions [..., *action.shape] described by parameters [..., P].

    P: the logits of a discrete action; the logits of all parts of a multi_discrete action; the means and then the log
    standard deviations of a continuous action (2 d); for a mixed action, those of the discrete parts and then those of
    the continuous one. Log-probabilities and entropies are float32 and summed over parts or dimensions. An action with
    a logit of minus infinity (``ops.forbid``) has probability 0, and contributes neither to the entropy nor to
    gradients.
    """

    def __init__(self, action: Action):
        self.action = action
        self.kind = action.kind
        self.sizes = list(action.sizes)
        self.logits = sum(action.sizes)
        self.params_size = self.logits + 2 * len(action.low)
        if action.kind == "mixed":
            self.choices = ActionDistribution(Action("multi_discrete", action.sizes))
            self.box = ActionDistribution(Action("continuous", low=action.low, high=action.high))

    def _parts(self, params: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.split(params, self.sizes, -1))

    def parts(self, params: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors within parameters [..., P]: logits, means and log standard deviations, whichever the
        action has."""
        logits, box = params[..., : self.logits], params[..., self.logits :]
        return (*((logits,) if self.sizes else ()), *(box.chunk(2, -1) if self.action.low else ()))

    def _both(self, params: Tensor, action: Tensor | None = None) -> list[tuple[ActionDistribution, Tensor, Any]]:
        """Return the discrete and the continuous distribution of a mixed action, each with its parameters and its
        actions."""
        cut = len(self.sizes)
        actions = (None, None) if action is None else (action[..., :cut], action[..., cut:])
        return [
            (self.choices, params[..., : self.logits], actions[0]), (self.box, params[..., self.logits :], actions[1]),
        ]  # fmt: skip

    def forbid(self, params: Tensor, allowed: Tensor | None) -> Tensor:
        """Return the parameters [..., P] with logits of minus infinity where ``allowed`` (bool [..., logits]; None:
        all) is False."""
        if self.kind != "mixed" or allowed is None:
            return forbid(params, allowed)
        return torch.cat((forbid(params[..., : self.logits], allowed), params[..., self.logits :]), -1)

    def sample(self, params: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.chosen(params, self.draw(params.shape[:-1], generator, params.device))

    def draw(
        self, shape: Sequence[int], generator: torch.Generator | None = None, device: torch.device | str = "cpu"
    ) -> list[Tensor]:
        """Return the random numbers, each ``[*shape, ...]``, from which ``chosen`` makes actions for parameters of
        shape ``[*shape, P]``. They depend on the generator alone."""
        drawn = [_uniform(shape, classes, generator, device) for classes in self.sizes]
        if low := self.action.low:
            drawn.append(torch.randn((*shape, len(low)), device=device, generator=generator))
        return drawn

    def chosen(self, params: Tensor, drawn: Sequence[Tensor]) -> Tensor:
        """Return the actions that the random numbers ``drawn``, which are overwritten, select from the distributions
        ``params`` [..., P]."""
        params = params.detach().float()
        if self.kind == "discrete":
            return _categorical(params, drawn[0])
        if self.kind == "multi_discrete":
            return torch.stack([_categorical(p, u) for p, u in zip(self._parts(params), drawn, strict=True)], -1)
        if self.kind == "mixed":
            (choices, first, _), (box, last, _) = self._both(params)
            return torch.cat((choices.chosen(first, drawn[:-1]).float(), box.chosen(last, drawn[-1:])), -1)
        mean, log_std = params.chunk(2, -1)
        return drawn[0].mul_(log_std.exp()).add_(mean)

    def mode(self, params: Tensor) -> Tensor:
        params = params.detach().float()
        if self.kind == "discrete":
            return params.argmax(-1)
        if self.kind == "multi_discrete":
            return torch.stack([p.argmax(-1) for p in self._parts(params)], -1)
        if self.kind == "mixed":
            return torch.cat([dist.mode(p).float() for dist, p, _ in self._both(params)], -1)
        return params.chunk(2, -1)[0].clone()

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Return log-probabilities [...] of actions [..., *shape] under params [..., P]."""
        params = params.float()
        if self.kind == "discrete":
            return _chosen(*_log_probs(params), action)
        if self.kind == "multi_discrete":
            parts = [_chosen(*_log_probs(p), action[..., i]) for i, p in enumerate(self._parts(params))]
            return torch.stack(parts, -1).sum(-1)
        if self.kind == "mixed":
            return torch.stack([dist.log_prob(p, a) for dist, p, a in self._both(params, action)], -1).sum(-1)
        mean, log_std = params.chunk(2, -1)
        z = (action - mean) * (-log_std).exp()
        return (-0.5 * z.square() - log_std).sum(-1) - 0.5 * _LOG_2PI * mean.shape[-1]

    def evaluate(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``log_prob`` and ``entropy``, [...] each. For a discrete action both come from one softmax."""
        if self.kind != "discrete":
            return self.log_prob(params, action), self.entropy(params)
        logs, axis = _log_probs(params.float())
        return _chosen(logs, axis, action), _entropy(logs, axis)

    def entropy(self, params: Tensor) -> Tensor:
        """Return entropies [...] for params [..., P]."""
        params = params.float()
        if self.kind == "discrete":
            return _entropy(*_log_probs(params))
        if self.kind == "multi_discrete":
            return torch.stack([_entropy(*_log_probs(p)) for p in self._parts(params)], -1).sum(-1)
        if self.kind == "mixed":
            return torch.stack([dist.entropy(p) for dist, p, _ in self._both(params)], -1).sum(-1)
        log_std = params.chunk(2, -1)[1]
        return (log_std + 0.5 * (1 + _LOG_2PI)).sum(-1)


def _log_probs(logits: Tensor) -> tuple[Tensor, int]:
    """Return log-probabilities of logits [..., A] and the axis of their A classes.

    If there are few classes, that axis is moved to the front, because operations along a short last axis process one
    row at a time.
    """
    if logits.shape[-1] <= 32:
        return logits.movedim(-1, 0).contiguous().log_softmax(0), 0
    return logits.log_softmax(-1), -1


def _chosen(logs: Tensor, axis: int, action: Tensor) -> Tensor:
    return logs.gather(axis, action.long().unsqueeze(axis)).squeeze(axis)


def _entropy(logs: Tensor, axis: int) -> Tensor:
    return -(logs.exp() * logs.clamp(min=-1e30)).sum(axis)  # 0 log 0 = 0, also for logits of -inf
