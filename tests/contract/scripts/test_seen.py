"""Training scripts that nobody has changed: run as under torchrun, seen, changed from outside."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

import launchers
from autotune.worker import proc
from autotune.worker.protocol import PYTHON, Outcome, Timeouts
from launchers import Resources
from tests.contract.scripts.bench import (
    EVALUATES,
    IN_A_THREAD,
    OWN_BATCHES,
    RANKS,
    REDIRECTED,
    SCRIPTS,
    TRAINS,
    Bench,
    assert_well,
)
from tests.support.processors import shares_of_processors
from tests.support.trials import knobs


def test_samples_and_steps_are_seen(bench: Bench) -> None:
    report = bench.run("plain_ddp.py", "--batch-size", "16", "--accumulate", "2", samples=32)
    assert_well(report)
    assert [block.samples for block in report.blocks] == [64 * b.steps for b in report.blocks]
    assert all(0 < block.loss < 2 and block.seconds > 0 for block in report.blocks)
    assert "exposed_seconds" in report.blocks[-1].observed


def test_what_a_script_evaluates_is_not_counted(bench: Bench) -> None:
    """Though gradients are off only inside the loop, when its batch is there already."""
    report = bench.run(bench.write(EVALUATES), samples=4, blocks=5)
    assert_well(report, blocks=5)
    assert all(block.samples == 4 * RANKS * block.steps for block in report.blocks)
    assert sum(block.steps for block in report.blocks) > 8


def test_it_runs_as_python_runs_it(bench: Bench, tmp_path: Path) -> None:
    strange = ["--x=a b", "new\nline", "$(touch x)", "--", "\udce9\udcff", "'", '"']
    assert_well(bench.run("telling.py", *strange, env={"EXTRA": "more"}))
    for rank, told in enumerate(bench.told()):
        assert told["argv"] == strange
        assert told["environment"] == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
        }
        assert told["cwd"] == told["path"] == str(tmp_path)
        assert told["main"] == str(tmp_path / "telling.py")
        assert told["extra"] == "more"
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_a_script_on_processors_sees_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launchers.layout.visible_devices", lambda: ["GPU-a", "GPU-b"])
    with launchers.section_of("local").open(Resources(RANKS, 0, 1, 1), str(tmp_path)) as opened:
        bench = Bench(opened.slots[0], tmp_path)
        tells = "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], file=open('seen', 'w'))\n"
        assert_well(bench.run(bench.write(tells + TRAINS)))
    assert (tmp_path / "seen").read_text() == "\n"


def test_shared_memory_of_a_script_is_removed_by_a_process_of_its_trial(
    bench: Bench, tmp_path: Path
) -> None:
    shares = """
import os
from multiprocessing import resource_tracker, shared_memory
memory = shared_memory.SharedMemory(create=True, size=8)
print(resource_tracker._resource_tracker._pid, file=open(f"by-{os.environ['RANK']}", "w"))
"""
    assert_well(bench.run(bench.write(shares + TRAINS)))
    for rank in range(RANKS):
        remover = int((tmp_path / f"by-{rank}").read_text())
        assert proc.state(remover) == "?", "it has ended with the trial"


def test_a_script_may_choose_how_its_processes_start(bench: Bench) -> None:
    chooses = "import multiprocessing\nmultiprocessing.set_start_method('spawn')\n"
    assert_well(bench.run(bench.write(chooses + TRAINS)))


def test_a_script_beside_the_study_is_found_from_elsewhere(bench: Bench, tmp_path: Path) -> None:
    beside = tmp_path / "examples"
    beside.mkdir()
    (tmp_path / "telling.py").rename(beside / "telling.py")
    bench.import_paths = (str(beside),)
    assert_well(bench.run("telling.py"))
    for told in bench.told():
        assert told["cwd"] == str(tmp_path)
        assert told["path"] == str(beside)
        assert told["main"] == str(beside / "telling.py")


def test_a_module_is_found_from_the_working_directory_on(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "training.py").write_text((tmp_path / "plain_ddp.py").read_text())
    assert_well(bench.run("package.training", told={"is_module": True}))


def test_nothing_is_changed_that_is_not_to_be(bench: Bench) -> None:
    assert_well(bench.run("telling.py"))
    told = bench.told()[0]
    assert (told["bucket"], told["view"], told["workers"]) == (25 * 2**20, False, 0)
    assert (told["fused"], told["dtype"], told["benchmark"]) == (None, "None", False)
    assert told["flash"]


def test_knobs_act_from_outside(bench: Bench) -> None:
    report = bench.run(
        "telling.py",
        bucket_cap_mb=5,
        gradient_as_bucket_view=True,
        num_workers=1,
        optimizer_kernels="fused",
        precision="bf16",
        cudnn_benchmark=True,
        activation_checkpointing=1,
        gradient_compression="fp16",
        attention="unfused",
    )
    assert_well(report)
    for told in bench.told():
        assert not told["flash"]
        assert (told["bucket"], told["view"], told["workers"]) == (5 * 2**20, True, 1)
        assert (told["fused"], told["dtype"], told["benchmark"]) == (True, "torch.bfloat16", True)


_OWN_GROUPS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
rank = dist.get_rank()
groups = [dist.new_group([one]) for one in range(dist.get_world_size())]
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Linear(8, 2, bias=False), process_group=groups[rank]
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
while True:
    for x in DataLoader(torch.ones(64, 8), 4):
        optimizer.zero_grad()
        model(x * (rank + 1)).sum().backward()
        assert (model.module.weight.grad == 4.0 * (rank + 1)).all(), model.module.weight.grad
        dist.all_reduce(torch.ones(1))
        optimizer.step()
"""


@pytest.mark.parametrize("compression", ["fp16", "powersgd"])
def test_gradients_are_compressed_within_the_group_of_the_script(
    bench: Bench, compression: str
) -> None:
    assert_well(bench.run(bench.write(_OWN_GROUPS), gradient_compression=compression))


def test_a_knob_without_anything_to_act_on_is_no_measurement(bench: Bench) -> None:
    report = bench.run("telling.py", "--bare", bucket_cap_mb=5, optimizer_kernels="foreach")
    assert report.outcome == Outcome.ERROR
    assert "bucket_cap_mb: has found nothing to act on" in report.cause
    assert not report.blocks


def test_arguments_that_do_not_reach_the_training_are_no_measurement(bench: Bench) -> None:
    report = bench.run("telling.py", "--batch", "8", samples=16)
    assert report.outcome == Outcome.ERROR
    assert "8 a step, are not the 16 that the configuration says" in report.cause
    assert report.contradicted


def test_error_of_the_script_itself_contradicts_no_configuration(bench: Bench) -> None:
    report = bench.run(bench.write(TRAINS + "        raise OSError('connection reset by peer')"))
    assert report.outcome == Outcome.ERROR
    assert "connection reset by peer" in report.cause
    assert not report.contradicted


_SPLITS = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
micro_batch = int(sys.argv[1])
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8):
        optimizer.zero_grad()
        for part in x.split(micro_batch):
            (model(part).square().mean() * len(part) / len(x)).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("trajectory", [0, 8])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_batch_that_the_script_splits_has_the_samples_of_every_split(
    bench: Bench, number: int, trajectory: int
) -> None:
    """Check a script that splits each batch of its loader into the micro-batches of a step."""
    size = 8 // number
    chosen = knobs(micro_batch=size, accumulation_steps=number)
    asked = {"trajectory": trajectory, "knobs": chosen}
    script = bench.write(_SPLITS)
    report = bench.run(script, str(size), samples=8, told={"launch": PYTHON}, asked=asked)
    assert_well(report, blocks=trajectory or 4)
    assert all(block.samples == 8 * block.steps for block in report.blocks)


def test_script_that_does_not_keep_its_global_batch_is_told_so(bench: Bench) -> None:
    chosen = knobs(micro_batch=4, accumulation_steps=4)
    told = {"turned": ("--batch 4",), "derived": "accumulation_steps"}
    script = bench.write(TRAINS)
    report = bench.run(script, samples=16, told=told, asked={"knobs": chosen})
    assert "4 a step, are not the 16 that the configuration says (4 x 4): " in report.cause
    assert "told --batch 4, it does not derive accumulation_steps from that" in report.cause
    assert report.contradicted


def test_epochs_with_a_small_last_batch_have_the_samples_of_the_configuration(bench: Bench) -> None:
    report = bench.run(bench.write(TRAINS.replace("randn(64", "randn(9")), samples=4)
    assert_well(report)
    assert sum(block.samples for block in report.blocks) < sum(
        RANKS * 4 * block.steps for block in report.blocks
    )


def test_small_last_batches_do_not_hide_arguments_without_effect(bench: Bench) -> None:
    report = bench.run(bench.write(TRAINS.replace("randn(64", "randn(9")), samples=8)
    assert report.outcome == Outcome.ERROR


def test_accumulation_that_rises_by_itself_is_measured(bench: Bench) -> None:
    """As yolov5 warms up: one micro-batch a step at first, then more of them."""
    script = TRAINS.replace(
        "while True:", "from itertools import count\ndone = count()\nwhile True:"
    )
    script = script.replace(
        "        optimizer.step()",
        "        place = next(done)\n        if place < 4 or place % 4 == 0:\n"
        "            optimizer.step()",
    )
    report = bench.run(bench.write(script), samples=4)
    assert_well(report)


_DRAWS_AHEAD = TRAINS.replace(
    "while True:",
    """
def ahead(loader):
    batches = iter(loader)
    latest = next(batches)
    for following in batches:
        yield latest
        latest = following
    yield latest
while True:""",
)


@pytest.mark.long
@pytest.mark.parametrize("script", [TRAINS, _DRAWS_AHEAD], ids=["plain", "one batch ahead"])
def test_shorter_last_accumulation_of_an_epoch_is_counted_as_it_is(
    bench: Bench, script: str
) -> None:
    """As transformers' Trainer steps at the end of an epoch; the last batch is shorter as well."""
    script = script.replace("randn(64", "randn(34").replace(
        "        optimizer.step()", "        if number % 4 == 3 or number == 8: optimizer.step()"
    )
    if script.count("def ahead"):
        script = script.replace("enumerate(training)", "enumerate(ahead(training))")
    report = bench.run(bench.write(script), blocks=40, samples=16)
    assert_well(report, blocks=40)
    per_step = sum(b.samples for b in report.blocks) / sum(b.steps for b in report.blocks)
    assert per_step == pytest.approx(RANKS * 34 / 3, rel=0.1)
    wrong = bench.run(bench.write(script), blocks=40, samples=4)
    assert "are not the 4 that the configuration says" in wrong.cause


@pytest.mark.parametrize(("every", "measured"), [(1, True), (4, False)])
def test_batches_that_a_thread_draws_ahead_are_samples_of_no_step(
    bench: Bench, every: int, measured: bool
) -> None:
    script = TRAINS.replace("while True:", f"{IN_A_THREAD}while True:")
    script = script.replace("enumerate(training)", "enumerate(Background(training, 2), 1)").replace(
        "        optimizer.step()", f"        if number % {every} == 0: optimizer.step()"
    )
    report = bench.run(bench.write(script), samples=4)
    assert (report.outcome is None) == measured, report.cause
    assert measured or "are not the 4 that the configuration says" in report.cause


def test_constant_accumulation_that_the_configuration_does_not_say_is_no_measurement(
    bench: Bench,
) -> None:
    script = TRAINS.replace(
        "        optimizer.step()", "        if number % 4 == 3: optimizer.step()"
    )
    report = bench.run(bench.write(script), samples=4)
    assert report.outcome == Outcome.ERROR
    assert "16 a step, are not the 4 that the configuration says" in report.cause


def test_samples_that_nobody_sees_are_the_users_to_say(bench: Bench) -> None:
    """An argument that never reaches the training would be taken for sixteen times its speed."""
    script = bench.write(OWN_BATCHES)
    report = bench.run(script, samples=64)
    assert report.outcome == Outcome.ERROR
    assert "no sample was seen" in report.cause
    said = bench.run(script, samples=4, told={"draws_none": True})
    assert_well(said)
    assert all(block.samples == 4 * RANKS * block.steps for block in said.blocks)


def test_a_script_that_ends_too_soon_says_so(bench: Bench) -> None:
    report = bench.run("telling.py", env={"STEPS": "5"}, blocks=1000)
    assert report.outcome == Outcome.ERROR
    assert "the script ended after 4 measured optimizer steps" in report.cause


_ALONE = """
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x in DataLoader(torch.randn(64, 8), 4):
        model(x).square().mean().backward()
        optimizer.step()
"""
_WRITES_ONLY = """
import sys
class Tee:
    def write(self, text):
        pass
sys.stdout = sys.stderr = Tee()
"""
_CLOSES = "import sys; sys.stdout.close(); sys.stderr.close()\n"
_CATCHES = """
import logging
def fail(_):
    raise ERROR("planted")
def batches():
    while True:
        yield from training
for number, (x,) in zip(range(60), batches()):
    loss = model(x).square().mean()
    if number == 39:
        BREAKS
    try:
        loss.backward()
        optimizer.step()
    except Exception:
        logging.exception("failed")
        THEN
"""


def _catching(
    error: str = "RuntimeError", breaks: str = "loss.register_hook(fail)", then: str = "break"
) -> str:
    """A script that catches the failure of its 40th step."""
    text = TRAINS.partition("while True")[0] + _CATCHES
    return text.replace("ERROR", error).replace("BREAKS", breaks).replace("THEN", then)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [("RuntimeError", Outcome.ERROR), ("torch.OutOfMemoryError", Outcome.OOM)],
)
def test_failure_that_a_script_catches_is_no_ordinary_end(
    bench: Bench, error: str, outcome: Outcome
) -> None:
    report = bench.run(bench.write(_catching(error)), blocks=1000)
    assert report.outcome == outcome
    name = error.rpartition(".")[2]
    assert f"a backward pass failed ({name}: planted) after 38 measured" in report.cause


def test_training_in_a_thread_that_outlives_the_main_one_is_seen(bench: Bench) -> None:
    text = f"""
import threading
from concurrent.futures import ThreadPoolExecutor
waits = ThreadPoolExecutor()
waits.submit(print, "once")
def train():
{textwrap.indent(_ALONE, "    ")}
threading.Thread(target=train).start()
"""
    assert_well(bench.run(bench.write(text), told={"launch": PYTHON}, samples=4))


def test_thread_pool_that_a_script_leaves_open_does_not_keep_it(bench: Bench) -> None:
    text = "import concurrent.futures as f\npool = f.ThreadPoolExecutor()\npool.submit(print, 1)\n"
    report = bench.run(bench.write(text), told={"launch": PYTHON})
    assert "the script ended after 0 measured optimizer steps" in report.cause


def test_step_that_fails_and_is_caught_is_no_ordinary_end(bench: Bench) -> None:
    text = _catching(breaks="optimizer.param_groups[0]['lr'] = None")
    report = bench.run(bench.write(text), blocks=1000)
    assert report.outcome == Outcome.ERROR
    assert "a step of an optimizer failed after 38 measured" in report.cause


def test_failure_that_a_script_recovers_from_is_none(bench: Bench) -> None:
    report = bench.run(bench.write(_catching(then="pass")), blocks=1000)
    assert "the script ended after 58 measured optimizer steps" in report.cause


_CHILD = """
import os, sys
if (child := os.fork()) == 0:
    LEAVES
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == STATUS
"""


@pytest.mark.parametrize(
    ("leaves", "status"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('no data')", 1),
        ("raise OSError", 1),
    ],
)
def test_process_that_a_script_forks_does_not_end_the_trial(
    bench: Bench, leaves: str, status: int
) -> None:
    child = _CHILD.replace("LEAVES", leaves).replace("STATUS", str(status))
    assert_well(bench.run(bench.write(child + TRAINS), samples=4))


@pytest.mark.parametrize("survey", [0, 6], ids=["trial", "survey"])
def test_script_that_trains_in_processes_that_it_forks_is_told(bench: Bench, survey: int) -> None:
    text = f"""
import multiprocessing
def train():
{textwrap.indent(_ALONE, "    ")}
children = [multiprocessing.get_context("fork").Process(target=train) for _ in range(2)]
for child in children:
    child.start()
for child in children:
    child.join()
"""
    report = bench.run(bench.write(text), told={"launch": PYTHON, "survey": survey})
    assert report.outcome == Outcome.ERROR
    assert "the script trains in processes that it forks" in report.cause
    assert report.blocks == ()


def test_profile_of_a_script_with_hooks_of_its_own_on_all_optimizers_is_made(bench: Bench) -> None:
    hooks = "from torch.optim import optimizer as steps\n"
    hooks += "steps.register_optimizer_step_post_hook(lambda *_: None)\n"
    before, after = TRAINS.split("while True:")
    report = bench.run(bench.write(f"{before}{hooks}while True:{after}"), asked={"profile": 2})
    assert_well(report, blocks=1)
    parts = report.blocks[0].observed["parts"]
    assert all(parts[part][0] > 0 for part in ("compute", "optimizer"))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import sys\nsys.exit(3)", "the script ended with exit status 3"),
        ("import sys\nsys.exit('no data')", "the script ended (no data) after 0"),
        ("raise ValueError('planted')", "ValueError: planted"),
        (f"{_WRITES_ONLY}raise ValueError('planted')", "ValueError: planted"),
        (f"{_CLOSES}raise ValueError('planted')", "ValueError: planted"),
        (
            "raise RuntimeError('unable to write to file </torch_7_3_0>: No space left on device (28)')",
            "start the container with more of it (--shm-size)",
        ),
        (f"{_CLOSES}sys.exit('no data')", "the script ended (no data) after 0"),
        ("import no_such_library", "No module named 'no_such_library'"),
    ],
)
def test_a_script_that_fails_is_told(bench: Bench, text: str, cause: str) -> None:
    report = bench.run(bench.write(text))
    assert report.outcome == Outcome.ERROR
    assert cause in report.cause


def test_a_rank_has_a_session_of_its_own(bench: Bench) -> None:
    """As torchrun gives it: Linux may share out the processors by session."""
    told = "import os, sys\nsys.exit(f'leads {os.getsid(0) == os.getpid()}')"
    assert "leads True" in bench.run(bench.write(told)).cause


def test_a_trial_does_not_see_what_an_earlier_one_has_left(bench: Bench) -> None:
    """Ranks meet at a store of their own, trial after trial."""
    for _ in range(3):
        assert_well(bench.run("telling.py", blocks=2), blocks=2)


@pytest.mark.slow
def test_the_users_own_job_has_what_the_trials_had(bench: Bench, tmp_path: Path) -> None:
    script = {
        "target": "telling.py",
        "is_module": False,
        "flags": {"micro_batch": "--batch", "accumulation_steps": "$EXTRA"},
        "turned": {"micro_batch": 8, "accumulation_steps": 2},
        "changes": ["bucket_cap_mb", "optimizer_kernels", "precision", "cpu_affinity"],
        "digest": None,
    }
    chosen = knobs(
        bucket_cap_mb=5, optimizer_kernels="fused", precision="bf16", cpu_affinity="share"
    )
    best = {"format": 3, "knobs": chosen, "world_size": 2, "throughput": {}, "speedup": None}
    content = {**best, "provenance": {}, "unusual": [], "script": script}
    (tmp_path / "best.yaml").write_text(yaml.safe_dump(content))
    ours = [sys.executable, "-P", "-m", "autotune", "run", "best.yaml", "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*ours, *torchrun, "--standalone", "telling.py", "--batch", "4", "--bare "],
        cwd=tmp_path,
        env={**os.environ, "TOLD": str(tmp_path / "told"), "STEPS": "4"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for told in bench.told():
        assert told["argv"] == ["--batch", "8", "--bare "]
        assert (told["bucket"], told["fused"], told["dtype"]) == (5 * 2**20, True, "torch.bfloat16")
        assert told["extra"] == "2"
    assert [told["processors"] for told in bench.told()] == shares_of_processors(2)


def test_a_rank_of_a_script_stays_on_its_share_of_the_processors(bench: Bench) -> None:
    assert_well(bench.run("telling.py", blocks=2, cpu_affinity="share"), blocks=2)
    assert [told["processors"] for told in bench.told()] == shares_of_processors(2)


def test_samples_that_ranks_share_are_the_users_to_say(bench: Bench) -> None:
    """Both draw all 16 of a step, which would be taken for 32."""
    report = bench.run(
        "shared_batch.py", "--tensor-parallel", "2", samples=8, told={"fixed_samples": True}
    )
    assert_well(report)
    assert all(block.samples == 8 * RANKS * block.steps for block in report.blocks)


def test_tokens_of_rows_that_ranks_share_are_counted_once(bench: Bench) -> None:
    """Twice as many rows of eight tokens are drawn as are trained on."""
    shared = (SCRIPTS / "shared_batch.py").read_text()
    whole = shared.replace("torch.randn(512, 8), ", "torch.ones(512, 8, dtype=torch.long), ")
    script = bench.write(whole.replace("model(x)", "model(x.float())"))
    told = {"fixed_samples": True, "counts": "tokens"}
    report = bench.run(script, "--tensor-parallel", "2", samples=8, told=told)
    assert_well(report)
    assert all(block.tokens == 8 * block.samples for block in report.blocks)


@pytest.mark.long
def test_what_comes_before_the_first_pass_is_start_up(bench: Bench) -> None:
    """A batch is there, and then something is loaded, or compiled, for longer than a step may take."""
    text = OWN_BATCHES.replace(
        "while True", "import time; next(iter(loader)); time.sleep(7)\nwhile True"
    )
    loads = "from torch.utils.data import DataLoader\nloader = DataLoader(torch.ones(8, 8))\n"
    script = bench.write(text.replace("model =", f"{loads}model ="))
    report = bench.run(
        script,
        samples=4,
        told={"draws_none": True},
        asked={"timeouts": Timeouts(startup=120, step=5)},
    )
    assert_well(report)


def test_a_framework_that_redirects_forward_and_steps_by_a_closure(bench: Bench) -> None:
    """As Lightning does: gradients are there after the step only, not before."""
    script = bench.write(REDIRECTED.replace("FUSED", ""))
    assert_well(bench.run(script, precision="bf16", bucket_cap_mb=5, samples=4))
    run = bench.run(script, asked={"trajectory": 3})
    assert_well(run, blocks=3)
    assert all(block.observed["gradient_norm"] > 0 for block in run.blocks)


_LEFT = f"""{TRAINS}\
        if number % 4 == 3:
            model.eval()
            for place, (y,) in enumerate(evaluation):
                with torch.no_grad():
                    model.module(y)
                if place == 7:
                    break
            model.train()
"""


def test_an_evaluation_that_is_left_early_is_not_counted(bench: Bench) -> None:
    report = bench.run(bench.write(_LEFT), samples=4, blocks=5)
    assert_well(report, blocks=5)
    assert all(block.samples == 4 * RANKS * block.steps for block in report.blocks)
    assert sum(block.steps for block in report.blocks) > 8


def test_a_loader_that_only_evaluates_is_none_to_act_on(bench: Bench) -> None:
    """The batches of the training are made by hand."""
    text = _LEFT.replace(
        "in enumerate(training)", "in enumerate((torch.randn(4, 8),) for _ in range(16))"
    )
    report = bench.run(bench.write(text), num_workers=1, samples=4, told={"draws_none": True})
    assert report.outcome == Outcome.ERROR
    assert "num_workers: has found nothing to act on" in report.cause


def test_state_that_is_made_before_the_first_step_is_no_training(bench: Bench) -> None:
    """As torch.distributed.checkpoint does where a script asks what it could load."""
    text = EVALUATES.replace("lr=0.01)", "lr=0.01, momentum=0.9)").replace(
        "training =",
        "from torch.distributed.checkpoint import state_dict\n"
        "state_dict.get_optimizer_state_dict(model, optimizer)\n"
        "training =",
        1,
    )
    report = bench.run(bench.write(text), precision="bf16", optimizer_kernels="foreach")
    assert_well(report)
    assert report.blocks[0].loss


def test_ranks_that_train_each_by_itself_are_no_measurement(bench: Bench) -> None:
    """What Accelerate does on a machine without devices, unless it is told of the CPU."""
    text = EVALUATES.replace("torch.nn.parallel.DistributedDataParallel", "")
    alone = text.replace("model.module(y)", "model(y)")
    for script in (alone, alone.replace('dist.init_process_group("gloo")', "")):
        report = bench.run(bench.write(script))
        assert report.outcome == Outcome.ERROR
        assert "the ranks of the script do not train together" in report.cause
    by_hand = "[dist.all_reduce(p.grad) for p in model.parameters()]\n        optimizer.step()"
    assert_well(bench.run(bench.write(alone.replace("optimizer.step()", by_hand))))


_DISPATCHED = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def batches():
    while True:
        for whole in DataLoader(torch.randn(64, 8), batch_size=8):
            yield whole
given = batches() if dist.get_rank() == 0 else None
while True:
    whole = next(given) if given else torch.empty(8, 8)
    dist.broadcast(whole, 0)
    model(whole.chunk(2)[dist.get_rank()]).square().mean().backward()
    optimizer.step()
"""


def test_batches_that_one_rank_draws_for_all_are_counted_once(bench: Bench) -> None:
    """As Accelerate's dispatcher does for iterable data sets."""
    report = bench.run(bench.write(_DISPATCHED), samples=4, num_workers=1)
    assert_well(report)
    assert all(block.samples == 8 * block.steps for block in report.blocks)
    wrong = bench.run(bench.write(_DISPATCHED), samples=8)
    assert "4 a step, are not the 8 that the configuration says" in wrong.cause


_BATCH_FOR_EACH = _DISPATCHED.replace("batch_size=8", "batch_size=4").replace(
    "next(given) if", "torch.cat([next(given), next(given)]) if"
)
_ACCUMULATED = _DISPATCHED.replace(
    "while True:\n    whole", "import itertools\nfor number in itertools.count(1):\n    whole"
).replace("    optimizer.step()", "    if number % 3 == 0:\n        optimizer.step()")


@pytest.mark.parametrize(
    ("script", "accumulation"),
    [(_DISPATCHED, 1), (_BATCH_FOR_EACH, 1), (_ACCUMULATED, 3)],
    ids=["a batch for all", "a batch for each", "accumulated"],
)
def test_survey_counts_the_share_of_a_rank_that_draws_for_others(
    bench: Bench, script: str, accumulation: int
) -> None:
    """Accelerate's dispatcher draws one batch that is split, or a batch for each rank."""
    seen = bench.look(bench.write(script))
    assert (seen.micro_batch, seen.accumulation_steps) == (4, accumulation)
    assert not seen.reuses


_IMPORTING = """
import sys, time
print("imported already:", "lightning_utilities" in sys.modules, flush=True)
time.sleep(1.2)
import lightning_utilities
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x in DataLoader(torch.randn(64, 8), 4):
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_what_a_script_imports_is_imported_once_for_all_trials(tmp_path: Path) -> None:
    agents = str(tmp_path / "agents")
    with launchers.section_of("local").open(Resources(RANKS, 0, 1, 1), agents) as launcher:
        bench = Bench(launcher.slots[0], tmp_path)
        script = bench.write(_IMPORTING)
        for _ in range(3):
            assert_well(bench.run(script))
    trials = sorted((tmp_path / "logs").iterdir(), key=lambda folder: folder.stat().st_ctime)
    said = [(trial / "rank-0.log").read_text() for trial in trials]
    assert "imported already: False" in said[0]
    assert "imported already: True" in said[2]


_UNEVEN = TRAINS.replace(
    "DataLoader(TensorDataset(torch.randn(64, 8)), 4)",
    "DataLoader(TensorDataset(torch.randn(64, 8)), batch_sampler=[[0], [1, 2], [3, 4, 5]])",
)


def test_step_is_the_unit_where_batches_vary(bench: Bench) -> None:
    report = bench.run(bench.write(_UNEVEN), told={"counts": "steps"})
    assert_well(report)
    assert all(block.steps > 0 for block in report.blocks)


def test_batches_that_vary_are_named_as_the_reason(bench: Bench) -> None:
    report = bench.run(bench.write(_UNEVEN), samples=6)
    assert report.outcome == Outcome.ERROR
    assert "its batches have 1 to 2 samples" in report.cause
    assert "arguments" not in report.cause


def test_checkpoint_that_was_read_is_named_as_the_reason(bench: Bench) -> None:
    saved = """
import os
torch.save({}, f"{os.getpid()}.pt")
os.replace(f"{os.getpid()}.pt", "last.pt")  # whole: the other rank reads it as well
torch.load("last.pt")
while True"""
    report = bench.run(bench.write(TRAINS.replace("while True", saved)), samples=16)
    assert report.outcome == Outcome.ERROR
    assert "it has read last.pt, which may bring the settings of an earlier run" in report.cause


def test_arguments_are_the_reason_only_where_they_were_changed(bench: Bench) -> None:
    turned = bench.run(bench.write(TRAINS), samples=16, told={"turned": ("--batch 16",)})
    assert "its arguments do not reach the training: --batch 16" in turned.cause
    as_it_is = bench.run(bench.write(TRAINS), samples=16)
    assert "nothing was changed in its arguments" in as_it_is.cause


_COMPILES = """
import time
step = optimizer.step
def compiled():
    time.sleep(7)
    optimizer.step = step
    step()
optimizer.step = compiled
"""


@pytest.mark.long
def test_first_step_belongs_to_the_start(bench: Bench) -> None:
    """It compiles its optimizer for longer than a step may take."""
    script = bench.write(TRAINS.replace("while True", f"{_COMPILES}while True"))
    assert_well(bench.run(script, samples=4, asked={"timeouts": Timeouts(startup=120, step=5)}))


_HAS_HANDLERS = """
import signal, time
def asked(number, _):
    open("asked", "w").close()
signal.signal(signal.SIGUSR1, asked)
signal.signal(signal.SIGUSR2, asked)
def sleep_for_ever():
    while True:
        time.sleep(60)
"""


@pytest.mark.long
def test_a_script_that_hangs_is_sent_no_signal_that_it_has_a_use_for(
    bench: Bench, tmp_path: Path
) -> None:
    hangs = f"{_HAS_HANDLERS}{TRAINS}        if number == 5:\n            sleep_for_ever()\n"
    timeouts = Timeouts(startup=120, step=15)  # of any step, on a busy machine
    report = bench.run(bench.write(hangs), blocks=1000, asked={"timeouts": timeouts})
    assert report.outcome == Outcome.HANG
    assert "in sleep_for_ever" in report.log_tail
    assert not (tmp_path / "asked").exists()


def test_long_step_is_told_with_its_setting_and_the_usual_reasons(bench: Bench) -> None:
    evaluates = TRAINS + "        if number == 5:\n            import time; time.sleep(60)\n"
    script = bench.write(evaluates)
    report = bench.run(script, blocks=1000, asked={"timeouts": Timeouts(startup=120, step=2)})
    assert report.outcome == Outcome.HANG
    assert "measurement.step_timeout; an evaluation or a checkpoint" in report.cause
