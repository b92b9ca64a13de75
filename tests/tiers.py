"""Which tests are of the long tier (``scripts/test --all``): they train for long, repeat for every system what the
short tier does for some, or run a benchmark. By file, and by what their names contain; an empty name is the whole file.
"""

LONG: dict[str, tuple[str, ...]] = {
    "benchmarks/test_smoke.py": ("",),
    "cli/test_export.py": ("parity_over_a_thousand",),
    "cli/test_strange_runs.py": ("[d4pg-Pushed",),
    "cli/test_sweep.py": (
        "setting_of_a_system", "[resume", "[pbt", "[plan", "[profile", "order[eval",
    ),
    "cli/test_zoo.py": ("the_script_trains",),
    "docs/test_docs.py": ("python_parses[README", "page_of_tuning_is_run"),
    "docs/test_examples.py": (
        "runs_and_learns", "learn_pendulum",
        *(f"searches_and_finds[own_{name}" for name in ("classifier", "self_play", "reward_model", "curriculum")),
    ),
    "docs/test_metrics_page.py": ("",),
    "docs/test_notebook.py": ("runs_from_training",),
    "docs/test_site.py": ("",),
    "envs/test_many_agents.py": (
        "masked_agents_train_under_one_policy[r2d2", "come_die_and_are_masked_learn", "two_agents_spread_out",
    ),
    "envs/test_registration.py": ("test_a_script_trains",),
    "faults/test_blocked.py": tuple(
        f"hangs[{case}" for case in ("15-", "2-local-observer-deaf", "2-local-observer-native", "2-local-logger")
    ),
    "faults/test_ending.py": ("dead_slow",),
    "faults/test_fuzz.py": ("files_of_a_stranger[30", "files_of_a_stranger[60"),
    "faults/test_hangs.py": ("stopped_does_not_count", "waiting_is_not_hanging", "interpreter_lock"),
    "faults/test_kills.py": ("crash_loop",),
    "faults/test_large_tables.py": ("is_not_read[plot",),
    "faults/test_left_behind.py": ("returns[0.4",),
    "faults/test_portable.py": ("[apex-dqn", "[gorila", "[impala", "[recurrent-ppo"),
    "faults/test_full_disk.py": ("stops_no_training",),
    "faults/test_resources.py": ("real_control_group", "tiny_dev_shm"),
    "faults/test_sockets.py": ("",),
    "faults/test_streams.py": ("standard_streams[>&-]", "standard_streams[2>&-]"),
    "faults/test_strangers.py": ("beside_a_run_is_imported[start1", "beside_a_run_is_imported[start2"),
    "population/test_members.py": ("survives_kills",),
    "test_gpu_check.py": ("the_script_runs_whole",),
    "test_packaging.py": ("the_wheel", "installed_wheel"),
    "replay/test_replay_rehearsal.py": ("",),
    "runtime/test_memory_kept.py": ("freed_is_not_faulted",),
    "runtime/test_metrics.py": tuple(
        f"write_the_same_metric_files[{system}" for system in ("r2d2", "apex-dpg", "apex-dqn")
    ),
    "runtime/test_orphans.py": ("in_order[15-", "in_order[1-", "second_interrupt"),
    "runtime/test_ring.py": ("repeat_nothing[25",),
    "runtime/test_torchrun.py": ("test_the_command", "cannot_load_its_state"),
    "simulation/test_queueing.py": ("[whole",),
    "systems/test_bottleneck.py": ("",),
    "systems/test_gorila.py": ("a_killed_shard",),
    "systems/test_learning.py": ("",),
    "systems/test_included.py": ("",),
    "systems/test_only_with.py": ("test_it_does_nothing[r2d", "test_it_does_nothing[unreal"),
    "systems/test_q_learning.py": tuple(  # of two with images, or of three, is each rule in the short tier
        f"a_team_learns_what_one_learns[{rule}"
        for rule in (
            "True-True-False-all-images", "False-True-True-all-images", "False-False-False-all-of three",
            "True-False-True-one-of three",
        )
    ),
    "systems/test_resume.py": tuple(
        f"bit_for_bit[{system}]"
        for system in (
            "apex-dqn", "rainbow", "r2d3", "d4pg", "unreal", "gorila", "async-sarsa", "recurrent-ppo", "qt-opt",
        )
    ),
    "watch/test_browser.py": ("",),
}  # fmt: skip


def is_long(path: str, name: str) -> bool:
    """Whether a test, by its file under ``tests`` and its name, is of the long tier."""
    return any(part in name for part in LONG.get(path, ()))
