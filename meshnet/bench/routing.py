"""``python -m meshnet.bench routing``: the routing policies side by side on a simulated mesh, and their speed.

Rows: ``{"scenario", "policy", "load", "oracle_percent", "ci95", "p95_s_per_token", "slow_share"}``. oracle_percent is
a policy's tokens/s over a clairvoyant's in the same world, mean over seeds; ci95 half the width of its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from multiprocessing import get_context
from pathlib import Path

from meshnet.bench.simulation import make_world
from meshnet.bench.simulation_players import EXTRA_PLAYERS, PLAYER_NAMES
from meshnet.bench.simulation_run import Score, play
from meshnet.bench.simulation_speed import speeds

SCENARIOS = ("stationary", "abrupt", "drift", "churn", "lengths", "failing-hop", "liar", "spread-60x")
LOADS = (0.05, 0.2, 0.4)
"""Requests/s of the scenarios that are played at several loads; the others are played at MAIN_LOAD."""
MAIN_LOAD = 0.2
LOADED_SCENARIOS = ("stationary", "abrupt")
DURATION_S = 2400.0
"""Of one simulated run: four half-lives, 480 requests at MAIN_LOAD."""
N_SEEDS = 12
MAX_PROCESSES = 2
"""Worlds played at once. More finish sooner and take the machine."""

# Two-sided 97.5 % points of Student's t by degrees of freedom; from 30 on the normal's serves.
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 7: 2.36, 9: 2.26, 11: 2.20, 15: 2.13, 19: 2.09, 23: 2.07}

Row = dict[str, str | float]


def combinations() -> list[tuple[str, float]]:
    """Every (scenario, load) of the full table."""
    return [(s, load) for s in SCENARIOS for load in (LOADS if s in LOADED_SCENARIOS else (MAIN_LOAD,))]


def simulate(
    combos: Iterable[tuple[str, float]],
    players: Sequence[str] = PLAYER_NAMES,
    n_seeds: int = N_SEEDS,
    duration_s: float = DURATION_S,
    processes: int = 1,
) -> list[Row]:
    """One row per combination and player, in the order given."""
    combos = list(combos)
    jobs = [(scenario, load, seed, tuple(players), duration_s) for scenario, load in combos for seed in range(n_seeds)]
    if processes > 1:
        with get_context("spawn").Pool(min(processes, MAX_PROCESSES)) as pool:
            played = pool.map(_play_all, jobs, chunksize=1)
    else:
        played = [_play_all(job) for job in jobs]
    rows: list[Row] = []
    for at, (scenario, load) in enumerate(combos):
        seeds = played[at * n_seeds : (at + 1) * n_seeds]
        rows += [_row(scenario, load, player, seeds) for player in players]
    return rows


def _play_all(job: tuple[str, float, int, tuple[str, ...], float]) -> dict[str, Score]:
    scenario, load, seed, players, duration_s = job
    world = make_world(scenario, load, seed, duration_s)
    return {player: play(world, player, seed) for player in {*players, "oracle"}}


def _row(scenario: str, load: float, player: str, seeds: Sequence[dict[str, Score]]) -> Row:
    shares = [100.0 * s[player].tokens_per_s / s["oracle"].tokens_per_s for s in seeds]
    n = len(shares)
    t = _T[max(d for d in _T if d <= n - 1)] if 1 < n <= 30 else 1.96
    return {
        "scenario": scenario,
        "policy": player,
        "load": load,
        "oracle_percent": round(statistics.fmean(shares), 2),
        "ci95": round(t * statistics.stdev(shares) / math.sqrt(n), 2) if n > 1 else 0.0,
        "p95_s_per_token": round(statistics.fmean(s[player].p95_s_per_token for s in seeds), 4),
        "slow_share": round(statistics.fmean(s[player].slow_share for s in seeds), 4),
    }


def table(rows: Sequence[Row]) -> str:
    """Markdown, one table a scenario and load."""
    lines: list[str] = []
    seen: tuple[object, object] | None = None
    for row in rows:
        if (key := (row["scenario"], row["load"])) != seen:
            lines += ["", f"**{key[0]}**, {key[1]} requests/s", "", "| policy | % of oracle | p95 s/token | slow |"]
            lines += ["|---|---:|---:|---:|"]
            seen = key
        lines.append(
            f"| {row['policy']} | {row['oracle_percent']:.1f} ± {row['ci95']:.1f} "
            f"| {row['p95_s_per_token']:.3f} | {float(row['slow_share']):.1%} |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m meshnet.bench routing", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print rows as JSON lines")
    parser.add_argument("--out", type=Path, help="also write the rows to this file, as JSON lines")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this one; may be repeated")
    parser.add_argument(
        "--policy", action="append", help=f"of {', '.join((*PLAYER_NAMES, *EXTRA_PLAYERS))}; may be repeated"
    )
    parser.add_argument("--load", action="append", type=float, help="requests/s; may be repeated")
    parser.add_argument("--seeds", type=int, default=N_SEEDS, help=f"worlds per scenario (default {N_SEEDS})")
    parser.add_argument("--duration", type=float, default=DURATION_S, help="simulated seconds per world")
    parser.add_argument("--speed", action="store_true", help="measure the time of decisions instead")
    parser.add_argument("--processes", type=int, default=MAX_PROCESSES, help="worlds played at once")
    options = parser.parse_args(argv)
    if options.speed:
        lines = [json.dumps(row) for row in speeds()]
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    combos = [(s, x) for s, x in combinations() if s in (options.scenario or SCENARIOS)]
    if options.load:
        combos = [(s, x) for s in options.scenario or SCENARIOS for x in options.load]
    rows = simulate(combos, options.policy or PLAYER_NAMES, options.seeds, options.duration, options.processes)
    lines = "\n".join(json.dumps(row) for row in rows)
    if options.out:
        options.out.write_text(lines + "\n", encoding="utf-8")
    sys.stdout.write((lines if options.json else table(rows)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
