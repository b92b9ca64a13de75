"""Pure functions on tensors, time-major ``[T, B, ...]``: the arithmetic that the systems share."""

from shoal.fast.precomputed import loss_with_gradient
from shoal.ops.auxiliary import central_grid, pixel_change, reward_class
from shoal.ops.cem import Best, cem
from shoal.ops.evolution import ars_weights, centred_ranks, es_weights, weighted_noise
from shoal.ops.gradient_norm import clip, excess, global_norm
from shoal.ops.masks import draw_allowed, forbid, random_actions
from shoal.ops.mixture import (
    categorical_mean,
    mixture_cross_entropy,
    mixture_log_prob,
    mixture_mean,
    mixture_sample,
)
from shoal.ops.moments import MOMENTS, masked_mean, masked_moments, masked_normalised, merge_moments, moments
from shoal.ops.noise import scale_noise
from shoal.ops.optim import SGD, AdaGrad, Adam, RMSProp
from shoal.ops.rescaled import rescaled_n_step_targets
from shoal.ops.returns import VTrace, gae, lambda_returns, n_step_returns, vtrace
from shoal.ops.sampling import epsilon_ladder, importance_weights, linear, sequence_priority
from shoal.ops.shared_rules import Replace, SharedRMSProp
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
    "MOMENTS",
    "SGD",
    "AdaGrad",
    "Adam",
    "Best",
    "RMSProp",
    "Replace",
    "SharedRMSProp",
    "VTrace",
    "ars_weights",
    "categorical_cross_entropy",
    "categorical_kl",
    "categorical_mean",
    "categorical_outside",
    "categorical_projection",
    "cem",
    "central_grid",
    "centred_ranks",
    "clip",
    "double_q_target",
    "draw_allowed",
    "dueling",
    "epsilon_ladder",
    "es_weights",
    "excess",
    "explained_variance",
    "forbid",
    "gae",
    "global_norm",
    "huber",
    "importance_weights",
    "lambda_returns",
    "linear",
    "loss_with_gradient",
    "masked_mean",
    "masked_moments",
    "masked_normalised",
    "merge_moments",
    "mixture_cross_entropy",
    "mixture_log_prob",
    "mixture_mean",
    "mixture_sample",
    "moments",
    "n_step_returns",
    "pixel_change",
    "quantile_huber",
    "random_actions",
    "rescaled_n_step_targets",
    "reward_class",
    "scale_noise",
    "select",
    "sequence_priority",
    "signed_hyperbolic",
    "signed_hyperbolic_inverse",
    "vtrace",
    "weighted_noise",
]
