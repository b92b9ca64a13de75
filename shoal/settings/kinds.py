"""Kinds of environments: under which systems file their presets, and which options are for which."""

from __future__ import annotations

import re

AN_ENVIRONMENT = re.compile(r"[\w./:-]+-v\d+|[A-Za-z_][\w.]*:[A-Za-z_]\w*|ALE/\w+|\S+\.py:\w+")  # what looks like one
MUJOCO = {
    "HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "HumanoidStandup", "Swimmer", "Reacher", "Pusher",
    "InvertedPendulum", "InvertedDoublePendulum",
}  # fmt: skip
SUBKINDS = {  # parts of kinds: of MuJoCo's those whose episodes end when the body falls, and rewards of another size
    "mujoco_upright": {"Hopper", "Walker2d", "Ant", "Humanoid", "InvertedPendulum", "InvertedDoublePendulum"},
    "mujoco_small": {"Reacher", "Pusher", "Swimmer"},
    "mujoco_standup": {"HumanoidStandup"},
    "classic_continuous": {"MountainCarContinuous", "Pendulum"},
}
UNLIKE = {  # the rest of their kind, whose presets suit neither rare rewards nor pictures -> what they show and take
    "MountainCar": "vector", "MountainCarContinuous": "vector_continuous", "CarRacing": "picture_continuous",
}  # fmt: skip
CLASSIC = {
    "CartPole",
    "Acrobot",
    "MountainCar",
    "MountainCarContinuous",
    "Pendulum",
    "shoal/CartPoleNoVelocity",
    "device:CartPole",
}
DM_CONTROL = {  # as EnvPool names them: the domain, then the task
    "Acrobot", "BallInCup", "Cartpole", "Cheetah", "Dog", "Finger", "Fish", "Hopper", "Humanoid", "HumanoidCMU",
    "Manipulator", "Pendulum", "PointMass", "Quadruped", "Reacher", "Stacker", "Swimmer", "Walker",
}  # fmt: skip
BOX2D = {"LunarLander", "LunarLanderContinuous", "BipedalWalker", "BipedalWalkerHardcore", "CarRacing"}
ATARI = frozenset({  # games
    "Adventure", "AirRaid", "Alien", "Amidar", "Assault", "Asterix", "Asteroids", "Atlantis", "Atlantis2", "Backgammon",
    "BankHeist", "BasicMath", "BattleZone", "BeamRider", "Berzerk", "Blackjack", "Bowling", "Boxing", "Breakout",
    "Carnival", "Casino", "Centipede", "ChopperCommand", "CrazyClimber", "Crossbow", "Darkchambers", "Defender",
    "DemonAttack", "DonkeyKong", "DoubleDunk", "Earthworld", "ElevatorAction", "Enduro", "Entombed", "Et",
    "FishingDerby", "FlagCapture", "Freeway", "Frogger", "Frostbite", "Galaxian", "Gopher", "Gravitar", "Hangman",
    "HauntedHouse", "Hero", "HumanCannonball", "IceHockey", "Jamesbond", "JourneyEscape", "Kaboom", "Kangaroo",
    "KeystoneKapers", "KingKong", "Klax", "Koolaid", "Krull", "KungFuMaster", "LaserGates", "LostLuggage", "MarioBros",
    "MiniatureGolf", "MontezumaRevenge", "MrDo", "MsPacman", "NameThisGame", "Othello", "Pacman", "Phoenix", "Pitfall",
    "Pitfall2", "Pong", "Pooyan", "PrivateEye", "Qbert", "Riverraid", "RoadRunner", "Robotank", "Seaquest",
    "SirLancelot", "Skiing", "Solaris", "SpaceInvaders", "SpaceWar", "StarGunner", "Superman", "Surround", "Tennis",
    "Tetris", "TicTacToe3D", "TimePilot", "Trondead", "Turmoil", "Tutankham", "UpNDown", "Venture", "VideoCheckers",
    "VideoChess", "VideoCube", "VideoPinball", "WizardOfWor", "WordZapper", "YarsRevenge", "Zaxxon",
})  # fmt: skip


def gymnasium_id(env: str) -> str:
    """Return an Atari game's id as Gymnasium has it where EnvPool calls it otherwise (``Pong-v5``); any other id as it
    is."""
    return f"ALE/{env}" if env.endswith("-v5") and _base(env) in ATARI else env


def envpool_id(env: str) -> str:
    """Return a task of the DeepMind Control Suite by EnvPool's id (``dm_control/ball_in_cup-catch-v0`` is
    ``BallInCupCatch-v1``); any other id as it is."""
    task = re.fullmatch(r"dm_control/(\w+)-(\w+)-v\d+", env)
    if task is None:
        return env
    return "".join(word[:1].upper() + word[1:] for part in task.groups() for word in part.split("_")) + "-v1"


INTERFACES = {  # under which presets stand for any environment that has none under its kind: what it shows and takes
    "states": "shows discrete states",
    "vector": "shows vectors",
    "picture": "shows pictures",
    "states_continuous": "shows discrete states and takes continuous actions",
    "vector_continuous": "shows vectors and takes continuous actions",
    "picture_continuous": "shows pictures and takes continuous actions",
}

SERVED_BY = {"states_continuous": "vector_continuous"}  # where a system has no preset for the first: codes are vectors


def is_atari(env: str) -> bool:
    """Return whether an id names a game of the Arcade Learning Environment."""
    return gymnasium_id(env).startswith("ALE/") or re.search(r"NoFrameskip-v\d+$", env) is not None


def env_kind(env: str) -> str | None:
    """The kind of an environment id; None: unknown."""
    if is_atari(env):
        return "atari"
    if env.startswith(("toy:", "pointgoal:")):
        return env.partition(":")[0]
    if env.startswith("MinAtar/"):
        return "minatar"
    base = _base(env)
    for kind, names in (("mujoco", MUJOCO), ("classic", CLASSIC), ("box2d", BOX2D)):
        if base in names:
            return kind
    if env.startswith("dm_control/"):
        return "dm_control"
    return "dm_control" if re.fullmatch(f"({'|'.join(DM_CONTROL)})[A-Z]\\w*-v1", env) else None


def preset_kinds(env: str) -> list[str]:
    """The kinds of an environment id under which a preset for it may stand, the narrowest first."""
    kind = env_kind(env)
    narrow = [name for name, names in SUBKINDS.items() if kind and name.startswith(kind) and _base(env) in names]
    own = [UNLIKE[_base(env)]] if kind and _base(env) in UNLIKE else []
    return [*own, *narrow, *([kind] if kind else [])]


def _base(env: str) -> str:
    """The name without its version, and without the namespace of Gymnasium's versions of classic tasks in JAX."""
    return re.sub(r"-v\d+$", "", env).removeprefix("phys2d/")
