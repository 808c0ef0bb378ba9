"""What a trial sends: nothing, unless the study says otherwise."""

import os
import subprocess
import sys

from autotune.worker.protocol import Placement, Script
from autotune.worker.rank.context import RankContext
from autotune.worker.rank.main import environment
from autotune.worker.sandbox import uploads
from tests.support.trials import knobs, of_one_rank

HERE = Placement(0, 0, 1, "127.0.0.1", 1, "lo")
UPLOADS = """
from autotune.worker.sandbox import uploads
uploads.begin()
import huggingface_hub
assert huggingface_hub.create_repo("me/model", exist_ok=True).repo_id == "me/model"
api = huggingface_hub.HfApi()
told = {"repo_id": "me/model", "path_or_fileobj": b"x", "path_in_repo": "x"}
assert api.upload_file(**told).oid
assert api.upload_file(**told, run_as_future=True).result().oid
assert huggingface_hub.upload_folder(repo_id="me/model", folder_path=".").oid
part = huggingface_hub.CommitOperationAdd("x", b"x")
assert api.preupload_lfs_files("me/model", [part]) is None
huggingface_hub.create_branch("me/model", branch="b", exist_ok=True)
api.create_tag("me/model", tag="v1")
api.super_squash_history("me/model")
api.delete_repo("me/model")
assert api.create_commit("me/model", [part], commit_message="x").oid
"""


def variables(script: Script | None, **env: str) -> dict[str, str]:
    request = of_one_rank(knobs(), script=script, env=env)
    context = RankContext(0, 0, 1, (), True, True)
    return environment(request, HERE, context)


def test_trackers_of_a_script_are_offline() -> None:
    assert uploads.OFFLINE.items() <= variables(Script("train.py")).items()


def test_swanlab_which_is_online_unless_told_otherwise_is_disabled() -> None:
    assert variables(Script("train.py"))["SWANLAB_MODE"] == "disabled"


def test_tracker_that_the_study_wants_online_is() -> None:
    assert variables(Script("train.py"), WANDB_MODE="online")["WANDB_MODE"] == "online"


def test_trackers_of_a_workload_are_as_they_are() -> None:
    assert not uploads.OFFLINE.keys() & variables(None).keys()


def test_upload_to_the_hub_succeeds_without_a_network() -> None:
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "none"}
    subprocess.run([sys.executable, "-c", UPLOADS], env=environment, check=True, timeout=300)
