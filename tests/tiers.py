"""Which tests the short tier leaves out (``scripts/test --all`` runs all), by file, and by what their names contain; an
empty name is the whole file.

The slow tier takes seconds a test: it repeats for more systems, back ends or ways of failing what the short tier does
for some. CI runs it too. The long tier trains for minutes, or runs a benchmark.
"""

SLOW: dict[str, tuple[str, ...]] = {
    "benchmarks/test_table.py": ("with_the_runs_that_are_missing[15",),
    "cli/test_alerts.py": (
        "page_beside_a_training", "hangs_tells_of_it", "a_training_and_a_resumed_one_from_python",
        "a_population_tells_of_its_end", "a_population_shows_those_beside",
    ),
    "cli/test_call_order.py": ("module_of_a_system_is_an_attribute",),
    "cli/test_commands.py": (
        "mistake_in_a_process_of_its_own", "closed_output", "name_is_no_text", "environments_are_listed_with_kind",
    ),
    "cli/test_curves.py": ("draws_the_curve_that_the_command_draws",),
    "cli/test_export.py": (
        "any_number_of_rows[es", "any_number_of_rows[impala, lstm",
        "is_that_of_the_policy[dd-ppo, choices and boxes-torch-export", "any_number_of_rows[impala, tuples",
        "any_number_of_rows[qt-opt", "is_that_of_the_policy[d4pg, several boxes-torch-export",
    ),
    "cli/test_filmed.py": ("every_evaluation_of_a_serial_run_is_filmed", "a_local_run_films_what_it_ends_with"),
    "cli/test_own_actor_critics.py": ("acts_and_updates[own_td3",),
    "cli/test_own_code.py": ("edited_environment_is_read_again",),
    "cli/test_profile.py": ("of_a_run_whose_preset_is_for_other", "of_a_system_and_again_of_its_run"),
    "cli/test_seeds.py": (
        "differ_within_a_system", "reports_are_json_where_a_program_asks", "no_seed_begins_where_one",
    ),
    "cli/test_sweep.py": (
        "ends_it_in_order[train", "within_a_word_ends_a_command_in_order[train", "ends_it_in_order[alert",
    ),
    "cluster/test_ray.py": ("goes_from_local_processes", "node_of_actors_is_lost", "nobody_else_reaches"),
    "docs/test_examples.py": ("searches_and_finds[own_objective",),
    "envs/test_ale.py": (
        "newest_frames[options1", "newest_frames[options2", "not_sticky_by_default", "a_lost_life_terminates_and",
        "returns_are_raw_where",
    ),
    "envs/test_composite.py": ("keeps_to_the_mask[dd-ppo", "keeps_to_the_mask[impala", "keeps_to_the_mask[a3c"),
    "envs/test_device_cartpole.py": ("ppo_learns_to_balance",),
    "envs/test_given.py": ("no_process_makes_it_but_those",),
    "envs/test_infos.py": ("evaluations_tell_them[local",),
    "envs/test_kinds.py": ("a_function_may_make_what_its_program",),
    "envs/test_many_agents.py": ("agents_that_come_and_leave_train", "train_under_one_policy[a3c"),
    "envs/test_minigrid_pixels.py": ("the_picture_is_minigrids[MiniGrid-Key", "the_picture_is_minigrids[MiniGrid-Obs"),
    "envs/test_own_device.py": (
        "ppo_learns_on_it[Elsewhere", "ppo_learns_on_it[Saving", "goes_on_within_episodes_if_they_are_saved[Points",
        "if_they_are_saved[Saving",
    ),
    "envs/test_pointgoal.py": (
        "agree_with_a_grid[rooms", "scenes_follow_from_their_number_in_every_process", "agree_with_a_grid[maze-0",
    ),
    "envs/test_registration.py": (
        "program_from_standard_input", "minatar_is_registered_as", "lists_what_a_package_registers",
    ),
    "faults/test_blocked.py": (
        "hangs[2-local-observer-sleeping", "hangs[2-serial-observer-native", "not_told[destructor",
    ),
    "faults/test_full_disk.py": ("costs_only_itself",),
    "faults/test_fuzz.py": ("files_of_a_stranger[0",),
    "faults/test_gone.py": ("ends[serial-replaced", "ends[serial-moved", "ends[local-replaced", "ends[local-moved"),
    "faults/test_kills.py": ("killed_parent",),
    "faults/test_large_settings.py": ("not_printed_whole[many changes", "not_printed_whole[changes"),
    "faults/test_large_tables.py": ("is_not_read[resume", "is_not_read[compare"),
    "faults/test_left_behind.py": ("returns[3.0",),
    "faults/test_meaningless_states.py": ("means_nothing[averages", "means_nothing[counts of too few"),
    "faults/test_portable.py": ("what_linux_has[es",),
    "faults/test_read_outside.py": (
        "when_it_was_looked_at[a population: plot", "when_it_was_looked_at[profile", "when_it_was_looked_at[init-from",
    ),
    "faults/test_safety.py": ("nothing_listens",),
    "faults/test_seeds.py": ("share_no_seed[4096", "share_no_seed[64"),
    "faults/test_signals.py": ("a_signal_in_the_first_seconds",),
    "faults/test_strange_checkpoints.py": ("large_settings_are_shown_in_part",),
    "faults/test_strangers.py": (
        "no_module_beside_a_run_is_imported[start0-words0", "no_compiled_code_beside",
        "settings_of_matplotlib_beside_a_run_are_read[start1",
    ),
    "faults/test_streams.py": (
        "can_be_written", "start_without_standard_streams", "takes_the_output[script4",
        "trains_without_standard_streams", "full_at_the_start",
    ),
    "faults/test_swapped.py": ("swapped_for_a_link[checkpoints",),
    "faults/test_working_directory.py": (
        "directory_is_removed[serial", "runs_one_after_the_other_lie", "where_the_command_was_started[local",
    ),
    "planning/test_plan.py": (
        "a_rank_is_seen_to_collect", "a_rank_that_lags", "what_an_actor_and_a_learner_do_is_seen",
    ),
    "population/test_controller.py": ("a_search_on_two_processes_survives_a_kill",),
    "population/test_members.py": ("slots_end",),
    "replay/test_replay_items.py": (
        "every_complete_one_is_there[1-False", "every_complete_one_is_there[7-True-1",
        "every_complete_one_is_there[7-False-5", "every_complete_one_is_there[7-True-5", "bit_for_bit[fifo-True-repeat",
        "bit_for_bit[fifo-False-repeat", "bit_for_bit[proportional-False", "bit_for_bit[proportional-True-zero",
    ),
    "runtime/test_background.py": ("stepped_when_it_is_due[serial",),
    "runtime/test_conformance_groups.py": ("goes_on_where_it_was_saved[LocalRuntime-while",),
    "runtime/test_loggers.py": ("same_run_of_the_back_end",),
    "runtime/test_metrics.py": (
        "write_the_same_metric_files[qt-opt", "write_the_same_metric_files[d4pg", "same_metric_files[impala",
    ),
    "runtime/test_orphans.py": ("children_follow_a_killed_parent",),
    "runtime/test_sharded_replay.py": ("bit_for_bit[r2d2", "a_run_in_processes_goes_on"),
    "runtime/test_symptoms.py": (
        "toy_made_for_it[observations-recurrent-ppo-toy8", "toy_made_for_it[observations-recurrent-ppo-toy9",
        "toy_made_for_it[observations-recurrent-ppo-toy7", "began_with_other_parameters",
        "toy_made_for_it[unexplained-returns", "toy_made_for_it[no-entropy", "toy_made_for_it[one-return-dqn",
    ),
    "runtime/test_team.py": ("copies_end_with_their_process",),
    "systems/test_a3c.py": ("workers_are_a2c_with_one_rmsprop_in_turn[1-lstm",),
    "systems/test_changes.py": (
        "taken_and_told_of[gorila", "options_of_the_run_that_may_change", "who_chooses_actions_may_change[impala",
    ),
    "systems/test_data_parallel.py": (
        "what_one_learns[all move them-2", "what_one_learns[one moves the weights-3",
        "rounded_copies_learn_bit_for_bit_what_autocast_does[one moves", "what_one_learns[all move them-3-gru",
        "rounded_copies_learn_bit_for_bit_what_autocast_does",
    ),
    "systems/test_device_pipeline.py": (
        "once_for_each_gradient[dd-ppo, lstm", "once_for_each_gradient[recurrent-ppo, gru",
        "once_for_each_gradient[r2d2, zero", "once_for_each_gradient[r2d3",
        "once_for_each_gradient[recurrent-ppo, normalised", "once_for_each_gradient[impala, lstm",
        "once_for_each_gradient[apex-dqn, rmsprop", "once_for_each_gradient[rainbow", "once_for_each_gradient[apex-dpg",
        "once_for_each_gradient[impala, two learners", "once_for_each_gradient[dd-ppo]",
        "once_for_each_gradient[qt-opt]", "once_for_each_gradient[impala, images",
        "once_for_each_gradient[recurrent-ppo]", "once_for_each_gradient[r2d2]",
        "once_for_each_gradient[impala, pop-art", "once_for_each_gradient[d4pg]", "once_for_each_gradient[downpour",
        "once_for_each_gradient[gorila", "once_for_each_gradient[dqn]",
    ),
    "systems/test_device_updater.py": ("goes_on_on_the_other[qt-opt-cpu", "goes_on_on_the_other[d4pg-meta"),
    "systems/test_dpg.py": (
        "what_one_learns[env2-categorical-2", "what_one_learns[env1-mixture-3", "what_one_learns[env2-categorical-3",
    ),
    "systems/test_evaluation.py": (
        "repeat_exactly[apex-dqn", "repeat_exactly[r2d2", "a_resumed_run_evaluates_as_if", "repeat_exactly[impala",
        "repeat_exactly[dqn",
    ),
    "systems/test_evolution.py": ("a_killed_worker_changes_nothing", "any_number_of_workers_gives_the_same"),
    "systems/test_gradient_modes.py": ("",),
    "systems/test_identities.py": (
        "on_the_first_minibatch[toy:point-gru", "on_the_first_minibatch[toy:multi-gru",
        "on_the_first_minibatch[CartPole-v1-gru", "on_the_first_minibatch[toy:multi-none",
    ),
    "systems/test_images.py": (
        "learned_from[r2d2-env-dueling", "learned_from[recurrent-ppo-env-core", "learned_from[impala-env-torso",
        "learned_from[unreal-env-bf16", "learned_from[gorila-env-bf16", "learned_from[d4pg-env-env_kwargs",
        "learned_from[a3c-env-bf16", "learned_from[r2d2-env-bf16", "learned_from[impala-env-bf16",
        "learned_from[apex-dpg-env-env_kwargs", "learned_from[es-env-auto", "learned_from[downpour-env-fp32",
        "learned_from[gorila-env-dueling", "learned_from[a3c-env-core", "learned_from[r2d3-env-fp32",
        "learned_from[d4pg-env-bf16", "learned_from[dqn-env-bf16",
    ),
    "systems/test_init_from.py": ("new_range_of_returns_is_the_new_runs",),
    "systems/test_matrix.py": ("trains[es-Dict-MultiBinary", "trains[es-Box, uint8 image-Tuple of Boxes"),
    "systems/test_observers.py": ("they_see_the_rows_of_the_metric_files",),
    "systems/test_only_with.py": (
        "it_does_nothing[rainbow, returns mean", "it_does_nothing[es, shaping ranks",
        "it_does_nothing[rainbow, returns categorical", "it_does_nothing[es, cap",
    ),
    "systems/test_programs.py": ("import_no_machinery_of_compilers",),
    "systems/test_q_learning.py": (
        "what_one_learns[True-True-False-all-of three", "what_one_learns[False-False-False-all-images",
        "what_one_learns[True-True-False-all-vectors", "what_one_learns[False-True-True-all-of three",
    ),
    "systems/test_qt_opt_learners.py": ("comes_back[server",),
    "systems/test_qt_opt.py": ("share_of_online_data_rises", "a_killed_role_comes_back[updater"),
    "systems/test_r2d2.py": (
        "reproduces_the_actors_values[CartPole-v1-lstm", "reproduces_the_actors_values[toy:memory-gru",
    ),
    "systems/test_resume.py": (
        "bit_for_bit[impala, server, two groups", "bit_for_bit[dd-ppo", "bit_for_bit[a3c", "cut_short_is_played_again",
        "sigterm_ends_with_143", "bit_for_bit[qt-opt, two learners", "bit_for_bit[impala, two learners",
        "bit_for_bit[dqn, server", "bit_for_bit[impala, server]", "bit_for_bit[apex-dpg", "bit_for_bit[r2d2]",
    ),
    "systems/test_settings_are_read.py": ("shows[es-env",),
    "systems/test_snapshots.py": ("twenty_updates[unreal",),
    "systems/test_states.py": (
        "as_if_nothing_had_been[es", "as_if_nothing_had_been[unreal", "as_if_nothing_had_been[recurrent-ppo",
        "as_if_nothing_had_been[qt-opt]",
    ),
    "systems/test_trajectories.py": ("frames_kept_once_give_the_stacks_back[False",),
    "test_faults_script.py": ("",),
    "watch/test_light.py": ("sleeps_until_a_signal",),
    "test_packaging.py": ("source_distribution_has_no_part",),
    "test_structure.py": ("mypy_reads_every_test",),
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
