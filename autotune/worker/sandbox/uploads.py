"""Uploads to the Hugging Face Hub in a trial: they succeed, and nothing is sent. Reading works."""

import functools
from typing import Any

from autotune.worker.sandbox.arrivals import Arrivals

_COMMIT = "0" * 40
_UPLOADS = ("create_commit", "upload_file", "upload_folder", "upload_large_folder")


def begin() -> None:
    """Send nothing from now on."""
    Arrivals({"huggingface_hub.hf_api": _change}).begin()


def _change(module: Any) -> None:
    """Replace the functions that make repositories and commits."""

    def create_repo(self: Any, repo_id: str, **_: Any) -> Any:
        return module.RepoUrl(f"{self.endpoint}/{repo_id}", endpoint=self.endpoint)

    def commit(
        self: Any, repo_id: str, *_: Any, run_as_future: bool = False, **options: Any
    ) -> Any:
        made = module.CommitInfo(
            commit_url=f"{self.endpoint}/{repo_id}/commit/{_COMMIT}",
            commit_message=options.get("commit_message") or "",
            commit_description="",
            oid=_COMMIT,
        )
        return self.run_as_future(lambda: made) if run_as_future else made

    replaced = {"create_repo": create_repo} | dict.fromkeys(_UPLOADS, commit)
    for name, replacement in replaced.items():
        if original := getattr(module.HfApi, name, None):
            setattr(module.HfApi, name, _instead(original, replacement))
            setattr(module, name, getattr(module.api, name))


def _instead(original: Any, replacement: Any) -> Any:
    """Make a function with the signature of one and the behaviour of another."""

    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> Any:
        return replacement(*args, **kwargs)

    return made
