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
    Entry("row", "", "runtime", "number of the row, from 1: the same number is the same moment in all files"),
    Entry("steps", "agent steps", "actor", "over all actors, without autoreset rows (the counter `env_steps`)"),
)
TRAINING = (
    Entry("updates", "updates", "learner", "calls of the learner's `update`; one for all passes of PPO"),
    Entry("episodes", "episodes", "actor", "finished so far"),
    Entry("episode_return", "reward", "actor", "mean raw (unclipped) return of the last 100 episodes"),
    Entry("episode_length", "agent steps", "actor", "mean length of these"),
    Entry(
        "NAME",
        "",
        "actor",
        "mean over the last 100 episodes of a number `NAME` that the environment put into the "
        "`info` of an episode's last step, such as `success`; `info/NAME` where a metric of this page has that name",
    ),
    Entry(
        "record/NAME",
        "",
        "any",
        "mean of what a role recorded as `NAME`, where that is a column of the run's own, such as `steps` or "
        "`seconds`: that column stays what it is, and a warning says so",
    ),
)
LEARNING = (
    Entry("policy_lag_p50", "gradient steps", "learner; actor (with a replay)", "median of how much older than the "
          "learner's newest parameters those were that acted: per message when it is learned from; with a "
          "replay, per unroll when its last step is taken"),
    Entry("policy_lag_p95", "gradient steps", "as above", "its 95th percentile"),
    Entry("policy_lag_max", "gradient steps", "as above", "its maximum"),
    Entry("loss", "", "learner (of all but PPO and es)", "what is minimised, over the batch; of apex-dpg "
          "and d4pg the critic's part"),
    Entry("grad_norm", "", "learner", "global norm of the gradient, before clipping; es: of the weighted noise"),
    Entry("learning_rate", "", "learner", "of this update"),
    Entry("SETTING", "", "learner", "of this update, the value of each other setting that is a schedule, such as "
          "`entropy_cost`"),
    Entry("skipped_updates", "share", "learner", "updates left out because their loss or gradient was not finite; "
          "ten in a row end the run"),
    Entry("q_mean", "return", "learner (with a replay); worker (async-*)", "mean Q-value of the batch's actions, every "
          "tenth update (async-*: of each segment); of r2d2 with the rescaling undone"),
    Entry("td_error", "return", "learner (with a replay); worker (async-*)", "mean absolute TD error, unclipped, every "
          "tenth update (async-*: of each segment); of r2d2 between rescaled values, of d4pg and rainbow of the means"),
    Entry("clipped_mass", "share", "learner (rainbow, d4pg)", "of the target distributions' probability, before it is "
          "projected, what lies outside of `v_min` to `v_max`; every tenth update"),
    Entry("delta_q_first", "share", "learner (r2d2)", "ΔQ at the first step of a sequence that is learned from: how "
          "far values after the stored recurrent state are from those after the learner's, over the sequence's largest "
          "value; 0 without lag; every tenth update"),
    Entry("delta_q_last", "share", "learner (r2d2)", "ΔQ at the last step, of sequences of full length"),
    Entry("demonstrations", "share", "learner (r2d3); updater (qt-opt)", "of a batch's elements that were "
          "demonstrations"),
    Entry("label_age_p50", "updates", "learner (qt-opt)", "median of the updates between the parameters that labelled "
          "a transition and the update that learns from it"),
    Entry("label_age_p95", "updates", "as above", "its 95th percentile"),
    Entry("label_age_max", "updates", "as above", "its maximum"),
    Entry("target_disagreement", "return", "updater (qt-opt)", "mean absolute difference of what the two target "
          "networks say of the best next action"),
    Entry("clipped_labels", "share", "updater (qt-opt, with cross-entropy)", "of labels, those that lay outside of "
          "[0, 1]"),
    Entry("action_gradient", "return", "learner (apex-dpg, d4pg)", "mean absolute derivative of the value by an "
          "element of the policy's action (per half side of the box), before the clip, every tenth update"),
    Entry("saturated", "share", "learner (apex-dpg, d4pg)", "of the policy's actions, those within 1 % of half the box "
          "of its edge, where tanh is flat and hardly any gradient reaches the policy; every tenth update"),
    Entry("edge_mass", "share", "learner (d4pg)", "of the critic's probability, on the outermost two of its returns, "
          "every tenth update"),
    Entry("top_edge_mass", "share", "learner (d4pg)", "of the critic's probability, on the largest of its returns, "
          "every tenth update"),
    Entry("replay_size", "items", "learner (with a replay)", "that can be sampled: transitions; of r2d2 "
          "sequences"),
    Entry("samples_per_insert", "samples", "replay", "drawn per item inserted beyond the first "
          "`min_replay`, since the start; of a replay in shards, candidates: `replay_shards` times as many"),
    Entry("replay_share", "share", "replay (with `replay_shards`)", "of a batch's items, those that a shard "
          "is to send: its part of the sum of all weights"),
    Entry("policy_loss", "", "learner (impala, PPO, a3c, unreal)", "the policy's part; its size says little, as "
          "advantages change"),
    Entry("value_loss", "return²", "learner (impala, PPO, a3c, unreal)", "half the squared error of the values"),
    Entry("entropy", "nats", "learner (impala, PPO, a3c, unreal)", "of the current policy (impala: at the "
          "trajectories' last steps), summed over parts of an action"),
    Entry("explained_variance", "share", "learner (impala, PPO)", "of the variance of the returns that values are "
          "learned from, what the values before the update explain: 1 for perfect ones, 0 for a constant"),
    Entry("rho", "", "learner (impala)", "mean of π/μ before the clip; 1 without lag"),
    Entry("kl", "nats", "learner (PPO)", "mean(ρ − 1 − log ρ), an estimate of KL(old, new) that is never "
          "negative"),
    Entry("clip_fraction", "share", "learner (PPO)", "of ratios outside 1 ± ε"),
    Entry("ratio_error", "", "learner (PPO)", "largest absolute ρ − 1 on the first minibatch: 0 up to "
          "rounding, or masks, states or statistics are wrong"),
    Entry("minibatches", "gradient steps", "learner (PPO)", "in this update; fewer after an early stop by "
          "`target_kl`"),
    Entry("population_return", "reward", "learner (es)", "mean training return of the generation's perturbed policies"),
    Entry("best_return", "reward", "learner (es)", "the largest of these"),
    Entry("unperturbed_return", "reward", "worker (es)", "mean training return of the policy itself, without a cap, "
          "every `evaluate_every` generations"),
    Entry("update_ratio", "", "learner (es)", "norm of the step over norm of the parameters"),
    Entry("episode_cap", "agent steps", "learner (es)", "longest episode of the next generation; 0: no limit"),
    Entry("discarded_results", "messages", "learner (es)", "of an old task, or of a block that was there already, "
          "since the update before"),
    Entry("rollout_fraction", "share", "rank (dd-ppo)", "of a rollout's steps that were collected; less than 1 where a "
          "rank was preempted"),
    Entry("update_lag_p50", "updates", "worker (a3c, async-*)", "median of the steps that others added between a "
          "worker's copy of the parameters and its own step"),
    Entry("update_lag_p95", "updates", "as above", "its 95th percentile"),
    Entry("update_lag_max", "updates", "as above", "its maximum"),
    Entry("gradient_lag_p50", "updates", "server (gorila, downpour)", "median of the updates that a shard made between "
          "the parameters a gradient was made with and its arrival"),
    Entry("gradient_lag_p95", "updates", "as above", "its 95th percentile"),
    Entry("gradient_lag_max", "updates", "as above", "its maximum"),
    Entry("stale_gradients", "share", "server (gorila, downpour)", "of the gradients that arrived at a shard, those "
          "dropped because they were later than `max_lag`"),
    Entry("outlier_gradients", "share", "learner (gorila, downpour)", "of batches, those whose loss was so far above "
          "the mean that their gradient was not sent"),
    Entry("lost_updates", "updates", "server (gorila, downpour)", "of a shard that was killed: made since the "
          "checkpoint it came back from"),
    Entry("pixel_control_loss", "", "worker (unreal)", "half the squared error of the values of changing each cell, "
          "summed over cells and over the sequences drawn; before its weight"),
    Entry("reward_prediction_loss", "nats", "worker (unreal)", "cross-entropy of the class of the next reward, summed "
          "over what was drawn; 1.1 for each at chance"),
    Entry("value_replay_loss", "return²", "worker (unreal)", "half the squared error of the values, summed over the "
          "sequences drawn"),
    Entry("evaluation_return", "reward", "evaluator", "mean raw return of an evaluation (`--eval-every`)"),
    Entry("evaluation_NAME", "", "evaluator", "mean over the episodes of an evaluation of the number `NAME` in `info`"),
)  # fmt: skip
PERFORMANCE = (
    Entry("seconds", "s", "runtime", "of training; a resumed run goes on from where it was saved"),
    Entry("steps_per_second", "agent steps/s", "runtime", "since the row before"),
    Entry("updates_per_second", "updates/s", "runtime", "since the row before"),
    Entry(
        "bytes_per_second",
        "bytes/s",
        "runtime (gorila, downpour; qt-opt with `replay_servers`)",
        "of gradients that arrived at shards, parameters that learners fetched and batches that replay servers sent, "
        "since the row before",
    ),
    Entry("memory", "bytes", "runtime", "of all processes together, shared pages once (PSS); read every five seconds"),
    Entry("restarts", "", "runtime (local)", "replicas restarted after a failure"),
    Entry("fill/CHANNEL", "share", "runtime", "of a queue's slots in use; of a replay, its input slots (local)"),
    Entry("time/ROLE/PHASE", "share", "runtime", "of a role's wall time spent in a phase, over its replicas"),
)
EPISODES = (
    Entry("return", "reward", "actor", "raw (unclipped)"),
    Entry("length", "agent steps", "actor", ""),
)
PHASES = (
    Entry("env", "", "actor", "stepping environments"),
    Entry("inference", "", "actor; inference", "choosing actions, or asking for them"),
    Entry("unroll", "", "actor", "writing observations, actions and rewards into the message"),
    Entry("params", "", "actor", "copying new parameters in"),
    Entry("batch", "", "learner", "taking messages from the channel and joining them"),
    Entry("learn", "", "learner", "the update, with the sums of a group, and reading its metrics"),
    Entry("label", "", "updater", "finding the best next actions, and what they are worth"),
    Entry("publish", "", "learner", "copying parameters out"),
    Entry("insert", "", "replay", "adding unrolls to the table (serial: in the actor's time)"),
    Entry("sample", "", "replay", "drawing and gathering a batch"),
    Entry("priorities", "", "replay", "writing priorities back"),
    Entry("evaluate", "", "evaluator", "playing an evaluation"),
    Entry("film", "", "evaluator", "filming an episode after it (`--eval-video`)"),
    Entry("wait:rest", "", "evaluator", "nothing to do, or its share of the processors is used up (local)"),
    Entry("checkpoint", "", "learner", "fixing its state for a checkpoint, which another process then writes (local)"),
    Entry("wait:CHANNEL", "", "any", "blocked on a channel: full, empty, held back by the ratio, or nothing newer "
          "(local)"),
    Entry("wait:turn", "", "any", "while other roles step (serial)"),
    Entry("start", "", "any", "from the start of the process to the first step: imports, environments, networks"),
    Entry("other", "", "any", "what no phase covers"),
)  # fmt: skip

_HEAD = """\
# Metrics

<!-- Generated by `python -m shoal.metering.glossary > docs/metrics.md`; edit shoal/metering/glossary.py. -->

A run writes `metrics.csv`, `performance.csv` and `episodes.csv`, and the same rows as `metrics.jsonl` and
`performance.jsonl`. What is in `metrics` and `episodes` follows from the training alone: two serial runs write the same
bytes. What a clock says is in `performance`. `row` joins them; `shoal.read_curve(run)` does so.
`metrics.jsonl` has also the histogram of each lag since the row before (`gradient_lag_histogram`): how often each
number was seen.

A row is written every half second (local; in a run of more than an hour, every 7,200th of its length) or every 1,000
steps (serial), and at the end. Means are over what was recorded since the row before; a cell is empty where nothing
was. A role records a metric of your own with one line, `ctx.metrics.record("name", value)`: it becomes a column.
"""
_PHASES = """
A role is in exactly one phase at any moment, so its phases add up to its wall time. Shoal calls a run *actor-bound*
(`env`, `unroll`, `params`), *inference-bound*, *replay-bound* (`insert`, `sample`, `priorities`) or *learner-bound*
(`batch`, `learn`, `publish`): the role that waits least sets the pace, and the kind of work that takes most of its time
names the bottleneck. A phase of a system's own makes it bound by that role, as *updater-bound* (`label`, qt-opt).
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
        out += ["| name | unit | recorded by | is |", "| --- | --- | --- | --- |"]
        out += [f"| `{e.name}` | {e.unit} | {e.by} | {e.meaning} |" for e in entries]
        out.append("")
    return "\n".join(out).rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
