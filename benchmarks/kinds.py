"""Which knobs act on which kinds of script from outside: a table of ten knobs and eight kinds.

    python benchmarks/kinds.py [--json] [--kinds plain,DDP] [--without-init]
    python benchmarks/kinds.py --table docs/results/kinds-cpu.json

Each kind is a script of tests/scripts/kinds, which knows of no knob. A knob acts if a trial shows its
effect inside torch (formats and layouts in the graph of the loss, compiled frames, recomputed blocks,
kernels, processes). `init` offers it if it stands in the study that is written. `run` applies it if a
job under `autotune run`, which trains to its end, shows the same effect, and its checkpoint has the
names that it has without. All but compile are tried together, and each alone where that fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

import launchers
from autotune.worker.protocol import PYTHON, TORCHRUN, BlockPlan, Script, Timeouts, TrialRequest
from launchers import Resources
from search_spaces import defaults

SCRIPTS = Path(__file__).parent.parent / "tests" / "scripts" / "kinds"
OURS = (sys.executable, "-P", "-m", "autotune")
RANKS = 2
STEPS = 4
PATIENCE = 1800.0
"""Seconds that a run may take: most of them compile."""
NEEDS_CUDA = "needs CUDA"
ACTS, NOT = "yes", "no"
Told = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of script.

    Attributes:
        script: its file.
        ranked: whether torchrun starts it.
        steps: argument that says after how many steps it ends.
        cannot: knob -> why it cannot act there.
    """

    script: str
    ranked: bool = False
    steps: str = "--steps={}"
    cannot: Mapping[str, str] | None = None


KINDS = {
    "plain": Kind("plain.py"),
    "DDP": Kind("ddp.py", ranked=True),
    "FSDP2": Kind(
        "fsdp2.py",
        ranked=True,
        cannot={"channels_last": "weights that FSDP2 shards have no memory format"},
    ),
    "Trainer": Kind("trainer.py"),
    "Accelerate": Kind("accelerated.py"),
    "Lightning": Kind("lit.py"),
    "Hydra": Kind("configured.py", steps="steps={}"),
    "two models": Kind("gan.py"),
}


@dataclass(frozen=True)
class Knob:
    """A row of the table.

    Attributes:
        changes: knobs of the catalogue, and their values.
        effect: tells, from what the script tells with the changes and without, whether it acts.
        needs_cuda: whether it acts on CUDA devices only.
    """

    changes: Mapping[str, Any]
    effect: Callable[[Told, Told], bool]
    needs_cuda: bool = False


KNOBS = {
    "precision=bf16": Knob(
        {"precision": "bf16"}, lambda now, _: "torch.bfloat16" in now["products"]
    ),
    "precision=tf32": Knob({"precision": "tf32"}, lambda *_: False, needs_cuda=True),
    "compile": Knob({"compile": "default"}, lambda now, _: now["frames"] > 0),
    "compile_scope=blocks": Knob(
        {"compile": "default", "compile_scope": "blocks"}, lambda now, _: now["frames"] > 0
    ),
    "channels_last": Knob({"channels_last": True}, lambda now, _: now["channels_last"]),
    "activation_checkpointing": Knob(
        {"activation_checkpointing": 1}, lambda now, _: now["recomputed"] > 0
    ),
    "attention=unfused": Knob(
        {"attention": "unfused"}, lambda now, before: now["attention"] != before["attention"]
    ),
    "float8": Knob({"float8": "tensorwise"}, lambda *_: False, needs_cuda=True),
    "optimizer_kernels": Knob({"optimizer_kernels": "fused"}, lambda now, _: now["fused"] > 0),
    "num_workers": Knob({"num_workers": 1}, lambda now, _: now["workers"] > 0),
}


def table(kinds: list[str], *, init: bool) -> dict[str, dict[str, dict[str, str]]]:
    """Return kind -> knob -> `acts`, `offered` and `applied`, each with yes, or no and the reason."""
    return {kind: _of_kind(KINDS[kind], init=init) for kind in kinds}


def _of_kind(kind: Kind, *, init: bool) -> dict[str, dict[str, str]]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for script in SCRIPTS.glob("*.py"):
            (folder / script.name).write_text(script.read_text())
        os.environ["CXX"] = _quick_compiler(folder)
        ranks = RANKS if kind.ranked else 1
        with launchers.section_of("local").open(Resources(ranks, 0, 1, 1), temporary) as launcher:
            trial = lambda name, changes: _trial(launcher.slots[0], folder, kind, name, changes)  # noqa: E731
            acts = _effects(trial, kind)
        applied = _effects(lambda _, changes: _job(folder, kind, changes), kind)
        offered = _offered(folder, kind) if init else dict.fromkeys(KNOBS, "not asked")
        return {
            knob: {"acts": acts[knob], "offered": offered[knob], "applied": applied[knob]}
            for knob in KNOBS
        }


def _quick_compiler(folder: Path) -> str:
    """Return a C++ compiler for torch.compile that optimises nothing, as nothing is timed here."""
    path = folder / "g++"
    path.write_text('#!/bin/sh\nexec /usr/bin/env g++ "$@" -O0\n')
    path.chmod(0o755)
    return str(path)


def _effects(run: Callable[[str, Mapping[str, Any]], Told], kind: Kind) -> dict[str, str]:
    """Return knob -> whether its effect is seen."""
    before, found, quick = run("untouched", {}), dict[str, str](), list[str]()
    for name, knob in KNOBS.items():
        if knob.needs_cuda:
            found[name] = NEEDS_CUDA
        elif why := (kind.cannot or {}).get(name):
            found[name] = f"{NOT}: {why}"
        elif "compile" in knob.changes:
            found |= _effects_together(run, [name], before)
        else:
            quick.append(name)
    return found | _effects_together(run, quick, before)


def _effects_together(
    run: Callable[[str, Mapping[str, Any]], Told], names: list[str], before: Told
) -> dict[str, str]:
    changes = {knob: value for name in names for knob, value in KNOBS[name].changes.items()}
    now = run("+".join(names), changes)
    if "failed" in now and len(names) > 1:
        alone = [_effects_together(run, [name], before) for name in names]
        return {name: cell for one in alone for name, cell in one.items()}
    return {name: _cell(KNOBS[name], now, before) for name in names}


def _cell(knob: Knob, now: Told, before: Told) -> str:
    if "failed" in now:
        return f"{NOT}: {now['failed']}"
    if now["names"] != before["names"]:
        return f"{NOT}: the checkpoint has other names"
    return ACTS if knob.effect(now, before) else f"{NOT}: no effect is seen"


def _trial(
    slot: Any, folder: Path, kind: Kind, name: str, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the script tells in a trial."""
    told = folder / f"told-{name}"
    request = TrialRequest(
        trial=f"{kind.script}-{name}",
        factory="",
        args={},
        knobs={**defaults(), **changes},
        world_size=RANKS if kind.ranked else 1,
        seed=0,
        device="cpu",
        blocks=BlockPlan(0.0, 1, max_blocks=2),
        timeouts=Timeouts(startup=PATIENCE, step=PATIENCE),
        workdir=str(folder),
        log_dir=str(folder / f"logs-{name}"),
        env={"TOLD": str(told)},
        script=Script(
            kind.script,
            launch=TORCHRUN if kind.ranked else PYTHON,
            changes=tuple(changes),
        ),
    )
    report = slot.run_solo(request, lambda _: False)
    if report.outcome is not None:
        return {"failed": report.cause}
    return {**json.loads(told.read_text()), "names": None}


def _job(folder: Path, kind: Kind, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the script tells as a whole job with these knobs, and the names in its checkpoint."""
    command, told = _command(kind, STEPS), folder / "told-job"
    if changes:
        script = {
            "target": kind.script,
            "is_module": False,
            "flags": {},
            "turned": {},
            "changes": [*changes],
            "digest": None,
        }
        best = {
            "format": 2,
            "knobs": {**changes},
            "world_size": RANKS if kind.ranked else 1,
            "throughput": {},
            "speedup": None,
            "provenance": {},
            "unusual": [],
            "script": script,
        }
        (folder / "best.yaml").write_text(yaml.safe_dump(best))
        command = [*OURS, "run", "best.yaml", "--", *command]
    for left in (told, folder / "model.pt"):  # of the job before
        left.unlink(missing_ok=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TOLD": str(told)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    return {**json.loads(told.read_text()), "names": _names(folder / "model.pt")}


def _names(checkpoint: Path) -> list[str]:
    """Return the names of the tensors in a checkpoint of one or several models."""
    found = torch.load(checkpoint, weights_only=True)
    several = any(isinstance(part, dict) for part in found.values())
    parts = found.items() if several else [("", found)]
    return [f"{model}/{name}" for model, state in parts for name in state]


def _command(kind: Kind, steps: int | None = None) -> list[str]:
    python = [sys.executable]
    if kind.ranked:
        python += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*python, kind.script, *([kind.steps.format(steps)] if steps else [])]


def _offered(folder: Path, kind: Kind) -> dict[str, str]:
    """Return knob -> whether the study that init writes has its value."""
    done = subprocess.run(
        [*OURS, "init", "--", *_command(kind)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return dict.fromkeys(KNOBS, f"{NOT}: {done.stderr.strip().splitlines()[-1]}")
    text = (folder / "study.yaml").read_text()
    space = yaml.safe_load(text)["search_space"]
    return {name: _in_space(name, knob, space, text) for name, knob in KNOBS.items()}


def _in_space(name: str, knob: Knob, space: Mapping[str, list[Any]], text: str) -> str:
    if knob.needs_cuda:
        return NEEDS_CUDA
    if all(value in space.get(one, ()) for one, value in knob.changes.items()):
        return ACTS
    own = name.partition("=")[0]
    reasons = (line for line in text.splitlines() if line.startswith(f"# Not here: {own}"))
    why = next(reasons, "").partition(f"{own}: ")[2]
    return f"{NOT}: {why or 'the study names no reason'}"


def markdown(found: Mapping[str, Mapping[str, Mapping[str, str]]]) -> str:
    """Return a table with a row per knob and a column per kind; a cell says what differs from yes."""
    rows = [["knob", *found], ["---"] * (1 + len(found))]
    rows += [[knob, *(_shown(found[kind][knob]) for kind in found)] for knob in KNOBS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shown(cells: Mapping[str, str]) -> str:
    if len({*cells.values()}) == 1:
        return cells["acts"]
    if cells["acts"] == cells["applied"] == ACTS:
        return f"yes, not offered: {cells['offered'].removeprefix(f'{NOT}: ')}"
    return "; ".join(f"{column}: {cell}" for column, cell in cells.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--without-init", action="store_true")
    parser.add_argument("--table", type=Path, help="a file with what --json has printed")
    args = parser.parse_args()
    if args.table:
        print(markdown(json.loads(args.table.read_text())))
        return
    found = table(args.kinds.split(","), init=not args.without_init)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    for kind, knobs in found.items():
        print(kind)
        for knob, cells in knobs.items():
            print(f"  {knob:26}", "; ".join(f"{column}: {cell}" for column, cell in cells.items()))


if __name__ == "__main__":
    main()
