#!/usr/bin/env python3
"""Library rivals of `tidegate bench forecast` on the same series and origins.

    cargo run --release -p tidegate-evaluation --example forecast -- --traces DIR --dump SERIES --json > ours.json
    python3 -m venv venv && venv/bin/pip install -r tests/rivals/requirements.txt
    venv/bin/python tests/rivals/forecast.py SERIES [--ours ours.json] [--models AutoETS,LGB] [--every 1] [--json out.json]

SERIES holds one JSON file a series: set, name, values, origins, first_origin, horizon. Quantiles 0.1, 0.5, 0.9, 0.95; every model is
refitted at every origin on at most the last 1,008 hours (LGB: on all) and sees nothing after it. One thread.
"""
import argparse
import json
import math
import os
import sys
import time
import warnings
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NIXTLA_NUMBA_CACHE"):
    os.environ.setdefault(name, "1")
warnings.filterwarnings("ignore")

import lightgbm as lgb  # noqa: E402
import numpy as np  # noqa: E402
from statsforecast import models as sf  # noqa: E402

QUANTILES = np.array([0.1, 0.5, 0.9, 0.95])
BUCKETS = (1, 24, 168)
HISTORY = 1008


def from_library(make):
    """Point, 80 % and 90 % intervals of a statsforecast model as quantiles, shape (h, 4)."""

    def run(y, h):
        out = make().forecast(y=y[-HISTORY:].astype(np.float64), h=h, level=[80, 90])
        return np.stack([out["lo-80"], out["mean"], out["hi-80"], out["hi-90"]], axis=1)

    return run


def naive(y, h):
    sd = np.std(np.diff(y[-HISTORY:])) * np.sqrt(np.arange(1, h + 1))
    return gaussian(np.full(h, y[-1]), sd)


def seasonal(m):
    def run(y, h):
        y = y[-HISTORY:]
        steps = np.arange(h)
        sd = np.std(y[m:] - y[:-m]) * np.sqrt(steps // m + 1)
        return gaussian(y[len(y) - m + steps % m], sd)

    return run


def gaussian(point, sd):
    z = np.array([-1.2815515655446004, 0.0, 1.2815515655446004, 1.6448536269514722])
    return point[:, None] + sd[:, None] * z[None, :]


def last_week(y, h):
    return np.tile(np.quantile(y[-168:], QUANTILES), (h, 1))


def features(y, o, steps):
    """State at origin o and what is known of each target hour, shape (len(steps), features)."""
    past = y[:o]

    def mean(n):
        return past[-n:].mean()

    state = [past[-1], past[-2], past[-3], past[-1] - past[-4], mean(6), mean(24), mean(168), mean(336)]
    rows = []
    for h in steps:
        target = o + h - 1
        day = [target - 24 * k for k in range(math.ceil(h / 24), math.ceil(h / 24) + 3)]
        week = [target - 168 * k for k in range(math.ceil(h / 168), math.ceil(h / 168) + 2)]
        lags = [past[i] if i >= 0 else past[0] for i in day + week]
        turn = 2 * math.pi * target
        calendar = [f(turn * k / m) for m in (24, 168) for k in (1, 2, 3) for f in (math.sin, math.cos)]
        rows.append([h, *state, *lags, *calendar])
    return rows


def boosted(y, h):
    """One booster a quantile on the change from the last value; 16 horizons drawn for each origin of the past."""
    rng = np.random.default_rng(7)
    o = len(y)
    x, t = [], []
    for past in range(min(o // 2, 168), o):
        steps = rng.integers(1, h + 1, 16)
        steps = steps[past + steps - 1 < o]
        if len(steps):
            x += features(y, past, steps)
            t += list(y[past + steps - 1] - y[past - 1])
    x, t = np.array(x), np.array(t)
    last = np.array(features(y, o, range(1, h + 1)))
    out = []
    for q in QUANTILES:
        options = dict(objective="quantile", alpha=float(q), learning_rate=0.05, num_leaves=15, num_threads=1,
                       min_data_in_leaf=20, verbosity=-1, seed=7, deterministic=True)
        out.append(lgb.train(options, lgb.Dataset(x, t), 120).predict(last, num_threads=1) + y[-1])
    return np.sort(np.stack(out, axis=1), axis=1)


MODELS = {
    "Naive": naive,
    "SNaive24": seasonal(24),
    "SNaive168": seasonal(168),
    "Emp1w": last_week,
    "CSP24": from_library(lambda: sf.ConformalSeasonalPool(season_length=24)),
    "CSP168": from_library(lambda: sf.ConformalSeasonalPool(season_length=168)),
    "AutoTheta": from_library(lambda: sf.AutoTheta(season_length=24)),
    "LGB": boosted,
    "MSTL": from_library(lambda: sf.MSTL(season_length=[24, 168], trend_forecaster=sf.AutoETS(model="ZZN"))),
    "AutoETS": from_library(lambda: sf.AutoETS(season_length=24)),
    "AutoARIMA": from_library(lambda: sf.AutoARIMA(
        season_length=24, max_p=2, max_q=2, max_P=1, max_Q=1, nmodels=12, approximation=True)),
}
ENSEMBLE = ("AutoARIMA", "LGB", "AutoTheta")


def score(series, origins, forecasts):
    """Metrics by bucket; forecasts has shape (origins, h, 4)."""
    y = np.array(series["values"])
    first = series["first_origin"]
    scale = np.mean(np.abs(y[24:first] - y[: first - 24])) or float("nan")
    out = {}
    for bucket in BUCKETS:
        if bucket > series["horizon"]:
            continue
        f = np.maximum(forecasts[:, :bucket], 0.0)
        truth = np.stack([y[o : o + bucket] for o in origins])
        e = truth[:, :, None] - f
        pinball = np.maximum(QUANTILES * e, (QUANTILES - 1) * e)
        total = np.abs(truth).sum()
        size = np.abs(truth) + np.abs(f[:, :, 1])
        error = np.abs(e[:, :, 1])
        out[str(bucket)] = {
            "mase": float(error.mean() / scale),
            "smape": float((200 * np.divide(error, size, out=np.zeros_like(error), where=size > 0)).mean()),
            "wql": float(2 * pinball.sum(axis=(0, 1)).mean() / total),
            "pb95": float(2 * pinball[:, :, 3].sum() / total),
            "cov80": float(((truth >= f[:, :, 0]) & (truth <= f[:, :, 2])).mean()),
            "cov95": float((truth <= f[:, :, 3]).mean()),
        }
    return out


def geometric(rows, base, key, bucket, names):
    logs = [math.log(rows[n][bucket][key] / base[n][bucket][key]) for n in names]
    return math.exp(sum(logs) / len(logs))


def table(results):
    """Scale-free summary over the job-demand series and serving, as the trial prints it."""
    base = results["SNaive24"]
    print(f"{'model':<12}" + "".join(f"{c:>12}" for c in (
        "rWQL 1h", "rWQL 24h", "rWQL 168h", "rMASE 24h", "rMASE 168h", "c80 24h", "c95 24h", "c80 168h", "c95 168h",
        "jobs 1h", "jobs 24h", "jobs 168h", "serving 24h")))
    for model, rows in results.items():
        demand = [n for n in rows if not n.startswith("servegen") and "168" in rows[n]]
        jobs = [n for n in demand if n.startswith(("itp", "philly"))]
        serving = [n for n in rows if n.startswith("servegen")]
        cells = []
        if demand:
            cells += [geometric(rows, base, "wql", b, demand) for b in ("1", "24", "168")]
            cells += [geometric(rows, base, "mase", b, demand) for b in ("24", "168")]
            cells += [np.mean([rows[n][b][k] for n in demand]) for b in ("24", "168") for k in ("cov80", "cov95")]
        else:
            cells += [math.nan] * 9
        cells += [geometric(rows, base, "wql", b, jobs) for b in ("1", "24", "168")] if jobs else [math.nan] * 3
        cells.append(np.mean([rows[n]["24"]["wql"] for n in serving]) if serving else math.nan)
        print(f"{model:<12}" + "".join(f"{c:>12.3f}" for c in cells))


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("series", type=Path)
    options.add_argument("--ours", type=Path, help="report of the example with --json, put beside the rivals")
    options.add_argument("--models", default=",".join(MODELS))
    options.add_argument("--every", type=int, default=1, help="use every n-th origin only")
    options.add_argument("--sets", default="itp,philly,helios,openb,servegen")
    options.add_argument("--json", type=Path)
    args = options.parse_args()
    results, kept, taken = {}, {}, {}
    every_series = [json.loads(p.read_text()) for p in sorted(args.series.glob("*.json"))]
    every_series = [s for s in every_series if s["set"] in args.sets.split(",")]
    wanted = args.models.split(",")
    for model in wanted:
        results[model] = {}
        for series in every_series:
            name = f"{series['set']}-{series['name']}"
            y, origins = np.array(series["values"]), series["origins"][:: args.every]
            began = time.perf_counter()
            out = []
            for o in origins:
                try:
                    q = MODELS[model](y[:o], series["horizon"])
                except Exception as error:  # a library that fails is scored as the naive forecast, and said
                    print(f"{model} {name} at {o}: {error}", file=sys.stderr)
                    q = naive(y[:o], series["horizon"])
                out.append(np.where(np.isfinite(q), q, y[o - 1]))
            forecasts = np.stack(out)
            taken[f"{model} {name}"] = (time.perf_counter() - began) / len(origins) * 1000
            if model in ENSEMBLE:
                kept[model, name] = forecasts
            results[model][name] = score(series, origins, forecasts)
        spent = [v for k, v in taken.items() if k.startswith(model + " ")]
        print(f"{model}: median {np.median(spent):.1f} ms, greatest {max(spent):.1f} ms per series and origin",
              file=sys.stderr, flush=True)
        if args.json:  # kept as it goes: the slow models take long
            args.json.write_text(json.dumps({"series": results, "ms": taken}, indent=1))
    if all(m in wanted for m in ENSEMBLE):
        results["lib ref"] = {}
        for series in every_series:
            name = f"{series['set']}-{series['name']}"
            mean = np.mean([np.maximum(kept[m, name], 0.0) for m in ENSEMBLE], axis=0)
            results["lib ref"][name] = score(series, series["origins"][:: args.every], mean)
    if args.ours:
        results["tidegate"] = json.loads(args.ours.read_text())["series"]["tidegate"]
    if "SNaive24" in results:
        table(results)
    if args.json:
        args.json.write_text(json.dumps({"series": results, "ms": taken}, indent=1))


if __name__ == "__main__":
    main()
