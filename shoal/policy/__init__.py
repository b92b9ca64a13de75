"""A trained policy: used, exported, filmed."""

from shoal.policy.policy import Policy as Policy
