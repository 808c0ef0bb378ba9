"""A training script that changes files in every way that such scripts do, and checks what it finds."""
# ruff: noqa: PTH101, PTH103, PTH105, PTH108, PTH110, PTH123, PTH208, PTH211

import argparse
import os
import shelve
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--programs", action="store_true", help="write by other programs, too")
arguments = parser.parse_args()
home = Path.home()
weights = {"weight": torch.ones(3)}


def check_nothing_is_left_of_others() -> None:
    assert not Path("out").exists()
    assert Path("old/model.pt").read_bytes() == b"MY TRAINED MODEL"
    assert Path("log.txt").read_text() == "mine\n"


def change() -> None:
    os.makedirs("out/deep")
    torch.save(weights, "old/model.pt")
    assert torch.load("old/model.pt")["weight"].sum() == 3
    torch.save(weights, Path("out/last.pt"))
    safetensors.torch.save_file(weights, "out/model.safetensors")
    assert safetensors.torch.load_file("out/model.safetensors")["weight"].sum() == 3
    np.save("out/deep/array.npy", np.ones(2))
    assert np.load("out/deep/array.npy").sum() == 2
    with open("log.txt", "a") as file:
        file.write("theirs\n")
    assert Path("log.txt").read_text() == "mine\ntheirs\n"
    Path("new.txt").write_text("new")
    os.replace("new.txt", "config.json")
    assert Path("config.json").read_text() == "new"
    os.unlink("gone.txt")
    assert not os.path.exists("gone.txt")
    shutil.rmtree("tree")
    assert "tree" not in os.listdir(".")
    assert {"out", "old"} <= {entry.name for entry in os.scandir(".")}
    os.symlink("last.pt", "out/latest.pt")
    assert torch.load("out/latest.pt")["weight"].sum() == 3
    shutil.copy("out/last.pt", "out/copy.pt")
    os.chmod("script.sh", 0o700)
    with shelve.open("records") as records:
        records["one"] = 1
    with shelve.open("records") as records:
        assert records["one"] == 1
    with sqlite3.connect("runs.db") as runs:
        runs.execute("create table run (number)")
    assert sqlite3.connect("runs.db").execute("select * from run").fetchall() == []
    home.joinpath("history").write_text("theirs")
    (home / ".cache" / "tool").mkdir(parents=True, exist_ok=True)
    (home / ".cache" / "tool" / "entry").write_text("theirs")
    assert [str(path) for path in Path("out").rglob("*.npy")] == ["out/deep/array.npy"]
    code = (
        "open('child.txt', 'w').write('child'); assert open('log.txt').read().endswith('theirs\\n')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert Path("child.txt").read_text() == "child"


def change_by_programs() -> None:
    subprocess.run(["cp", "train.py", "by-cp.py"], check=True)
    subprocess.run("echo shell > shell.txt; rm log.txt", shell=True, check=True)
    assert Path("shell.txt").exists()
    assert not Path("log.txt").exists()


if os.environ.get("LOCAL_RANK", "0") == "0":
    check_nothing_is_left_of_others()
    change()
    if arguments.programs:
        change_by_programs()

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=arguments.batch_size):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if os.environ.get("LOCAL_RANK", "0") == "0":
            torch.save(weights, "old/model.pt")
