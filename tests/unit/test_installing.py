"""The command that installs autotune names what pip was given."""

import json

import pytest

from autotune.worker.installing import pip_install


@pytest.fixture
def origin(tmp_path, monkeypatch):
    """Have autotune installed from a path, as pip records it; None: from the folder of a bundle."""
    recorded = tmp_path / "torch_autotune-0.1.0.dist-info"
    recorded.mkdir()
    (recorded / "METADATA").write_text("Name: torch-autotune\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed_from(path):
        told = json.dumps({"url": path.as_uri(), "dir_info": {"editable": True}})
        (recorded / "direct_url.json").write_text(told)

    return installed_from


def test_checkout_or_wheel_is_named(origin, tmp_path):
    folder = tmp_path / "my code"
    folder.mkdir()
    origin(folder)
    assert pip_install() == f"pip install '{folder}'"
    assert pip_install("float8", "python3 -m pip") == f"python3 -m pip install '{folder}[float8]'"


def test_wheel_that_is_gone_is_told_in_words(origin, tmp_path):
    words = " (WHEEL: the one that you installed autotune from)"
    assert pip_install() == f"pip install WHEEL{words}"
    origin(tmp_path / "gone.whl")
    assert pip_install("float8") == f"pip install 'WHEEL[float8]'{words}"
