"""The commands, and one sentence for everything that can be wrong with them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from shoal.api import UsageError
from shoal.cli import help, listing
from shoal.cli.completion import SHELLS
from shoal.cli.main import COMMANDS
from shoal.local.runtime import LocalRuntime
from shoal.records.run_lock import RunLock
from shoal.settings.config import only_for
from shoal.settings.flags import flag_name
from shoal.systems import SYSTEMS, load

from .conftest import FAKE, Shoal

WRONG = [  # arguments, what the sentence says
    ("zzz dqn", "unknown command 'zzz' (`shoal --help` lists all)"),
    ("train zzz", "unknown system 'zzz' (`shoal systems` lists all)"),
    ("train dqn --zzz 3", "unknown flag '--zzz' of dqn"),
    ("train dqn --environment x", "unknown flag '--environment' of dqn; did you mean '--env'?"),
    ("train dqn --learning-rate inf", "--learning-rate expects a finite number of at least 0, found 'inf'"),
    ("train dqn --actors 100000", "--actors expects an integer from 0 to 10000, found 100000"),
    ("train dqn --anneal --no-anneal", "--anneal and --no-anneal exclude each other"),
    ("train dqn --seed 1 --envs 2 --seed 2", "--seed is given twice"),
    ("train dqn --eval-episodes 3", "--eval-episodes expects --eval-every N beside it: without, nothing is evaluated"),
    ("train dqn --min-replay 600 --replay 500", "min_replay (600) must be no more than the capacity (replay 500)"),
    ("trian dqn", "unknown command 'trian'; did you mean 'train'?"),
    ("train", "needs a system first"),
    ("train dqm", "unknown system 'dqm'; did you mean 'dqn'?"),
    ("train none.py", "no such system file: 'none.py'"),
    ("train FAKE --lr 3", "unknown flag '--lr' of fake_system; did you mean '--learning-rate'?"),
    ("train FAKE --run_dri x", "did you mean '--run-dir'?"),
    ("train FAKE --learning-rate fast", "--learning-rate expects a number, found 'fast'"),
    ("train FAKE --learning-rate", "--learning-rate expects a number, found nothing"),
    ("train FAKE --envs 1 2", "--envs expects an integer from 1 to 4095, found 2 values ('1 2')"),
    ("train FAKE --envs 1.5", "--envs expects an integer from 1 to 4095, found '1.5'"),
    ("train FAKE --hidden 1 x", "--hidden expects integers of at least 1, found '1 x'"),
    ("train FAKE --hidden 64 0", "--hidden expects integers of at least 1, found (64, 0)"),
    ("train FAKE --unroll 0", "--unroll expects an integer of at least 1, found 0"),
    ("train FAKE --actors -1", "--actors expects an integer from 0 to 10000, found -1"),
    ("train FAKE --max-episode-steps 0", "--max-episode-steps expects an integer of at least 1 or none, found 0"),
    ("train FAKE --sticky-actions 1.5", "--sticky-actions expects a number from 0 to 1, found 1.5"),
    ("train FAKE --reward-scale nan", "--reward-scale expects a number, found 'nan'"),
    ("train dqn --gamma nan", "--gamma expects a number from 0 to 1, found 'nan'"),
    ("train dqn --max-grad-norm 0", "--max-grad-norm expects a finite number above 0 or none, found 0.0"),
    (
        "train recurrent-ppo --minibatches 9999",
        "minibatches (9999) must be no more than the steps of a batch (actors 1 x envs 32",
    ),
    ("train recurrent-ppo --core lstm --minibatches 5", "minibatches (5) must divide the trajectories of a batch"),
    ("train dqn --device gpu", "--device expects auto, cpu, cuda or cuda:N, found 'gpu'"),
    ("train dqn --device cuda:99", "role 'learner' expects the device cuda:99, but PyTorch"),
    ("train impala --learner-processes 2", "learner_processes (2) must be 0 or 1"),
    ("train gorila --learner-processes 2", "learner_processes (2) must be 0 or 1"),
    ("train dqn --learner-processes 2 --device cuda", "learner_processes (2) share a gradient on the CPU only"),
    ("train recurrent-ppo --config range.yaml", "'gamma' (file range.yaml) expects a number from 0 to 1, found 2"),
    ("train FAKE --seed -1", "--seed expects an integer of at least 0, found -1"),
    ("train FAKE --check false true", "--check expects true or false, found 'false true'"),
    ("train FAKE --config twice.yaml", "twice.yaml is not valid YAML: 'unroll' is given twice"),
    ("train FAKE --config spelled.toml", "file spelled.toml: 'learning-rate' and 'learning_rate' are one setting"),
    ("train FAKE --config latin.yaml", "latin.yaml is no text in UTF-8 (byte 9)"),
    ("train FAKE --checkpoint-every -1", "--checkpoint-every expects a finite number of at least 0, found -1"),
    ("train FAKE --eval-episodes 0", "--eval-episodes expects an integer from 1 to 1000000, found 0"),
    ("train FAKE --reward-clip sing", "--reward-clip expects one of none, sign, unit, found 'sing'"),
    ("train FAKE --life-loss maybe", "--life-loss expects true or false, found 'maybe'"),
    ("train FAKE --env-kwargs 3", "--env-kwargs expects names with values"),
    ("train FAKE --preset atri", "unknown preset 'atri' of fake_system; did you mean 'atari'?"),
    ("train FAKE --runtime locl", "unknown runtime 'locl'; did you mean 'local'?"),
    ("train FAKE --seconds soon", "--seconds expects a finite number above 0, found soon"),
    ("train FAKE --config none.toml", "no such config file: 'none.toml'"),
    ("train FAKE --config bad.toml", "bad.toml is not valid TOML"),
    ("train FAKE --config key.toml", "unknown key 'learning-rat' of fake_system; did you mean 'learning_rate'?"),
    ("train FAKE --config type.yaml", "'envs' (file type.yaml) expects an integer from 1 to 4095, found 'many'"),
    (
        "train FAKE --config seed.yaml",
        "file seed.yaml: 'seed' is an option of the run, not a setting of fake_system",
    ),
    ("config FAKE --seed 3", "'--seed' is an option of shoal train, not of this command, nor a setting of "),
    ("train FAKE --config x.ini", "no such config file: 'x.ini'"),
    ("train FAKE --run-dir full", "'full' exists and is not empty"),
    ("train FAKE --env CartPol-v1", "CartPole"),
    ("train FAKE --env Pendulum-v1", "fake supports Discrete actions; Pendulum-v1 has Box(1,)"),
    ("train FAKE CartPole-v1", "unexpected 'CartPole-v1': expected flags"),
    ("draw FAKE --format svgg", "did you mean 'svg'?"),
    ("draw FAKE --format zzz", "unknown value 'zzz' of --format (there are text, mermaid, svg)"),
    ("draw FAKE --output x.png", "--output expects a name that ends in .txt, .mmd or .svg, or --format, found 'x.png'"),
    ("draw FAKE --format svg --output no/x.svg", "no such directory: 'no'"),
    ("train queue.py", "system 'queue.py' cannot be imported: 'queue' is a module of Python's own: rename the file"),
    ("systems --all", "unknown flag '--all' of shoal systems"),
    ("eval", "needs a run directory first"),
    ("eval nowhere", "no such run directory: 'nowhere'"),
    ("eval full", "'full' holds no run: there is no config.json"),
    ("eval full --episode 3", "unknown flag '--episode' of shoal eval; did you mean '--episodes'?"),
]


@pytest.mark.parametrize("args, says", WRONG, ids=[a for a, _ in WRONG])
def test_every_mistake_is_one_sentence_and_exit_code_2(shoal: Shoal, args: str, says: str) -> None:
    Path("bad.toml").write_text("a = = 1")
    Path("key.toml").write_text("learning-rat = 1")
    Path("type.yaml").write_text("envs: many")
    Path("range.yaml").write_text("gamma: 2")
    Path("twice.yaml").write_text("unroll: 1\nunroll: 2")
    Path("spelled.toml").write_text("learning-rate = 1\nlearning_rate = 2")
    Path("latin.yaml").write_bytes(b'env: "caf\xe9s"')
    Path("queue.py").touch()
    Path("seed.yaml").write_text("seed: 3")
    Path("full").mkdir()
    Path("full/file").touch()
    code, out, err = shoal(*[FAKE if a == "FAKE" else a for a in args.split()])
    assert code == 2 and says in err and out == ""
    assert err.startswith("shoal: ") and err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_mistake_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "shoal", "train", "dqn", "--lr", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "shoal: unknown flag '--lr' of dqn; did you mean '--learning-rate'?\n"


def test_a_directory_whose_name_is_no_text() -> None:
    """Of a standard output that takes no such name, as of most locales in UTF-8."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.fsencode(folder) + b"/x\xff"
        words = [sys.executable, "-m", "shoal", "train", FAKE, "--runtime", "serial", "--steps", "60", "--run-dir"]
        environ = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
        done = subprocess.run([*words, path], env=environ, capture_output=True, check=False)
        assert done.returncode == 0 and rb"x\udcff" in done.stdout, done.stderr


def test_a_closed_output_and_a_directory_with_spaces(shoal: Shoal) -> None:
    code, out, _ = shoal("train", FAKE, "--runtime", "serial", "--run-dir", "with a space", "--seconds", "60")
    assert code == 0 and out.endswith("saved in with a space (shoal eval 'with a space')\n")
    command = f"{shlex.quote(sys.executable)} -m shoal eval 'with a space' --episodes 1 1>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_whose_config_lacks_something(shoal: Shoal) -> None:
    Path("r").mkdir()
    Path("r/config.json").write_text('{"format": 2, "config": {}}')
    for command in ("eval", "resume", "plot", "profile"):
        code, _, err = shoal(command, "r")
        assert code == 1 and err.startswith("shoal: r/config.json is damaged: it lacks 'system'")


def test_import_and_help_do_not_load_torch() -> None:
    code = "import sys, shoal, shoal.cli.main; shoal.cli.main.main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "shoal train SYSTEM" in done.stdout


def test_help_of_a_system_shows_its_fields_with_the_values_they_would_have(shoal: Shoal, fake: str) -> None:
    code, out, _ = shoal("train", fake, "--env", "ALE/Pong-v5", "--actors", "3", "--seed", "1", "--help")
    text = " ".join(out.split())
    assert code == 0 and text.startswith(f"shoal train {Path(fake).stem}, preset atari")
    assert "--learning-rate Step size of the optimiser [0.00025]" in text
    assert "--envs Environments per actor [32]" in text and "Actor processes [3]" in text
    code, _, err = shoal("train", fake, "--actors", "many", "--help")
    assert code == 2 and err == "shoal: --actors expects an integer from 0 to 10000, found 'many'\n"
    assert shoal("train", "pbt", "--of", fake, "--help")[1] == help.COMMANDS["pbt"]


def test_help_is_of_the_command_and_fits_a_screen(shoal: Shoal) -> None:
    assert set(help.COMMANDS) == {*COMMANDS, "pbt"}
    for command in help.COMMANDS:
        text = help.of_command(command)
        assert len(text.splitlines()) <= 60 and max(map(len, text.splitlines())) <= 120
        words = ("train", "pbt") if command == "pbt" else (command,)
        assert shoal(*words, "--help") == shoal("help", *words) == (0, text, "")
    assert shoal() == shoal("--help") == shoal("help") == (0, help.SUMMARY, "")
    assert all(f"shoal {command}" in help.SUMMARY for command in COMMANDS)


@pytest.mark.parametrize("system", SYSTEMS)
def test_help_of_a_system_fits_two_screens_and_all_of_it_names_every_field(shoal: Shoal, system: str) -> None:
    code, short, _ = shoal("train", system, "--help")
    assert code == 0 and len(short.splitlines()) <= 70 and max(map(len, short.splitlines()[2:])) <= 100
    code, whole, _ = shoal("train", system, "--help-all")
    hidden = only_for(load(system).Config)  # of Atari alone
    fields = {f.name for f in dataclasses.fields(load(system).Config)} - set(hidden)
    assert code == 0 and {flag_name(name) for name in fields} <= set(whole.split())
    assert [
        n for names in help.GROUPS.values() for n in names if n in fields and flag_name(n) not in short.split()
    ] == []


def test_each_flag_that_help_puts_first_is_some_systems() -> None:
    fields = {f.name for system in SYSTEMS for f in dataclasses.fields(load(system).Config)}
    assert not [name for names in help.GROUPS.values() for name in names if name not in fields]


def test_systems_and_version(shoal: Shoal) -> None:
    code, out, _ = shoal("systems")
    listed = {line.split()[0] for line in out.splitlines() if re.match("  [^ ]", line)}  # no second line of a sentence
    assert code == 0 and listed == {*SYSTEMS, "pbt"}
    assert set(json.loads(shoal("systems", "--json")[1])) == listed
    assert shoal("systems", "now")[0] == 2
    assert shoal("--version")[1].startswith("shoal ")


def test_config_shows_value_origin_and_meaning(shoal: Shoal, fake: str) -> None:
    code, out, _ = shoal("config", fake, "--env", "ALE/Pong-v5", "--learning_rate", "3e-4")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert code == 0 and "preset atari" in rows["envs"] and "Environments per actor." in rows["envs"]
    assert "0.0003" in rows["learning_rate"] and "flag" in rows["learning_rate"] and "default" in rows["steps"]


def test_config_toml_is_a_file_for_train(shoal: Shoal, fake: str) -> None:
    code, out, _ = shoal("config", fake, "--toml", "--envs", "3")
    Path("again.toml").write_text(out)
    assert code == 0 and shoal("config", fake, "--config", "again.toml", "--toml")[0] == 0


def test_train_then_eval(shoal: Shoal, fake: str) -> None:
    code, out, err = shoal("train", fake, "--runtime", "serial", "--run-dir", "r", "--env", "CartPole-v1")
    assert (code, err) == (0, "") and "steps: 400 steps" in out and "shoal eval r" in out
    code, out, _ = shoal("eval", "r", "--episodes", "3")
    assert code == 0 and len(out.splitlines()[0].split()) == 4 and "over 3 episodes" in out


def test_quiet_says_nothing(shoal: Shoal, fake: str) -> None:
    assert shoal("train", fake, "--runtime", "serial", "--quiet") == (0, "", "")
    assert [p.name.rsplit("-", 1)[1] for p in Path("runs").iterdir()] == ["0"]


@pytest.mark.parametrize("there", [False, True])
def test_what_a_runtime_refuses_leaves_no_files(there: bool, shoal: Shoal, fake: str, monkeypatch: Any) -> None:
    def launch(*_: Any) -> None:
        raise UsageError("node 3 does not see the run directory")

    monkeypatch.setattr(LocalRuntime, "launch", launch)
    if there:
        Path("mine").mkdir()
    code, _, err = shoal("train", fake, "--steps", "100", "--run-dir", "mine", "--quiet")
    assert code == 2 and err == "shoal: node 3 does not see the run directory\n"
    assert Path("mine").exists() == there and not list(Path().glob("mine/*"))


def test_a_failed_run_is_exit_code_1(shoal: Shoal, fake: str) -> None:
    Path("broken.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None): return self.observation_space.sample(), {}\n"
        "    def step(self, action): raise RuntimeError('the cable is out')\n"
        "def make(**kwargs): return Broken()\n"
    )
    code, _, err = shoal("train", fake, "--runtime", "serial", "--env", "broken.py:make", "--quiet")
    assert code == 1 and "the cable is out" in err


def test_environments_are_listed_with_kind_and_presets(shoal: Shoal) -> None:
    code, out, _ = shoal("envs", "PONG")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert code == 0 and rows["ALE/Pong-v5"][0] == "atari" and {"dqn", "impala"} <= set(rows["ALE/Pong-v5"])
    listed = {row["env"]: row for row in json.loads(shoal("envs", "cartpole", "--json")[1])}
    assert listed["CartPole-v1"]["kind"] == "classic" and "CartPole-v0" not in listed
    told = "no environment that is installed has 'no such' in its name or as its kind (`shoal envs` lists all)"
    assert shoal("envs", "no such") == (2, "", f"shoal: {told}\n")
    assert max(map(len, shoal("envs", "cartpole")[1].splitlines())) <= 160
    assert " async-nstep-q " in shoal("envs", "cartpole")[1]  # no name is cut in two
    for kind in ("classic", "mujoco"):  # the package mujoco is no answer
        assert {row["kind"] for row in json.loads(shoal("envs", kind, "--json")[1])} == {kind}


def test_runs_are_listed_with_their_state(shoal: Shoal, fake: str) -> None:
    assert shoal("runs")[0] == 2 and "no such directory: 'runs'" in shoal("runs")[2]
    shoal("train", fake, "--runtime", "serial", "--quiet", "--run-dir", "runs/ended", "--env", "CartPole-v1")
    for name in ("killed", "running"):
        shutil.copytree("runs/ended", f"runs/{name}")
        Path(f"runs/{name}/report.json").unlink()
    Path("runs/damaged").mkdir()
    Path("runs/damaged/config.json").write_text("{")
    held = RunLock(Path("runs/running"))
    code, out, err = shoal("runs", "--json")
    held.release()
    states = {run["run"]: (run["state"], run["seed"]) for run in json.loads(out)}
    assert code == 0 and states == {"ended": ("steps", 0), "killed": ("killed", 0), "running": ("running", 0)}
    assert err.count("\n") == 1 and "damaged" in err and "it is left out" in err
    assert [line.split()[0] for line in shoal("runs", "runs/ended")[1].splitlines()] == ["run", "ended"]


def test_a_running_run_whose_newest_row_has_no_time_yet_is_listed_with_its_last_one(shoal: Shoal, fake: str) -> None:
    shoal("train", fake, "--runtime", "serial", "--quiet", "--run-dir", "runs/r", "--env", "CartPole-v1")
    Path("runs/r/report.json").unlink()
    for name, row in {"metrics": "0,100,20.5", "performance": "0,100,12.25"}.items():
        column = "seconds" if name == "performance" else "episode_return"
        Path(f"runs/r/{name}.csv").write_text(f"row,steps,{column}\n{row}\n")
    with open("runs/r/metrics.csv", "a") as file:  # a row's performance is written after it
        file.write("1,200,30.5\n")
    (listed,) = json.loads(shoal("runs", "--json")[1])
    assert (listed["steps"], listed["seconds"], listed["return"]) == (200, 12, 30.5)


@pytest.mark.parametrize("columns", [40, 200])
def test_a_list_fits_the_terminal(columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    rows = [["a-run-with-a-name", "impala", "CartPole-v1", "3"], ["b", "dqn", "ALE/Pong-v5", "4"]]
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    listing._print_rows(("run", "system", "environment", "seed"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert (lines[0].split()[0] == "run") == (columns == 200)
    assert all(word in "\n".join(lines) for row in rows for word in row)


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "r"], ["resume", "r", "--steps", "9"], ["train", "impala", "--run-dir", "r", "--env", "X"],
        ["train", "impala", "--run-dir=r"], ["train", "pbt", "--of", "dqn", "--run_dir=r"],
    ],
)  # fmt: skip
def test_a_directory_in_which_a_run_goes_on_is_refused_before_torch_is_imported(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "r").mkdir()
    held = RunLock(tmp_path / "r")
    code = "import sys; from shoal.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    held.release()
    assert found.stdout == "2 False\n"
    assert found.stderr == f"shoal: the run in 'r' is still going on (process {os.getpid()})\n"


@pytest.mark.parametrize(
    "file, text",
    [
        ("config.json", '{"format": 2, "system": "x", "config": ["a"], "seed": 0}'),
        ("config.json", '{"format": 2, "system": ["x"], "config": {"env": "a"}, "seed": 0}'),
        ("metrics.csv", "row,steps,seconds\n1,nan,3\n"), ("metrics.csv", "row,steps,seconds\n1,1,inf\n"),
        ("metrics.csv", None), ("performance.csv", None), ("report.json", None),
    ],
)  # fmt: skip
@pytest.mark.timeout(60)
def test_a_damaged_run_is_left_out_of_the_list(shoal: Shoal, fake: str, file: str, text: str | None) -> None:
    shoal("train", fake, "--runtime", "serial", "--quiet", "--run-dir", "runs/r", "--env", "CartPole-v1")
    Path("runs/r/report.json").unlink()
    Path(f"runs/r/{file}").unlink(missing_ok=True)
    if text is None:
        os.mkfifo(f"runs/r/{file}")
    else:
        Path(f"runs/r/{file}").write_text(text)
    code, out, err = shoal("runs")
    assert code == 0 and out == "no run in runs\n" and err.count("\n") == 1 and "it is left out" in err


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_a_script_of_the_shell(shoal: Shoal, shell: str) -> None:
    code, out, _ = shoal("completion", shell)
    assert code == 0 and "rho-bar" in out and "impala" in out
    program = shutil.which(shell)
    if program is not None:
        Path("script").write_text(out)
        assert subprocess.run([program, "-n", "script"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "words, found",
    [
        (["tra"], {"train"}), (["train", "imp"], {"impala"}), (["train", "impala", "--rho"], {"--rho-bar"}),
        (["train", "dqn", "--preset", "bo"], {"box2d"}), (["eval", "--epi"], {"--episodes"}),
        (["train", "pbt", "--of", "d4"], {"d4pg"}), (["train", "a3c", "--seed"], {"--seed", "--seeds"}),
        (["zoo", "recurrent-ppo-c"], {"recurrent-ppo-cartpole"}), (["train", "ppo", "--entr"], {"--entropy-cost"}),
        (["train", "ppo", "--core", "l"], {"lstm"}), (["train", "dqn", "--env", "CartPo"], {"CartPole-v1"}),
    ],
)  # fmt: skip
def test_bash_completes(shoal: Shoal, words: list[str], found: set[str]) -> None:
    Path("script").write_text(shoal("completion", "bash")[1])
    line = " ".join(["shoal", *words])
    code = f". ./script; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _shoal; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == found


def test_the_list_of_systems_has_whole_sentences(shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    code, out, _ = shoal("systems")
    said = json.loads(shoal("systems", "--json")[1])
    assert code == 0 and max(map(len, out.splitlines())) <= 90
    whole = " ".join(out.split())
    assert all(text in whole and text.endswith((".", "...")) for text in said.values()), said
    assert said["apex-dpg"].endswith("a deterministic policy.")


def test_the_help_says_that_own_classes_may_be_given(shoal: Shoal) -> None:
    text = " ".join(shoal("train", "--help")[1].split())
    assert text.count("or your own, `MODULE:CLASS` or `FILE.py:CLASS`.") == 1, "--log"
    assert "; `MODULE:CLASS` or `FILE.py:CLASS`: your own. (default local)" in text, "--runtime"


def test_a_system_in_the_place_of_the_command_is_told_where_it_belongs(shoal: Shoal) -> None:
    code, _, err = shoal("dqn", "--env", "CartPole-v1")
    told = "shoal: 'dqn' is a system, and a command comes first: shoal train dqn --env CartPole-v1\n"
    assert (code, err) == (2, told)
