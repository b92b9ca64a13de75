"""Pure functions on tensors, time-major ``[T, B, ...]``: the arithmetic that the systems share."""

from shoal.ops.actor_critic import actor_critic_loss, discrete_actor_critic_loss
from shoal.ops.auxiliary import central_grid, pixel_change, reward_class
from shoal.ops.cem import Best, cem
from shoal.ops.dpg import dpg_loss
from shoal.ops.evolution import ars_weights, centred_ranks, es_weights, weighted_noise
from shoal.ops.masks import draw_allowed, forbid
from shoal.ops.mixture import (
    categorical_mean,
    mixture_cross_entropy,
    mixture_log_prob,
    mixture_mean,
    mixture_sample,
)
from shoal.ops.noise import scale_noise
from shoal.ops.optim import SGD, AdaGrad, Adam, RMSProp
from shoal.ops.ppo import discrete_ppo_loss, ppo_loss
from shoal.ops.rescaled import rescaled_n_step_targets, sequence_td_loss
from shoal.ops.returns import VTrace, gae, lambda_returns, n_step_returns, vtrace
from shoal.ops.sampling import epsilon_ladder, importance_weights, linear, sequence_priority
from shoal.ops.shared_rules import Replace, SharedRMSProp
from shoal.ops.td import categorical_td_loss, quantile_td_loss, td_loss
from shoal.ops.value import (
    categorical_cross_entropy,
    categorical_kl,
    categorical_outside,
    categorical_projection,
    double_q_target,
    dueling,
    explained_variance,
    huber,
    quantile_huber,
    select,
    signed_hyperbolic,
    signed_hyperbolic_inverse,
)

__all__ = [
    "SGD",
    "AdaGrad",
    "Adam",
    "Best",
    "RMSProp",
    "Replace",
    "SharedRMSProp",
    "VTrace",
    "actor_critic_loss",
    "ars_weights",
    "categorical_cross_entropy",
    "categorical_kl",
    "categorical_mean",
    "categorical_outside",
    "categorical_projection",
    "categorical_td_loss",
    "cem",
    "central_grid",
    "centred_ranks",
    "discrete_actor_critic_loss",
    "discrete_ppo_loss",
    "double_q_target",
    "dpg_loss",
    "draw_allowed",
    "dueling",
    "epsilon_ladder",
    "es_weights",
    "explained_variance",
    "forbid",
    "gae",
    "huber",
    "importance_weights",
    "lambda_returns",
    "linear",
    "mixture_cross_entropy",
    "mixture_log_prob",
    "mixture_mean",
    "mixture_sample",
    "n_step_returns",
    "pixel_change",
    "ppo_loss",
    "quantile_huber",
    "quantile_td_loss",
    "rescaled_n_step_targets",
    "reward_class",
    "scale_noise",
    "select",
    "sequence_priority",
    "sequence_td_loss",
    "signed_hyperbolic",
    "signed_hyperbolic_inverse",
    "td_loss",
    "vtrace",
    "weighted_noise",
]
