"""Implementation of attention in compiled code, beside caches on disk that other trials have filled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.worker.effects import kernels, precision
from tests.support.one_rank import CPU
from tests.support.trials import knobs

_ATTENDING = """
import sys, torch
from torch import nn
from torch.profiler import profile
from tests.support.trials import knobs
torch.set_num_threads(1)

class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(8, 8)
    def forward(self, x):
        x = self.inside(x)
        y = x.view(len(x), 2, 2, 2)
        return nn.functional.scaled_dot_product_attention(y, y, y).reshape(x.shape)

def told(step):
    step()
    with profile() as seen:
        step()
    names = " ".join(event.key for event in seen.key_averages())
    return f"{'unfused' if 'aten::bmm' in names else ''}{'flash' if '_flash_' in names else ''}"
"""
_ALONE = f"""{_ATTENDING}
from autotune.worker.effects import kernels
chosen = knobs(attention=sys.argv[1], compile="default")
model = kernels.compiled(chosen, Attending())
x = torch.randn(2, 8)
def step():
    with kernels.attention(chosen):
        loss = model(x).sum()
    loss.backward()
print(told(step))
"""
_TAKEN_OVER = f"""{_ATTENDING}
import torch.distributed as dist
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.loop import TrainingLoop
from tests.support.one_rank import CPU, regression
from tests.support.trials import of_one_rank
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
context = RankContext(0, 0, 1, (CPU,))
def request(attention):
    return of_one_rank(knobs(attention=attention, compile="default"))
loop = TrainingLoop(regression(Attending(), width=8), request("flash"), context, lambda: None)
print(told(loop.step))
loop.close()
loop = loop.reconfigured(request("unfused"), context)
print(told(loop.step))
"""


def run(folder: Path, script: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.long
def test_compiled_code_of_one_implementation_is_not_taken_for_another(tmp_path: Path) -> None:
    found = [run(tmp_path, _ALONE, chosen) for chosen in ("flash", "unfused", "flash")]
    assert found == [["flash"], ["unfused"], ["flash"]]


@pytest.mark.long
def test_warm_worker_compiles_for_the_implementation_that_it_takes_over(tmp_path: Path) -> None:
    assert run(tmp_path, _TAKEN_OVER) == ["flash", "unfused"]


def test_caches_are_kept_apart_inside_of_the_context_and_the_users_tag_stays() -> None:
    config = pytest.importorskip("torch.compiler.config")
    with config.patch(cache_key_tag="mine"):
        for context, tag in (
            (kernels.attention(knobs(attention="unfused")), "mine attention=unfused"),
            (kernels.attention(knobs()), "mine"),
            (precision.autocast(knobs(precision="fp16"), CPU), "mine precision=fp16"),
            (precision.autocast(knobs(precision="bf16"), CPU), "mine"),
        ):
            with context:
                assert config.cache_key_tag == tag
            assert config.cache_key_tag == "mine"


def test_without_a_tag_no_graph_is_taken_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 has no tag for the key of its caches."""
    import torch._functorch.config as functorch

    monkeypatch.setitem(sys.modules, "torch.compiler.config", functorch)
    with kernels.attention(knobs(attention="unfused")):
        assert not functorch.enable_autograd_cache
    assert functorch.enable_autograd_cache
