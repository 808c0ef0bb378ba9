"""How often does the gate's comparison of losses pass what lies just at its limit? Made-up courses.

    python benchmarks/equivalence.py [--json] [--gates 2000]

Each gate compares up to three pairs of courses, as `measurement.numerics` does, with the limit as the
unit: the last quarter of a pair's differences are 16 steps with a lag-one correlation of 0.3 around the
distance of its seed, and that is normal around the distance on average. `passed_at_limit` is the share
that is called equivalent where that is 1 (nominal: 0.05), `passed_within` where it is 0.4 and should
pass, by how much seeds scatter and by how much they are taken to. 0.15 is what the gate takes.
"""

import argparse
import dataclasses
import json
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from autotune.measurement.numerics import Equivalence, distance
from autotune.measurement.policy import GATE, GatePolicy

ASSUMED = (0.0, 0.1, 0.15, 0.2)
STEPS, CORRELATION = 16, 0.3
STEP_SCATTER = (0.1, 0.3, 0.8)
SEED_SCATTER = (0.0, 0.05, 0.1, 0.2, 0.4)
LIMIT, WITHIN = 1.0, 0.4


def course(
    generator: np.random.Generator, mean: float, between: float, within: float
) -> list[float]:
    """Differences, step by step, of a pair with a new seed."""
    noise = generator.standard_normal(STEPS)
    for step in range(1, STEPS):
        noise[step] = CORRELATION * noise[step - 1] + np.sqrt(1 - CORRELATION**2) * noise[step]
    own = mean + between * generator.standard_normal()
    return [float(value) for value in own + within * noise]


def passes(
    generator: np.random.Generator, mean: float, between: float, within: float, policy: GatePolicy
) -> bool:
    """Return whether a gate calls a distance equivalent."""
    runs: list[list[float]] = []
    while len(runs) < policy.most_seeds:
        runs.append(course(generator, mean, between, within))
        answer = distance(runs).within(LIMIT, policy.most_seeds, policy)
        if answer is not Equivalence.OPEN:
            return answer is Equivalence.EQUIVALENT
    return False


def cell(within: float, between: float, assumed: float, gates: int) -> dict[str, Any]:
    """Shares of one combination; each has the same courses as the others with its scatter."""
    policy = dataclasses.replace(GATE, seed_scatter=assumed)
    shares = {}
    for name, mean in (("passed_at_limit", LIMIT), ("passed_within", WITHIN)):
        generator = np.random.default_rng(1)
        passed = [passes(generator, mean, between, within, policy) for _ in range(gates)]
        shares[name] = sum(passed) / gates
    return {"steps": within, "seeds": between, "assumed": assumed, **shares}


def main() -> None:
    """Print a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gates", type=int, default=2000)
    options = parser.parse_args()
    cells = [(w, b, a) for w in STEP_SCATTER for b in SEED_SCATTER for a in ASSUMED]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(cell, *zip(*cells, strict=True), [options.gates] * len(cells)))
    if options.json:
        print(json.dumps({"gates": options.gates, "cells": found}, indent=1))
        return
    for one in found:
        print("  ".join(f"{name} {value:g}" for name, value in one.items()))


if __name__ == "__main__":
    main()
