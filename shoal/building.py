"""Everything that a system of your own is built from, in one import; docs/tutorials/own-system.md shows how.

The rest of the package is private: it may change from one version to the next.
"""

from shoal.api import (
    Act as Act,
    Action as Action,
    Agent as Agent,
    Batch as Batch,
    Context as Context,
    EnvSpec as EnvSpec,
    Field as Field,
    Learner as Learner,
    Observation as Observation,
    ParamsReader as ParamsReader,
    ParamsWriter as ParamsWriter,
    Reader as Reader,
    Role as Role,
    Spec as Spec,
    Stateful as Stateful,
    Tensors as Tensors,
    Update as Update,
    UsageError as UsageError,
    Writer as Writer,
    observations as observations,
)
from shoal.envs import make as make
from shoal.learning.actor_critic import (
    ActorCriticAgent as ActorCriticAgent,
    ActorCriticConfig as ActorCriticConfig,
    boundaries as boundaries,
)
from shoal.learning.agent import NetworkAgent as NetworkAgent
from shoal.learning.algorithm import Algorithm as Algorithm
from shoal.learning.learner import SGDLearner as SGDLearner
from shoal.learning.off_policy import OffPolicy as OffPolicy, QLearningConfig as QLearningConfig
from shoal.learning.optimiser import OptimiserConfig as OptimiserConfig, make_optimiser as make_optimiser
from shoal.learning.ppo_learner import PPOLearner as PPOLearner
from shoal.nets import MLP as MLP
from shoal.nets.actor_critic import ActorCritic as ActorCritic, PolicyValue as PolicyValue
from shoal.nets.box_network import BoxNetwork as BoxNetwork, Critic as Critic
from shoal.nets.gradients import without_gradients as without_gradients
from shoal.nets.outputs import Outputs as Outputs, detached as detached
from shoal.nets.q_network import QNetwork as QNetwork
from shoal.nets.recurrent import start_state as start_state
from shoal.nets.recurrent_q_network import RecurrentQNetwork as RecurrentQNetwork
from shoal.ops import (
    gae as gae,
    importance_weights as importance_weights,
    lambda_returns as lambda_returns,
    n_step_returns as n_step_returns,
    vtrace as vtrace,
)
from shoal.program import Channel as Channel, Program as Program
from shoal.records.loggers import BackEnd as BackEnd
from shoal.replay import Ratio as Ratio, SequenceSpec as SequenceSpec, TableSpec as TableSpec
from shoal.replay.sampler import Sampler as Sampler, live_rows as live_rows
from shoal.roles.actor import ActorRole as ActorRole, unroll_spec as unroll_spec
from shoal.roles.learner import LearnerRole as LearnerRole
from shoal.runtime.launch import Runtime as Runtime
from shoal.serial.runtime import SerialRuntime as SerialRuntime
from shoal.settings.ranges import (
    Count as Count,
    Fraction as Fraction,
    Natural as Natural,
    NonNegative as NonNegative,
    OnlyWith as OnlyWith,
    Positive as Positive,
)
from shoal.settings.schedule import Linear as Linear, Scheduled as Scheduled, at as at, linear as linear
from shoal.systems.dqn import QAgent as QAgent, QLearning as QLearning, td_loss as td_loss
from shoal.systems.r2d2 import (
    RecurrentQAgent as RecurrentQAgent,
    RecurrentQConfig as RecurrentQConfig,
    RecurrentQLearning as RecurrentQLearning,
)
from shoal.systems.recurrent_ppo import PPO as PPO, PPOConfig as PPOConfig, ppo_loss as ppo_loss
from shoal.topology.channels import (
    parameters as parameters,
    queue as queue,
    replay as replay,
    stream as stream,
    trajectories as trajectories,
)
from shoal.topology.config import SystemConfig as SystemConfig, require_actions as require_actions
from shoal.topology.parameter_server import ParameterServer as ParameterServer, ServerConfig as ServerConfig
from shoal.topology.replayed import (
    ReplayConfig as ReplayConfig,
    TransitionConfig as TransitionConfig,
    descent as descent,
    replay_program as replay_program,
)
from shoal.topology.roles import (
    actor as actor,
    actors_and_learner as actors_and_learner,
    begin as begin,
    learner as learner,
)

__all__ = [name for name in globals() if not name.startswith("_")]
