"""Write every drawing, curve and table of figures in README and docs, from the code and from committed raw files.

python scripts/site/figures.py            write what has changed
python scripts/site/figures.py --check    write nothing; exit 1 and name each file that would change
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))
import films
import learning_tables
import own_systems
import plan_tables
import run_tables
import speed_tables
from charts import Panel, chart
from recorded import RESULTS, ROOT, Recorded, all_runs, curve, read

from shoal.program.draw_svg import svg
from shoal.systems import SYSTEMS, load

PAGES = ROOT / "docs" / "systems"
RESUMED = "tests/systems/test_resume.py"
SOURCE = "https://github.com/shoal-rl/shoal/tree/main/"
MARKED = re.compile(  # a place of a page; several on one page have names
    r"(<!-- figures(?: ([\w-]+))?: written by scripts/site/figures\.py -->).*?(<!-- end of figures -->)", re.DOTALL
)
ASIDE = (
    " If greedy and sampled actions differ by more than three standard errors, the mean return of the other kind of "
    "action stands in parentheses."
)
EARLY = (
    " A run that ended early had reached its mark in training. It was stopped before the preset's last step, and says "
    "nothing about the remaining steps."
)
SHOWN = 6  # panels of a system's picture
TESTS = {  # where not tests/systems/test_SYSTEM.py
    "dqn": "q_learning", "apex-dqn": "q_learning", "apex-dpg": "dpg", "d4pg": "dpg", "es": "evolution",
    "async-sarsa": "async_q", "async-nstep-q": "async_q", "downpour": "gorila", "impala": "losses",
    "recurrent-ppo": "losses",
}  # fmt: skip
FIRST_SCREEN = {  # panel of the README -> (system, task) of its curves
    "Pong": ("Pong-v5", ("recurrent-ppo", "dqn", "apex-dqn", "impala")),
    "LunarLander": ("LunarLander-v3", ("recurrent-ppo", "dqn", "impala")),
    "HalfCheetah": ("HalfCheetah-v5", ("d4pg", "apex-dpg")),
}


def program_drawing(system: str, page: str) -> str:
    """Return the picture of a system's program with the settings of the command on its page."""
    words = re.findall(r"`shoal draw (.*?)`", page)[0].split() if "`shoal draw" in page else []
    actors = int(words[words.index("--actors") + 1]) if words else 2
    alone = {"learner_processes": 1} if "--learner-processes 1" in page else {}  # else as many as there are cores
    module = load(system)
    return svg(module.program(module.Config(actors=actors, device="cpu", **alone)))


def validation(system: str, runs: list[Recorded]) -> str:
    """Return the section that says what has been recorded of a system."""
    lines = ["### How it was validated", ""]
    test = f"tests/systems/test_{TESTS.get(system, system.replace('-', '_'))}.py"
    assert (ROOT / test).exists(), test
    lines += [
        f"The loss and the program are tested in [`{test}`]({SOURCE}{test}).",
        "For every system, a serial run that is interrupted and resumed ends with the same parameters, bit for bit",
        f"([`{RESUMED}`]({SOURCE}{RESUMED})). All systems are compared on the page [results](../results.md).",
        "",
    ]
    if runs:
        lines += [
            f"![Learning curves of {system}](pictures/{system}-curves.svg)",
            "",
            "*Mean return of the last 100 training episodes against environment steps. Each line is one seed. The "
            "dashed line is the mark.*",
            "",
            "A score is the mean return of a fresh evaluation of the final policy. The mark is the score that counts "
            "as solving the task. A score below its mark is **bold**."
            + (ASIDE if any(run.others for run in runs) else "")
            + (EARLY if any(run.early for run in runs) else ""),
            "",
            "| task | preset | seeds | score of each seed | mark | command |",
            "| --- | --- | --- | --- | --- | --- |",
            *(row(run) for run in runs),
            "",
        ]
    if unused := unused_presets(system, runs):
        lines += [
            f"Presets that are not validated, since no committed run has used them to the end: {', '.join(unused)}.",
            "",
        ]
    if any(run.preset == "dm_control" for run in runs) and system in ("d4pg", "apex-dpg"):
        lines += ["The runs with `dm_control` were stopped after 50,000 of its 500,000 steps.", ""]
    return "\n".join([*lines, trained(system)])


def trained(system: str) -> str:
    """Return the section that shows the system's policy of the zoo, with its film."""
    entry = films.of_system(system)
    assert entry is not None and films.is_current(entry), f"run: python scripts/site/films.py {system}"
    score = entry.score
    return f"""### A trained policy

![{entry.source} plays {entry.env}](pictures/{system}.gif)

*`{entry.source}` plays `{entry.env}`: the first seconds of an episode with seed {films.SEED}, by the greedy policy.
Its mean return over {score.episodes} other episodes is {score.mean:.4g} (95 % interval {score.low:.4g} to
{score.high:.4g}). `python scripts/site/films.py {system}` makes the film.*
The [zoo](../zoo.md) says how it was trained. To use it:

```bash
shoal eval {entry.source} --episodes 100
shoal eval {entry.source} --video {entry.name}.mp4
```
"""


def unused_presets(system: str, runs: list[Recorded]) -> list[str]:
    """Return the presets of a system that no committed run has used to its end."""
    used = {run.preset for run in runs if run.system == system and run.early != {*run.seeds}}
    return [f"`{name}`" for name in load(system).PRESETS if name not in used]


def not_validated(runs: list[Recorded]) -> str:
    """Return the presets without a committed run, system by system."""
    head = ["| system | presets without a recorded run |", "| --- | --- |"]
    found = {system: unused_presets(system, runs) for system in SYSTEMS}
    return "\n".join([*head, *(f"| {system} | {', '.join(names)} |" for system, names in found.items() if names)])


def row(run: Recorded) -> str:
    scores = " / ".join(score(value, run.mark) for value in run.scores)
    where = f"{SOURCE}{run.folder.relative_to(ROOT).as_posix()}"
    mark = "none" if run.mark is None else f"{run.mark:g}"
    if run.others:
        scores += f" ({run.other} " + " / ".join(score(value, None) for value in run.others.values()) + ")"
    seeds = ", ".join(f"{seed} (ended early)" if seed in run.early else str(seed) for seed in run.seeds)
    return f"| [{run.task}]({where}) | {run.preset or 'own values'} | {seeds} | {scores} | {mark} | `{run.command}` |"


def score(value: float, mark: float | None) -> str:
    told = f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:,.0f}"
    return told if mark is None or value >= mark else f"**{told}**"


def curves_of(runs: list[Recorded]) -> str:
    """Return the curves of a system's first tasks: those with marks first, then those with most steps."""
    lines = {run.task: [curve(path) for path in run.curves] for run in runs}
    order = sorted(runs, key=lambda run: (run.mark is None, -max(line[-1][0] for line in lines[run.task])))
    panels = [Panel(run.task, [("", line) for line in lines[run.task]], run.mark) for run in order[:SHOWN]]
    return chart(panels, f"Learning curves of {runs[0].system}")


def first_screen(runs: list[Recorded]) -> str:
    """Return the README's curves: each system's seeds in one colour."""
    panels = []
    for title, (task, systems) in FIRST_SCREEN.items():
        found = [next(run for run in runs if (run.system, run.task) == (system, task)) for system in systems]
        lines = [(run.system, curve(path)) for run in found for path in run.curves]
        panels.append(Panel(title, lines, found[0].mark))
    return chart(panels, "Learning curves on three tasks")


def headline() -> str:
    """Return the README's figures beside other libraries, each with the command that measures it."""
    solve, speed = read(RESULTS / "solve" / "results.json"), read(RESULTS / "throughput" / "results.json")

    def seconds(task: str, side: str) -> str:
        return f"{median(run['wall_s'] for run in solve[task]['figures'][side]):.3g} s"

    def command(task: str, side: str) -> str:
        seeds = " ".join(str(run["seed"]) for run in solve[task]["figures"][side])
        return f"python benchmarks/solve.py --only {task} --seeds {seeds}"

    def steps(case: str, side: str) -> str:
        return f"{median(run['env_steps_per_s'] for run in speed[case]['figures']['sides'][side]):,.0f}"

    def beside(tell: Callable[[str, str], str], case: str, **peers: str) -> str:
        return ", ".join(f"{name} {tell(case, side)}" for side, name in peers.items())

    sb3, sf, rllib = "Stable-Baselines3", "Sample Factory", "RLlib"
    cartpole, pong, dqn = "cartpole-ppo, EPYC", "pong-ppo", "pong-dqn, B"
    rows = [
        (
            "LunarLander to a mean return of 200, recurrent PPO",
            seconds("lunarlander", "recurrent-ppo"),
            beside(seconds, "lunarlander", sb3=sb3, sf=sf),
            command("lunarlander", "recurrent-ppo"),
        ),
        (
            "CartPole to 475, recurrent PPO",
            seconds("cartpole", "recurrent-ppo"),
            beside(seconds, "cartpole", sb3=sb3),
            command("cartpole", "recurrent-ppo"),
        ),
        (
            "PPO on CartPole, four epochs, environment steps per second",
            steps(cartpole, "shoal"),
            beside(steps, cartpole, sb3=sb3, rllib=rllib),
            "python benchmarks/throughput.py --only cartpole-ppo",
        ),
        (
            "PPO on Pong from pixels, four epochs, environment steps per second (bfloat16; peers have float32)",
            steps(pong, "shoal bf16"),
            beside(steps, pong, sb3=sb3, rllib=rllib),
            "python benchmarks/throughput.py --only pong-ppo",
        ),
        (
            "DQN on Pong from pixels, environment steps per second (float32)",
            steps(dqn, "shoal fp32"),
            beside(steps, dqn, sb3=sb3),
            "python benchmarks/throughput.py --only pong-dqn",
        ),
    ]
    head = ["| measured, on two CPU cores | Shoal | others | command |", "| --- | --- | --- | --- |"]
    return "\n".join(
        [*head, *(f"| {what} | **{ours}** | {theirs} | `{how}` |" for what, ours, theirs, how in rows), ""]
    )


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page with each block between the two markers of its name; the only one of a page may have none ("")."""
    places = [name for _, name, _ in MARKED.findall(page)]
    assert sorted(places) == sorted(blocks), f"marked on the page: {sorted(places)}; made: {sorted(blocks)}"
    return MARKED.sub(lambda place: f"{place[1]}\n\n{blocks[place[2] or ''].strip()}\n\n{place[3]}", page)


def outputs() -> Iterator[tuple[Path, str]]:
    """Each file with the text that it should have."""
    runs = all_runs()
    for system in SYSTEMS:
        path = PAGES / f"{system}.md"
        page = path.read_text(encoding="utf-8")
        own = [run for run in runs if run.system == system]
        yield PAGES / "pictures" / f"{system}.svg", program_drawing(system, page)
        if own:
            yield PAGES / "pictures" / f"{system}-curves.svg", curves_of(own)
        more = {"stragglers": speed_tables.stragglers()} if system == "dd-ppo" else {}
        yield path, fill(page, {"": validation(system, own), **more})
    docs = ROOT / "docs"
    yield docs / "pictures" / "curves.svg", first_screen(runs)
    for made in (learning_tables, speed_tables):
        yield from ((docs / "pictures" / name, text) for name, text in made.pictures().items())
    for path, blocks in (
        (ROOT / "README.md", {"": headline()}),
        (docs / "results.md", {**learning_tables.tables(), "not-validated": not_validated(runs)}),
        (docs / "performance.md", speed_tables.tables()),
        (docs / "scaling.md", plan_tables.tables()),
        (docs / "population.md", {"": learning_tables.populations()}),
        (docs / "cluster.md", run_tables.cluster_tables()),
        (docs / "architecture.md", {"": run_tables.channels()}),
        (docs / "faults.md", {"kills": run_tables.kills(), "soak": run_tables.soak()}),
        (docs / "pointgoal.md", {"": learning_tables.pointgoal()}),
        (docs / "evaluation.md", {"": run_tables.evaluations()}),
        (docs / "tutorials" / "own-system.md", {"": own_systems.summary()}),
    ):
        yield path, fill(path.read_text(encoding="utf-8"), blocks)


def main(arguments: list[str]) -> int:
    changed = 0
    for path, text in outputs():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        changed += 1
        print(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int("--check" in arguments and changed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
