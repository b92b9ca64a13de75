"""A scripted expert of MiniGrid's KeyCorridor (fetch the key, open the locked door, pick up the ball), and its episodes
as demonstrations.

    cd benchmarks
    shoal record experts:key_corridor --env MiniGrid-KeyCorridorS3R2-v0 --backend gymnasium --out mine/corridor-v0
    shoal train r2d3 --env MiniGrid-KeyCorridorS3R2-v0 --demonstrations experts:s3r2

It looks behind the scenes: it knows the whole grid, of which an agent sees 7 x 7 cells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from shoal.demonstrations.episodes import Episode
from shoal.demonstrations.recording import play
from shoal.envs import EnvOptions

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE = range(6)
AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))  # of each direction
EPISODES, SEED = 100, 1_000_000

State = tuple[int, int, int]  # column, row, direction
Cell = tuple[int, int]


def key_corridor(obs: Any, env: Any) -> int:
    """The expert's action in the environment as it is now."""
    column, row = map(int, env.agent_pos)
    here: State = (column, row, int(env.agent_dir))
    ball = tuple(env.obj.cur_pos)
    doors = [cell for cell, thing in things(env) if thing.type == "door" and thing.is_locked]
    if doors:
        if env.carrying is None:
            return _there(env, here, next(cell for cell, thing in things(env) if thing.type == "key"), PICK_UP)
        return _there(env, here, doors[0], TOGGLE)
    if env.carrying is None:
        return _there(env, here, ball, PICK_UP)

    def out_of_the_way(state: State) -> bool:
        cell = before(state)
        return env.grid.get(*cell) is None and way(env, state, lambda s: before(s) == ball, blocked=cell) is not None

    return _first(env, here, out_of_the_way, DROP)


def things(env: Any) -> list[tuple[Cell, Any]]:
    """What stands in the grid, walls too, and where."""
    cells = ((x, y) for y in range(env.grid.height) for x in range(env.grid.width))
    return [(cell, thing) for cell in cells if (thing := env.grid.get(*cell)) is not None]


def before(state: State) -> Cell:
    """The cell in front of the agent."""
    x, y, direction = state
    return x + AHEAD[direction][0], y + AHEAD[direction][1]


def way(env: Any, start: State, ends: Callable[[State], bool], blocked: Cell | None = None) -> list[int] | None:
    """The turns and steps of a shortest way to a state that ``ends``, around whatever cannot be walked through; closed
    doors count as open. None: there is no way."""
    came: dict[State, tuple[State, int] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if ends(state):
            actions: list[int] = []
            while (last := came[state]) is not None:
                state, action = last
                actions.append(action)
            return actions[::-1]
        x, y, direction = state
        nexts = [(LEFT, (x, y, (direction - 1) % 4)), (RIGHT, (x, y, (direction + 1) % 4))]
        cell = before(state)
        thing = env.grid.get(*cell)
        if cell != blocked and (thing is None or (thing.type == "door" and not thing.is_locked)):
            nexts.append((FORWARD, (*cell, direction)))
        for action, reached in nexts:
            if reached not in came:
                came[reached] = state, action
                queue.append(reached)
    return None


def _there(env: Any, here: State, cell: Cell, action: int) -> int:
    """``action`` in front of ``cell``, or the next action on the way there."""
    return _first(env, here, lambda state: before(state) == cell, action)


def _first(env: Any, here: State, ends: Callable[[State], bool], action: int) -> int:
    found = way(env, here, ends)
    assert found is not None, "every room can be reached"
    if not found:
        return action
    front = env.grid.get(*before(here))
    if found[0] == FORWARD and front is not None and not front.is_open:
        return TOGGLE
    return found[0]


def demonstrations(env: str) -> list[Episode]:
    """``EPISODES`` episodes of the expert, always the same."""
    options = EnvOptions(backend="gymnasium")  # another's environment cannot be looked into
    return list(play(env, options, lambda obs, reward, inside: key_corridor(obs, inside), EPISODES, SEED))


def s3r1() -> list[Episode]:
    return demonstrations("MiniGrid-KeyCorridorS3R1-v0")


def s3r2() -> list[Episode]:
    return demonstrations("MiniGrid-KeyCorridorS3R2-v0")


def s3r3() -> list[Episode]:
    return demonstrations("MiniGrid-KeyCorridorS3R3-v0")
