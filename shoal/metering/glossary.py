"""Every name in the metric files: ``python -m shoal.metering.glossary`` prints docs/metrics.md."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """``by``: who records it."""

    name: str
    unit: str
    by: str
    meaning: str


ROW = (
    Entry("row", "", "runtime", "number of the row, from 1; the same number means the same moment in all files"),
    Entry("steps", "agent steps", "actor", "of all actors, without autoreset rows (the counter `env_steps`)"),
)  # fmt: skip
TRAINING = (
    Entry("updates", "updates", "learner",
          "calls of the learner's `update`; all epochs of PPO over one batch are one update"),
    Entry("episodes", "episodes", "actor", "finished episodes so far"),
    Entry("episode_return", "reward", "actor", "mean raw (unclipped) return of the last 100 episodes"),
    Entry("episode_length", "agent steps", "actor", "mean length of the last 100 episodes"),
    Entry("NAME", "", "actor",
          "mean over the last 100 episodes of a number `NAME` that the environment put into the `info` of an "
          "episode's last step, such as `success`; `info/NAME` if a metric of this page has that name"),
    Entry("record/NAME", "", "any",
          "mean of the values that a role recorded as `NAME`, if `NAME` is already a column of the run itself, "
          "such as `steps` or `seconds`; a warning says so"),
)  # fmt: skip
LEARNING = (
    Entry("policy_lag_p50", "gradient steps", "learner; actor (with a replay)",
          "median age of the acting parameters, compared with the learner's newest: per message when it is "
          "learned from; with a replay, per unroll when its last step is taken; with an inference server, per step of "
          "either"),
    Entry("policy_lag_p95", "gradient steps", "as above", "95th percentile"),
    Entry("policy_lag_max", "gradient steps", "as above", "maximum"),
    Entry("loss", "", "learner (of all but PPO and es)",
          "the minimised loss of the batch; of apex-dpg and d4pg the critic's"),
    Entry("grad_norm", "", "learner",
          "global norm of the gradient before clipping; of es, of the weighted sum of noise"),
    Entry("learning_rate", "", "learner", "value at this update"),
    Entry("SETTING", "", "learner",
          "value at this update of any other setting that is a schedule, such as `entropy_cost`"),
    Entry("skipped_updates", "share", "learner",
          "share of updates that were skipped because their loss or gradient was not finite; ten in a row end "
          "the run"),
    Entry("q_mean", "return", "learner (with a replay); worker (async-*)",
          "mean Q-value of the batch's actions, every tenth update (async-*: of each segment); of r2d2 without "
          "the rescaling"),
    Entry("td_error", "return", "learner (with a replay); worker (async-*)",
          "mean absolute TD error, unclipped, every tenth update (async-*: of each segment); of r2d2 between "
          "rescaled values, of d4pg and rainbow of the means of the distributions"),
    Entry("clipped_mass", "share", "learner (rainbow, d4pg)",
          "share of the target distributions' probability outside `v_min` to `v_max`, before the projection; "
          "every tenth update"),
    Entry("delta_q_first", "share", "learner (r2d2)",
          "ΔQ at the first learned step of a sequence: the difference of the Q-values from the actor's stored "
          "recurrent state and from the learner's state, divided by the sequence's largest value; 0 without "
          "lag; every tenth update"),
    Entry("delta_q_last", "share", "learner (r2d2)", "ΔQ at the last step of sequences of full length"),
    Entry("demonstrations", "share", "learner (r2d3); updater (qt-opt)",
          "share of a batch's elements that are demonstrations"),
    Entry("label_age_p50", "updates", "learner (qt-opt)",
          "median number of updates between the parameters that labelled a transition and the update that "
          "learns from it"),
    Entry("label_age_p95", "updates", "as above", "95th percentile"),
    Entry("label_age_max", "updates", "as above", "maximum"),
    Entry("target_disagreement", "return", "updater (qt-opt)",
          "mean absolute difference of the two target networks at the best next action"),
    Entry("clipped_labels", "share", "updater (qt-opt, with cross-entropy)", "share of labels outside [0, 1]"),
    Entry("action_gradient", "return", "learner (apex-dpg, d4pg)",
          "mean absolute derivative of the value with respect to an element of the policy's action (in units of"
          " half the box), before the clip; every tenth update"),
    Entry("saturated", "share", "learner (apex-dpg, d4pg)",
          "share of the policy's actions within 1 % of half the box of its edge, where tanh is flat and the "
          "policy gets hardly any gradient; every tenth update"),
    Entry("edge_mass", "share", "learner (d4pg)",
          "share of the critic's probability on its smallest and its largest return; every tenth update"),
    Entry("top_edge_mass", "share", "learner (d4pg)",
          "share of the critic's probability on its largest return; every tenth update"),
    Entry("replay_size", "items", "learner (with a replay)",
          "items that can be sampled: transitions, or sequences of r2d2"),
    Entry("samples_per_insert", "samples", "replay",
          "samples drawn per inserted item since the start, without the first `min_replay` items; with "
          "`replay_shards`, candidates, which are `replay_shards` times as many"),
    Entry("replay_share", "share", "replay (with `replay_shards`)",
          "share of a batch's items that a shard sends: its share of the sum of all weights"),
    Entry("policy_loss", "", "learner (impala, PPO, a3c, unreal)",
          "the policy's loss; its size means little, since advantages change"),
    Entry("value_loss", "return²", "learner (impala, PPO, a3c, unreal)", "half the squared error of the values"),
    Entry("entropy", "nats", "learner (impala, PPO, a3c, unreal)",
          "of the current policy, summed over parts of an action (impala: at the last steps of trajectories)"),
    Entry("explained_variance", "share", "learner (impala, PPO)",
          "share of the variance of the value targets that the values before the update explain: 1 for perfect "
          "values, 0 for a constant"),
    Entry("rho", "", "learner (impala)", "mean of π/μ before the clip; 1 without lag"),
    Entry("kl", "nats", "learner (PPO)", "mean(ρ − 1 − log ρ), an estimate of KL(old, new) that is never negative"),
    Entry("clip_fraction", "share", "learner (PPO)", "share of ratios outside 1 ± ε"),
    Entry("ratio_error", "", "learner (PPO)",
          "largest absolute ρ − 1 on the first minibatch. It is 0 up to rounding; otherwise masks, recurrent "
          "states or statistics are wrong"),
    Entry("minibatches", "gradient steps", "learner (PPO)",
          "gradient steps in this update; fewer after an early stop by `target_kl`"),
    Entry("population_return", "reward", "learner (es)", "mean training return of the generation's perturbed policies"),
    Entry("best_return", "reward", "learner (es)", "largest training return of these policies"),
    Entry("unperturbed_return", "reward", "worker (es)",
          "mean training return of the unperturbed policy, without an episode cap, every `evaluate_every` "
          "generations"),
    Entry("update_ratio", "", "learner (es)", "norm of the update divided by the norm of the parameters"),
    Entry("episode_cap", "agent steps", "learner (es)", "largest episode length of the next generation; 0: no limit"),
    Entry("discarded_results", "messages", "learner (es)",
          "results of an old task, or duplicates of a block, since the update before"),
    Entry("rollout_fraction", "share", "rank (dd-ppo)",
          "collected share of a full rollout; below 1 if a rank was preempted"),
    Entry("update_lag_p50", "updates", "worker (a3c, async-*)",
          "median number of updates by other workers between a worker's copy of the parameters and its own "
          "update"),
    Entry("update_lag_p95", "updates", "as above", "95th percentile"),
    Entry("update_lag_max", "updates", "as above", "maximum"),
    Entry("gradient_lag_p50", "updates", "server (gorila, downpour)",
          "median number of a shard's updates between the parameters that a gradient was computed with and its "
          "arrival"),
    Entry("gradient_lag_p95", "updates", "as above", "95th percentile"),
    Entry("gradient_lag_max", "updates", "as above", "maximum"),
    Entry("stale_gradients", "share", "server (gorila, downpour)",
          "share of arrived gradients that were dropped because they were more than `max_lag` updates late"),
    Entry("outlier_gradients", "share", "learner (gorila, downpour)",
          "share of batches whose gradient was not sent because the loss was too far above the mean"),
    Entry("lost_updates", "updates", "server (gorila, downpour)",
          "updates that a killed shard had made since the checkpoint that replaced it"),
    Entry("pixel_control_loss", "", "worker (unreal)",
          "half the squared error of the pixel control values, summed over cells and sampled sequences, before "
          "its weight"),
    Entry("reward_prediction_loss", "nats", "worker (unreal)",
          "cross-entropy of the next reward's class, summed over the samples; 1.1 per sample at chance"),
    Entry("value_replay_loss", "return²", "worker (unreal)",
          "half the squared error of the values, summed over the sampled sequences"),
    Entry("evaluation_return", "reward", "evaluator", "mean raw return of an evaluation (`--eval-every`)"),
    Entry("evaluation_NAME", "", "evaluator", "mean over the episodes of an evaluation of the number `NAME` in `info`"),
)  # fmt: skip
PERFORMANCE = (
    Entry("seconds", "s", "runtime", "training time; a resumed run continues from the saved time"),
    Entry("steps_per_second", "agent steps/s", "runtime", "since the row before"),
    Entry("updates_per_second", "updates/s", "runtime", "since the row before"),
    Entry("bytes_per_second", "bytes/s", "runtime (gorila, downpour; qt-opt with `replay_servers`)",
          "bytes of gradients that arrived at shards, of parameters that learners fetched, and of batches that "
          "replay servers sent, since the row before"),
    Entry("memory", "bytes", "runtime",
          "of all processes together, with shared pages counted once (PSS); read every five seconds"),
    Entry("restarts", "", "runtime (local)", "replicas that were restarted after a failure"),
    Entry("fill/CHANNEL", "share", "runtime",
          "share of a queue's slots in use; of a replay, of its input slots (local)"),
    Entry("time/ROLE/PHASE", "share", "runtime", "share of a role's wall time in a phase, over all replicas"),
)  # fmt: skip
EPISODES = (
    Entry("return", "reward", "actor", "raw (unclipped) return"),
    Entry("length", "agent steps", "actor", ""),
)  # fmt: skip
PHASES = (
    Entry("env", "", "actor", "stepping environments"),
    Entry("inference", "", "actor; inference", "choosing actions, or requesting them from a server"),
    Entry("unroll", "", "actor", "writing observations, actions and rewards into the message"),
    Entry("params", "", "actor", "copying new parameters"),
    Entry("batch", "", "learner", "taking messages from the channel and joining them"),
    Entry("learn", "", "learner", "the update, including reductions and reading its metrics"),
    Entry("label", "", "updater", "finding the best next actions and their values"),
    Entry("publish", "", "learner", "copying parameters into the channel"),
    Entry("insert", "", "replay", "adding unrolls to the table (serial: part of the actor's time)"),
    Entry("sample", "", "replay", "drawing a batch and gathering its data"),
    Entry("priorities", "", "replay", "writing priorities back"),
    Entry("evaluate", "", "evaluator", "playing an evaluation"),
    Entry("film", "", "evaluator", "filming an episode after an evaluation (`--eval-video`)"),
    Entry("wait:rest", "", "evaluator",
          "nothing to do, or pausing because its share of processor time is used up (local)"),
    Entry("checkpoint", "", "learner",
          "preparing its state for a checkpoint, which another process then writes (local)"),
    Entry("wait:CHANNEL", "", "any",
          "blocked on a channel: full, empty, limited by the ratio, or without a newer version (local)"),
    Entry("wait:turn", "", "any", "while other roles step (serial)"),
    Entry("start", "", "any", "from the start of the process to the first step: imports, environments, networks"),
    Entry("other", "", "any", "time outside all phases"),
)  # fmt: skip
_HEAD = """\
# Metrics

<!-- Generated by `python -m shoal.metering.glossary > docs/metrics.md`; edit shoal/metering/glossary.py. -->

A run writes `metrics.csv`, `performance.csv` and `episodes.csv`, and the same rows as `metrics.jsonl` and
`performance.jsonl`. `shoal.read_curve(run)` joins the files by `row`.

- `metrics` and `episodes` depend on the training alone. Two serial runs with the same seed write the same bytes.
- `performance` holds what depends on the clock and the machine.
- `metrics.jsonl` also has the histogram of each lag since the row before (such as `gradient_lag_histogram`): how often
  each value occurred.

A row is written every half second (local; in a run of more than an hour, every 7,200th of its length) or every 1,000
steps (serial), and at the end. Means are over all values recorded since the row before. A cell without values is empty.
A role of your own records a metric with `ctx.metrics.record("name", value)`. It becomes a column.
"""
_PHASES = """
A role is in exactly one phase at any moment, so its phases add up to its wall time. The role that waits least limits
the speed, and its largest phase names the bottleneck. A run is *actor-bound* (`env`, `unroll`, `params`),
*inference-bound*, *replay-bound* (`insert`, `sample`, `priorities`) or *learner-bound* (`batch`, `learn`, `publish`). A
system may have phases of its own, and is then bound by their role, such as *updater-bound* (`label`, qt-opt).
"""
SECTIONS: tuple[tuple[str, str, tuple[Entry, ...]], ...] = (
    ("In every file", "", ROW),
    ("metrics: of every run", "", TRAINING),
    ("metrics: of learning", "", LEARNING),
    ("performance", "", PERFORMANCE),
    ("episodes", "One row per finished episode.", EPISODES),
    ("Phases", _PHASES.strip(), PHASES),
)


NAMES = frozenset(entry.name for _, _, entries in SECTIONS for entry in entries)


def page() -> str:
    """docs/metrics.md."""
    out = [_HEAD]
    for title, text, entries in SECTIONS:
        out.append(f"## {title}\n")
        if text:
            out.append(text + "\n")
        out += ["| name | unit | recorded by | meaning |", "| --- | --- | --- | --- |"]
        out += [f"| `{e.name}` | {e.unit} | {e.by} | {e.meaning} |" for e in entries]
        out.append("")
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
