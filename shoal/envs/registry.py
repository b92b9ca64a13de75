"""Resolution of environment names: known names, suggestions, user factories, and the choice of a back end."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from shoal import own_code
from shoal.api import UsageError
from shoal.extras import pip_install
from shoal.settings.kinds import env_kind, envpool_id, gymnasium_id, is_atari
from shoal.types import Values
from shoal.words import counted

from . import many_agents, pool, toy, wrappers
from .advice import constructing, no_env, offered
from .device_cartpole import ON_DEVICE
from .from_callable import CallableEnv, require_again
from .installed import import_package, saying
from .options import Backend, EnvOptions
from .own_device import OwnDeviceEnvs, on_any_device
from .through_numpy import ThroughNumPy
from .types import Env, Vector
from .unknown import did_you_mean, ids_of, meaning_a_known, of_old_gym, unknown_environment

# packages that register environments, by patterns of ids
PACKAGES = {
    "ale_py": ("ALE/", "NoFrameskip-v4"), "minigrid": ("MiniGrid-", "BabyAI-"), "minatar": ("MinAtar/",),
}  # fmt: skip
MAX_ONE_BY_ONE_ENVS = 3  # up to this number, Gymnasium's vectorised versions are slower than stepping one by one
BUILT_IN: dict[str, Callable[..., Vector]] = {
    **{f"toy:{name}": factory for name, factory in toy.TOYS.items()},
    "shoal/CartPoleNoVelocity-v1": wrappers.CartPoleNoVelocity,
    **{name: functools.partial(ThroughNumPy, make) for name, make in ON_DEVICE.items()},
}
OWN = ("toy:", "pointgoal:", "device:")  # prefixes of Shoal's own names
POINTGOAL = {  # name -> (sensor, layout)
    f"pointgoal:{sensor}{suffix}": (sensor, suffix[1:] or "rooms")
    for sensor in ("depth", "rgb", "blind")
    for suffix in ("", "-room", "-maze")
}


def held_out(env: str) -> Values:
    """Return constructor arguments with which an environment uses what is reserved for evaluations; {} for most."""
    return {"split": "validation"} if env in POINTGOAL else {}


def _point_goal(sensor: str, layout: str, num_envs: int, **given: Any) -> Any:
    from .pointgoal import PointGoal  # imports numba

    return PointGoal(num_envs, sensor, layout, **given)


BUILT_IN |= {name: functools.partial(_point_goal, sensor, layout) for name, (sensor, layout) in POINTGOAL.items()}


@dataclass(frozen=True)
class Found:
    """How an environment is built and stepped. vector: builds all of them from their number; single: builds one; few:
    builds one of up to ``MAX_ONE_BY_ONE_ENVS``, which are then stepped one by one in place of ``vector``."""

    id: str
    backend: Backend
    why: str
    single: Callable[[], Env] | None = None
    vector: Callable[[int], Vector] | None = None
    few: Callable[[], Env] | None = None
    game: str = ""  # for Atari: the ROM
    kwargs: Values = field(default_factory=dict)


def foreign(env: str, options: EnvOptions) -> bool:
    """Return True if the environment's constructor is a stranger's code: not Shoal's, ALE's or Gymnasium's own. Makes
    nothing. Raises UsageError for an unknown name."""
    require_again(env)
    if env in BUILT_IN or env.startswith(OWN) or is_atari(env):
        return False
    if is_factory(env):
        return True
    registered = _registered(_spelled(env), options)
    return registered is None or not str(registered.entry_point).startswith("gymnasium.envs.")


def is_factory(env: str) -> bool:
    """Return True if an environment is made by the user's code: a function or class, as an object or as
    ``module:name``."""
    return isinstance(env, CallableEnv) or (":" in env and env not in BUILT_IN and not env.startswith(OWN))


def find(env: str, options: EnvOptions) -> Found:
    require_again(env)
    if isinstance(env, CallableEnv):
        return _factory(env, env.factory, options)
    if env in BUILT_IN:
        make_own = BUILT_IN[env]
        given = dict(options.env_kwargs)
        if options.max_episode_steps is not None:
            given["max_episode_steps"] = options.max_episode_steps
        _require(env, options, "gymnasium-vector")

        def own(num: int) -> Any:
            with constructing(env):
                return make_own(num, **given)

        return Found(env, "gymnasium-vector", "Shoal's own, in NumPy", vector=own)
    if env.startswith(OWN):
        raise UsageError(f"unknown environment {env!r}{did_you_mean(env, list(BUILT_IN))}")
    if ":" in env:
        module, _, name = env.rpartition(":")
        with meaning_a_known(env, [*gym.registry, *BUILT_IN]):
            loaded = own_code.load(module, f"environment {env!r}", kind="env")
        if hasattr(loaded, name):
            return _factory(env, getattr(loaded, name), options)
        asked: list[str] = []
        if name not in gym.registry and callable(register := getattr(loaded, "register_envs", None)):
            with constructing(env):
                asked = _register(register)
        if name not in gym.registry:
            if old := of_old_gym(name, module):
                raise UsageError(old)
            near = did_you_mean(name, [*offered(loaded), *ids_of(loaded.__name__), *asked])
            package = loaded.__name__.partition(".")[0]
            listed = "" if near or own_code.is_file(module) else f" (`shoal envs {package}` lists what it registers)"
            raise UsageError(f"module {module!r} has no {name!r}{near or listed}")
        env = name
    env = _spelled(env)
    registered = _registered(env, options)
    if registered is None:
        return Found(env, "envpool", "only EnvPool has it here", vector=lambda num: pool.make(env, num, options))
    own_atari = registered.entry_point == "ale_py.env:AtariEnv"
    return _choose(env, registered, options, own_atari and is_atari(env))


def _spelled(env: str) -> str:
    """Return the id under which an installed package has an environment that another package calls ``env``."""
    if not env.strip():
        raise UsageError(f"'env' expects the name of an environment, found {env!r} (`shoal envs` lists those here)")
    if env.endswith(".py"):
        raise UsageError(f"environment {env!r} is a file: say which of its classes or functions, as in {env}:NAME")
    if env in gym.registry:
        return env
    pooled = envpool_id(env)
    return pooled if pooled != env and pooled in pool.names() else gymnasium_id(env)


def _choose(env: str, registered: EnvSpec, options: EnvOptions, atari: bool) -> Found:
    wanted = options.backend
    if atari:
        if wanted not in ("auto", "ale"):
            raise UsageError(
                f"backend {wanted!r} does not give {env!r} the standard Atari protocol; use 'ale' or 'auto'"
            )
        reason = "Atari: ALE's own C++ vector environment is the fastest on one core"
        return Found(env, "ale", reason, game=registered.kwargs["game"])
    if wanted == "ale":
        raise UsageError(f"backend 'ale' serves only Atari, not {env!r}")
    if wanted in ("auto", "gymnasium-vector") and _has_vector(registered):
        reason = "Gymnasium registers a vectorised version of it"
        singly = wanted == "auto" and registered.entry_point is not None
        few = functools.partial(_make_one, env, options) if singly else None
        return Found(env, "gymnasium-vector", reason, vector=lambda num: _make_vec(env, num, options), few=few)
    if wanted == "gymnasium-vector":
        raise UsageError(f"Gymnasium registers no vectorised version of {env!r}; use 'gymnasium' or 'auto'")
    if registered.entry_point is None and wanted != "envpool":
        why = "additional_wrappers, which a vectorised version cannot have" if wanted == "auto" else "no entry_point"
        raise UsageError(
            f"environment {env!r} cannot be made with backend {wanted!r}: it is registered with a vector_entry_point "
            f"and {why}; register an entry_point too" + ("" if wanted == "auto" else ", or use 'auto'")
        )
    if wanted in ("auto", "envpool"):
        found = _envpool(env, options, explicit=wanted == "envpool")
        if found is not None:
            return found
    reason = "one by one in the actor's process, as no vectorised version of it is known"
    return Found(env, "gymnasium", reason, single=lambda: _make_one(env, options))


def _envpool(env: str, options: EnvOptions, explicit: bool) -> Found | None:
    if env not in pool.names():
        if not explicit:
            return None
        if not pool.installed():
            raise UsageError(f"EnvPool is not installed: {pip_install('envpool')}")
        raise UsageError(f"EnvPool does not have {env!r} in this version; use 'gymnasium' or 'auto'")
    if not explicit and not pool.same_spaces(env, lambda: _make_one(env, options), options):
        return None
    return Found(env, "envpool", "EnvPool has the same id, in C++", vector=lambda num: pool.make(env, num, options))


def _require(env: str, options: EnvOptions, has: Backend) -> None:
    if options.backend not in ("auto", has):
        raise UsageError(f"backend {options.backend!r} does not serve {env!r}; use {has!r} or 'auto'")


def _has_vector(registered: EnvSpec) -> bool:
    return registered.vector_entry_point is not None and not registered.additional_wrappers


def time_limit(options: EnvOptions, own: int | None) -> int | None:
    """Return the time limit to set on an environment with its ``own`` limit (None: none), or None to leave it."""
    bound = options.episode_bound if own is None and options.episode_bound else None
    return options.max_episode_steps or bound


def _make_vec(env: str, num: int, options: EnvOptions) -> Vector:
    kwargs: Values = dict(options.env_kwargs)
    if (limit := time_limit(options, gym.registry[env].max_episode_steps)) is not None:
        kwargs["max_episode_steps"] = limit
    with constructing(env):
        return gym.make_vec(env, num_envs=num, vectorization_mode="vector_entry_point", **kwargs)


def _make_one(env: str, options: EnvOptions) -> Env:
    kwargs: Values = dict(options.env_kwargs)
    with constructing(env):
        limit = time_limit(options, gym.registry[env].max_episode_steps)
        made = gym.make(env, max_episode_steps=limit, disable_env_checker=True, **kwargs)
        return wrappers.DropText(made) if env.startswith(PACKAGES["minigrid"]) else made


def _registered(env: str, options: EnvOptions) -> EnvSpec | None:
    """Return Gymnasium's entry, after importing the package that registers it, or None if only EnvPool has one."""
    missing = ""
    for package, marks in PACKAGES.items():
        if env.startswith(marks) or env.endswith(marks):
            missing = "" if import_package(package) else package
    if env in gym.registry:
        return _current(env)
    if options.backend in ("auto", "envpool") and env in pool.names():
        return None
    if missing:
        # Shoal's own requirements have no extra
        install = "pip install ale-py" if missing == "ale_py" else pip_install(missing)
        raise UsageError(f"environment {env!r} needs {missing}: {install}")
    with saying(f"{env!r} is being looked for among the installed packages"):
        return _among_packages(env)


def _among_packages(env: str) -> EnvSpec:
    """Return Gymnasium's entry after importing all of ``PACKAGES``. Raises UsageError if there is none."""
    for package in PACKAGES:
        import_package(package)
    if env in gym.registry:
        return _current(env)
    if env_kind(env) == "dm_control" and not pool.installed():
        raise UsageError(
            f"environment {env!r} looks like a task of the DeepMind Control Suite, which needs EnvPool: "
            f"{pip_install('envpool')}"
        )
    if old := re.fullmatch(r"([A-Z][A-Za-z]+?)(-ram)?(Deterministic|NoFrameskip|-ram)*-v[0-4]", env):
        now = f"ALE/{old[1]}-v5"
        if now in gym.registry:
            raise UsageError(f"environment {env!r} is an old name of an Atari game: ask for {now!r}")
    if sentence := of_old_gym(env):
        raise UsageError(sentence)
    raise unknown_environment(env, [*gym.registry, *BUILT_IN])


def _current(env: str) -> EnvSpec:
    """Return Gymnasium's entry. Raises UsageError for an old name of an Atari game whose emulator skips frames by
    itself, or shows its memory."""
    found = gym.registry[env]
    if not str(found.entry_point).startswith("ale_py") or is_atari(env):
        return found
    game = found.kwargs.get("game")
    now = [id for id, other in gym.registry.items() if id.startswith("ALE/") and other.kwargs.get("game") == game]
    raise UsageError(
        f"environment {env!r} is an old name of an Atari game, which skips frames by itself: ask for "
        f"{max(now, default='ALE/...-v5')!r}, whose frame_skip, sticky_actions and the like are options"
    )


@functools.cache
def _register(register: Callable[[], object]) -> list[str]:
    """Call the function that registers a package's environments, once, and return the new ids."""
    before = {*gym.registry}
    register()
    return [name for name in gym.registry if name not in before]


def _parameters(factory: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(factory).parameters)
    except ValueError:  # not written in Python
        return []


def _vector(env: str, made: Any, num: int) -> Vector:
    """Call a factory and return its vector environment. Raises UsageError unless it is a vector of ``num``
    environments."""
    lacking = [
        name for name in ("single_observation_space", "single_action_space")
        if not isinstance(getattr(made, name, None), gym.spaces.Space)
    ]  # fmt: skip
    if lacking:
        raise UsageError(
            f"environment {env!r} takes num_envs, so that it should make a gymnasium.vector.VectorEnv: it made "
            f"{type(made).__name__}, which has no {lacking[0]}"
        )
    if made.num_envs != num:
        raise UsageError(
            f"environment {env!r} made {counted(made.num_envs, 'environment')} when it was asked for {num}"
        )
    return cast(Vector, made)


def _factory(env: str, factory: object, options: EnvOptions) -> Found:
    if not callable(factory):
        raise UsageError(f"environment {env!r} is not callable")
    kwargs = options.env_kwargs
    if "num_envs" in _parameters(factory):
        _require(env, options, "gymnasium-vector")
        if options.max_episode_steps is not None:
            raise UsageError(f"environment {env!r} makes a vector environment: give the limit to it in kwargs")

        def vector(num: int) -> Vector:
            if on_any_device(factory):
                return ThroughNumPy(functools.partial(OwnDeviceEnvs, env, factory), num, **kwargs)
            with constructing(env):
                return _vector(env, factory(num_envs=num, **kwargs), num)

        return Found(env, "gymnasium-vector", "your factory takes num_envs", vector=vector)
    _require(env, options, "gymnasium")

    def single() -> Env:
        with constructing(env):
            made: Env = factory(**kwargs)
            if many_agents.is_parallel(made):
                return made
            many_agents.require_parallel(made, env)
            if not isinstance(made, gym.Env):
                raise UsageError(f"environment {env!r} made {no_env(made)}")
            own = made.spec.max_episode_steps if made.spec is not None else None
            if (limit := time_limit(options, own)) is not None:
                made = gym.wrappers.TimeLimit(made, limit)
            return made

    return Found(env, "gymnasium", "your factory makes one environment at a time", single=single)
