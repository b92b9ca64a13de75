"""Prioritised replay: inserts, samples and priority updates per second, Shoal and its peers in turn.

    python benchmarks/replay.py --only atari

One-step transitions, batches of 512, alpha 0.6; ``local`` is one process and one thread, ``processes`` two writer
processes and a reader. A peer's add is its own best unit (Tianshou: transition, RLlib: episode, Reverb: item), Shoal's
an unroll. An Atari sample is two stacks of four 84x84 frames on every side. Every table is full before anything but its
filling is measured; the peers' are smaller (column ``held``), as filling them takes long. While a table fills, the
system's time to find memory is most of an Atari insert, and differs from machine to machine.
"""

from __future__ import annotations

from typing import Any

from common import Side, alternate, chosen, listed, middle, parser, publish, ratio, table

CAPACITY = {"cartpole": 1_000_000, "atari": 200_000}
KEYS = ("inserts_per_s", "samples_per_s", "updates_per_s")


def cases() -> dict[str, list[Side]]:
    out: dict[str, list[Side]] = {}
    for item, capacity in CAPACITY.items():
        for mode in ("local", "processes"):
            given = (item, mode, "--capacity", str(capacity))
            ours = [Side("shoal", "ours_replay.py", given)]
            if mode == "local":
                ours += [
                    Side("shoal", "ours_replay.py", (*given, "--sampler", name), name=f"shoal, {name}")
                    for name in ("uniform", "rank", "greedy")
                ]
            peers = ("tianshou", "rllib", "reverb") if mode == "local" else ("rllib", "reverb")
            out[f"{item}-{mode}"] = [*ours, *(Side(p, "peers/bench_replay.py", (p, *given)) for p in peers)]
    return out


def main() -> None:
    args = parser(__doc__, seconds=1.5, repeats=1).parse_args()
    wanted = chosen(cases(), args, ["cartpole"])
    if args.list:
        listed(wanted)
        return
    extra = ["--seconds", str(0.05 if args.smoke else args.seconds)]
    tables: dict[str, str] = {}
    data: dict[str, Any] = {}
    for name, sides in wanted.items():
        print(name, flush=True)
        sides = sides[:1] + [side for side in sides if side.peer != "shoal"] if args.smoke else sides
        found = data[name] = alternate(sides, 1 if args.smoke else args.repeats, extra)
        peers = [side.label for side in sides if side.peer != "shoal" and side.label in found]
        best = {key: max((middle(found[p], key) for p in peers), default=float("nan")) for key in KEYS}
        rows = []
        for label, figures in found.items():
            rates = {key: middle(figures, key) for key in KEYS}
            ratios = [ratio(rates[key], best[key]) for key in KEYS] if label == "shoal" else [""] * 3
            facts = [middle(figures, key) for key in ("fill_per_s", "held", "rss_mb")]
            rows.append([label, *rates.values(), *facts, *ratios])
        columns = [
            "side",
            "inserts/s",
            "samples/s",
            "updates/s",
            "filling/s",
            "held",
            "RSS MB",
            "x best: inserts",
            "samples",
            "updates",
        ]
        tables[name] = table(columns, rows)
    from ours_replay import table_spec, unroll_spec

    nbytes = table_spec("atari", "proportional", 1_000_000).nbytes(unroll_spec("atari"))
    tables["memory"] = f"A million stacked Atari transitions take {nbytes / 1e9:.2f} GB in Shoal's table."
    publish("replay", __doc__ or "", tables, data, args.smoke)


if __name__ == "__main__":
    main()
