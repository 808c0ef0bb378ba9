"""Uploads in a trial: nothing is sent.

Experiment trackers record in files, which are discarded. Uploads to the Hugging Face Hub succeed, and
reading from it works.
"""

from typing import Any

from autotune.worker.patches import Arrivals, wrapping

OFFLINE = {
    "WANDB_MODE": "offline",  # https://docs.wandb.ai/guides/track/environment-variables
    "MLFLOW_TRACKING_URI": "mlruns",  # https://mlflow.org/docs/latest/self-hosting/architecture/tracking-server
    "MLFLOW_REGISTRY_URI": "mlruns",  # the same page
    "COMET_MODE": "OFFLINE",  # https://huggingface.co/docs/transformers/main_classes/callback#transformers.integrations.CometCallback
    "COMET_START_ONLINE": "false",  # https://www.comet.com/docs/v2/guides/experiment-management/configure-sdk
    "NEPTUNE_MODE": "offline",  # https://docs.neptune.ai/logging/offline
    "TRACKIO_SPACE_ID": "",  # https://huggingface.co/docs/trackio/environment_variables
    "CLEARML_OFFLINE_MODE": "1",  # https://clear.ml/docs/latest/docs/configs/env_vars
    "SWANLAB_MODE": "disabled",  # https://docs.swanlab.cn/en/api/cli-swanlab-disabled.html
}
"""Variable of a tracker -> its value in a trial, unless the study's `env` has another."""
_COMMIT = "0" * 40
_UPLOADS = ("create_commit", "upload_file", "upload_folder", "upload_large_folder")

_CHANGES = (
    "preupload_lfs_files",
    "create_branch",
    "create_tag",
    "delete_branch",
    "delete_tag",
    "delete_repo",
    "move_repo",
    "super_squash_history",
    "update_repo_settings",
    "batch_bucket_files",
)
"""Functions that change repositories or buckets, and return nothing."""


def begin() -> None:
    """Send nothing from now on."""
    Arrivals({"huggingface_hub.hf_api": _change}).begin()


def _change(module: Any) -> None:
    """Replace the functions that make and change repositories."""

    def create_repo(_original: Any, self: Any, repo_id: str, **_: Any) -> Any:
        return module.RepoUrl(f"{self.endpoint}/{repo_id}", endpoint=self.endpoint)

    def commit(
        _original: Any,
        self: Any,
        repo_id: str,
        *_: Any,
        run_as_future: bool = False,
        **options: Any,
    ) -> Any:
        made = module.CommitInfo(
            commit_url=f"{self.endpoint}/{repo_id}/commit/{_COMMIT}",
            commit_message=options.get("commit_message") or "",
            commit_description="",
            oid=_COMMIT,
        )
        return self.run_as_future(lambda: made) if run_as_future else made

    def nothing(*_: Any, **__: Any) -> None:
        pass

    replaced = dict.fromkeys(_UPLOADS, commit) | dict.fromkeys(_CHANGES, nothing)
    replaced |= {"create_repo": create_repo}
    for name, replacement in replaced.items():
        if hasattr(module.HfApi, name):
            wrapping(module.HfApi, name)(replacement)
            setattr(module, name, getattr(module.api, name))
