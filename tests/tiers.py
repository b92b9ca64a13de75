"""Which tests the short tier leaves out (``scripts/test --all`` runs all), by file, and by what their names contain; an
empty name is the whole file.

The slow tier takes seconds a test: it repeats for more systems, back ends or ways of failing what the short tier does
for some. CI runs it too. The long tier trains for minutes, or runs a benchmark.
"""

SLOW: dict[str, tuple[str, ...]] = {
    "cli/test_alerts.py": ("page_beside_a_training", "hangs_tells_of_it"),
    "cli/test_commands.py": ("mistake_in_a_process_of_its_own", "closed_output", "name_is_no_text"),
    "cli/test_export.py": (
        "any_number_of_rows[es", "any_number_of_rows[impala, lstm",
        "is_that_of_the_policy[dd-ppo, choices and boxes-torch-export",
    ),
    "cli/test_seeds.py": ("differ_within_a_system",),
    "cluster/test_ray.py": ("goes_from_local_processes",),
    "envs/test_ale.py": ("newest_frames[options1", "newest_frames[options2"),
    "envs/test_composite.py": ("keeps_to_the_mask[dd-ppo", "keeps_to_the_mask[impala"),
    "envs/test_minigrid_pixels.py": ("the_picture_is_minigrids[MiniGrid-Key", "the_picture_is_minigrids[MiniGrid-Obs"),
    "envs/test_own_device.py": (
        "ppo_learns_on_it[Elsewhere", "ppo_learns_on_it[Saving", "goes_on_within_episodes_if_they_are_saved[Points",
    ),
    "envs/test_pointgoal.py": ("agree_with_a_grid[rooms",),
    "faults/test_blocked.py": ("hangs[2-local-observer-sleeping", "not_told[destructor"),
    "faults/test_full_disk.py": ("costs_only_itself",),
    "faults/test_fuzz.py": ("files_of_a_stranger[0",),
    "faults/test_gone.py": ("ends[serial-replaced", "ends[serial-moved"),
    "faults/test_kills.py": ("killed_parent",),
    "faults/test_portable.py": ("what_linux_has[es",),
    "faults/test_safety.py": ("nothing_listens",),
    "faults/test_seeds.py": ("share_no_seed[4096", "share_no_seed[64"),
    "faults/test_streams.py": (
        "can_be_written", "start_without_standard_streams", "takes_the_output[script4",
        "trains_without_standard_streams", "full_at_the_start",
    ),
    "faults/test_swapped.py": ("swapped_for_a_link[checkpoints",),
    "population/test_members.py": ("slots_end",),
    "runtime/test_loggers.py": ("same_run_of_the_back_end",),
    "runtime/test_metrics.py": tuple(f"write_the_same_metric_files[{system}" for system in ("qt-opt", "d4pg")),
    "runtime/test_symptoms.py": (
        "toy_made_for_it[observations-recurrent-ppo-toy8", "toy_made_for_it[observations-recurrent-ppo-toy9",
    ),
    "systems/test_data_parallel.py": ("what_one_learns[all move them-2", "what_one_learns[one moves the weights-3"),
    "systems/test_device_pipeline.py": tuple(
        f"once_for_each_gradient[{case}"
        for case in (
            "dd-ppo, lstm", "recurrent-ppo, gru", "r2d2, zero", "r2d3", "recurrent-ppo, normalised", "impala, lstm",
            "apex-dqn, rmsprop", "rainbow", "apex-dpg", "impala, two learners",
        )
    ),
    "systems/test_dpg.py": ("what_one_learns[env2-categorical-2", "what_one_learns[env1-mixture-3"),
    "systems/test_evaluation.py": ("repeat_exactly[apex-dqn", "repeat_exactly[r2d2"),
    "systems/test_gradient_modes.py": ("",),
    "systems/test_images.py": tuple(
        f"learned_from[{case}"
        for case in (
            "r2d2-env-dueling", "recurrent-ppo-env-core", "impala-env-torso", "unreal-env-bf16", "gorila-env-bf16",
            "d4pg-env-env_kwargs", "a3c-env-bf16",
        )
    ),
    "systems/test_q_learning.py": (
        "what_one_learns[True-True-False-all-of three", "what_one_learns[False-False-False-all-images",
    ),
    "systems/test_resume.py": (
        "bit_for_bit[impala, server, two groups", "bit_for_bit[dd-ppo", "bit_for_bit[a3c", "cut_short_is_played_again",
    ),
}  # fmt: skip

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


def tier(path: str, name: str) -> str:
    """Return ``short``, ``slow`` or ``long``: the tier of a test, by its file under ``tests`` and its name."""
    for found, tests in {"long": LONG, "slow": SLOW}.items():
        if any(part in name for part in tests.get(path, ())):
            return found
    return "short"
