"""Batch scripts and manifests of a study."""

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import launchers
from autotune.config import StudySpec
from autotune.errors import BadInput
from autotune.service.batch import MANIFESTS, job_manifest, ray_job_manifest, sbatch_script
from autotune.worker.node.environment import NODE
from storage import urls
from storage.owner import OWNER
from tests.support.steering import ask, write_study

SPEC = StudySpec.model_validate({"name": "My.Study", "workload": {"name": "gpt"}})
STUDY = Path("study.yaml")
CONTAINERFILE = Path(launchers.__file__).parent / "recipes" / "Containerfile"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for programs, which are found first; `python` stands in for that of autotune."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    program(folder / "scontrol", '[ "$1" = show ] || echo "$@" > requeued')
    program(folder / "squeue", "echo RUNNING")
    return folder


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def in_bash(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as Slurm does, from its text."""
    return subprocess.run(["bash", "-s"], input=script, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("code", "requeued"), [(75, "requeue 42\n"), (69, "requeuehold 42\n"), (0, None), (1, None)]
)
def test_job_is_requeued_only_if_its_study_is(
    programs: Path, tmp_path: Path, code: int, requeued: str | None
) -> None:
    folder = tmp_path / "it's here"
    folder.mkdir()
    program(programs / "python", f"exit {code}")
    script = sbatch_script(SPEC, STUDY, folder, ["-N1"])
    done = in_bash(script)
    assert done.returncode == code
    told = folder / "requeued"
    assert (told.read_text() if told.exists() else None) == requeued


def test_job_runs_the_autotune_that_submits_it(tmp_path: Path) -> None:
    """The environment is that of a login shell, in which this one may not be activated."""
    script = sbatch_script(SPEC, tmp_path / "there is no.yaml", tmp_path, [])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-s"],
        input=script,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, "there is no.yaml" in done.stderr) == (2, True)


def test_cancelled_job_is_not_requeued(programs: Path, tmp_path: Path) -> None:
    program(programs / "python", "exit 75")
    program(programs / "squeue", "echo COMPLETING")
    script = sbatch_script(SPEC, STUDY, tmp_path, [])
    done = in_bash(script)
    assert done.returncode == 75
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(
    ("state", "began", "preempted", "requeued"),
    [
        ("COMPLETING", 3600, 30, True),
        ("COMPLETING", 3600, 1800, False),
        ("COMPLETING", 20, 60, False),
        ("COMPLETING", 3600, None, False),
        ("PREEMPTED", 3600, 1800, True),
    ],
    ids=["now", "long ago", "in an earlier run", "never", "by its state"],
)
def test_job_that_is_cancelled_to_preempt_it_is_requeued(
    programs: Path,
    tmp_path: Path,
    state: str,
    began: float,
    preempted: float | None,
    requeued: bool,
) -> None:
    """PreemptMode=CANCEL leaves the requeue to the script."""
    now = datetime.datetime.now()
    start, at = (
        "None" if ago is None else f"{now - datetime.timedelta(seconds=ago):%Y-%m-%dT%H:%M:%S}"
        for ago in (began, preempted)
    )
    told = (
        f"JobId=42 JobName=x\n   JobState={state} Reason=None Dependency=(null)\n"
        f"   StartTime={start} EndTime=Unknown Deadline=N/A\n"
        f"   PreemptEligibleTime={start} PreemptTime={at}"
    )
    program(programs / "python", "exit 75")
    program(programs / "squeue", "echo COMPLETING")
    shown = f"case $1 in show) echo '{told}';; *) echo \"$@\" > requeued;; esac"
    program(programs / "scontrol", shown)
    in_bash(sbatch_script(SPEC, STUDY, tmp_path, []))
    assert (tmp_path / "requeued").exists() == requeued


@pytest.mark.parametrize("answer", [0, 1])
def test_job_is_said_to_be_held_only_if_slurm_holds_it(
    programs: Path, tmp_path: Path, answer: int
) -> None:
    program(programs / "python", "exit 69")
    program(programs / "sleep", "exit 0")
    program(programs / "scontrol", f"exit {answer}")
    script = sbatch_script(SPEC, STUDY, tmp_path, [])
    done = subprocess.run(
        ["bash", "-s"], input=script, text=True, timeout=60, check=False, capture_output=True
    )
    assert ("the job is held: scontrol release 42" in done.stderr) == (answer == 0)


def test_submit_tells_of_a_held_job_that_the_new_one_waits_for(
    programs: Path, tmp_path: Path
) -> None:
    write_study(tmp_path)
    program(programs / "sbatch", "echo Submitted batch job 43")
    program(programs / "squeue", "echo '42 JobHeldUser'; echo '43 Dependency'")
    told = ask("submit", "study.yaml", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "job 42 of this study is held, and this one waits for it" in told.stderr
    assert "job 43" not in told.stderr


@pytest.mark.parametrize("answers", [(False, True), (True, False), (False, False)])
def test_job_is_requeued_by_a_controller_that_first_does_not_answer(
    programs: Path, tmp_path: Path, answers: tuple[bool, bool]
) -> None:
    """As one that is restarted, or asked by thousands of jobs."""
    first = '[ -e "$0.asked" ] || { touch "$0.asked"; echo "Socket timed out" >&2; exit 1; }\n'
    asked, ordered = ("" if answer else first for answer in answers)
    program(programs / "python", "exit 75")
    program(programs / "sleep", "exit 0")
    program(programs / "squeue", f"{asked}echo RUNNING")
    program(programs / "scontrol", f'{ordered}echo "$@" > requeued')
    script = sbatch_script(SPEC, STUDY, tmp_path, [])
    in_bash(script)
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


def test_job_is_requeued_where_nothing_tells_that_it_was_cancelled(
    programs: Path, tmp_path: Path
) -> None:
    program(programs / "python", "exit 75")
    program(programs / "sleep", "exit 0")
    program(programs / "squeue", "exit 1")
    script = sbatch_script(SPEC, STUDY, tmp_path, [])
    in_bash(script)
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


@pytest.mark.parametrize(
    "option",
    ["--array=1-3", "-a1-3", "--arr=1", "--wrap=true", "--no-requeue", "--signal=USR1@10"],
)
def test_option_that_conflicts_with_the_script_is_refused(option: str) -> None:
    with pytest.raises(BadInput, match=option.partition("=")[0]):
        sbatch_script(SPEC, STUDY, Path("/w"), ["-N1", option])


@pytest.mark.parametrize(
    "options",
    [
        ["train.sh"],
        ["-p", "gpu", "train.sh"],
        ["-pgpu", "train.sh"],
        ["--time=1:00:00", "train.sh"],
        ["-N4", "--exclusive", "train.sh"],
        ["-H", "train.sh"],
        ["-p", "gpu", "--", "train.sh"],
    ],
)
def test_script_of_the_user_s_own_is_refused(options: list[str]) -> None:
    with pytest.raises(BadInput, match="sbatch would run it in the place of the study"):
        sbatch_script(SPEC, STUDY, Path("/w"), options)


def test_script_shows_the_options_of_sbatch_one_a_line() -> None:
    options = ["-p", "gpu", "-N1", "--comment=two words", "--exclusive", "--time", "2:00:00"]
    lines = sbatch_script(SPEC, STUDY, Path("/w"), options).splitlines()
    shown = lines[lines.index("#SBATCH --signal=B:TERM@60") + 1 :][:5]
    assert shown == [
        "#SBATCH -p gpu",
        "#SBATCH -N1",
        "#SBATCH '--comment=two words'",
        "#SBATCH --exclusive",
        "#SBATCH --time 2:00:00",
    ]


def test_jobs_of_a_study_run_one_after_another_unless_told_otherwise() -> None:
    """The last of several lines holds, and the name is that by which Slurm knows them."""
    lines = sbatch_script(SPEC, STUDY, Path("/w"), ["-d", "afterok:7"]).splitlines()
    assert "#SBATCH --job-name=autotune-My.Study" in lines
    singleton = lines.index("#SBATCH --dependency=singleton")
    assert singleton < lines.index("#SBATCH -d afterok:7")


def test_several_nodes_are_for_a_launcher_that_spans_them() -> None:
    spec = StudySpec.model_validate({**SPEC.model_dump(mode="json"), "launcher": "slurm"})
    assert "-m autotune start study.yaml" in sbatch_script(spec, STUDY, Path("/w"), ["-N4"])


@pytest.mark.parametrize(
    ("launcher", "nodes", "code"), [("local", 1, 0), ("local", 2, 2), ("slurm", 2, 0)]
)
def test_job_with_more_nodes_than_the_study_uses_ends(
    programs: Path, tmp_path: Path, launcher: str, nodes: int, code: int
) -> None:
    """Slurm may give `--gpus=8` two nodes where a node has four."""
    program(programs / "python", "exit 0")
    spec = StudySpec.model_validate({**SPEC.model_dump(mode="json"), "launcher": launcher})
    done = subprocess.run(
        ["bash", "-s"],
        input=sbatch_script(spec, STUDY, tmp_path, ["--gpus=8"]),
        env={**os.environ, "SLURM_JOB_NUM_NODES": str(nodes)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert re.search("has 2 nodes, .*-N1 --gpus-per-node", done.stderr) if code else not done.stderr


def test_signal_of_the_batch_system_reaches_the_study(programs: Path, tmp_path: Path) -> None:
    leaves = "trap 'sleep 0.5; touch left; exit 75' TERM"
    program(programs / "python", f"{leaves}; kill -TERM $PPID; sleep 60 & wait")
    program(programs / "scontrol", '[ ! -e left ] || echo "$@" > requeued')
    script = sbatch_script(SPEC, STUDY, tmp_path, [])
    done = in_bash(script)
    assert done.returncode == 75
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


def test_signal_is_passed_on_once_a_process_just_forked_can_hear_it(
    programs: Path, tmp_path: Path
) -> None:
    """Before version 5, bash loses signals between fork and exec of its child."""
    wait = "until [ -e {} ]; do /bin/sleep 0.05; done"
    deaf = f"trap '' TERM; {wait.format('paused')}"
    program(programs / "python", f"{deaf}; trap 'exit 75' TERM; touch ready; /bin/sleep 60 & wait")
    program(programs / "sleep", f"touch paused; {wait.format('ready')}")
    early = 'cd() { kill -TERM $$; builtin cd "$@"; }\n'
    script = early + sbatch_script(SPEC, STUDY, tmp_path, [])
    done = in_bash(script)
    assert done.returncode == 75


def test_code_is_that_of_a_study_that_has_ended_before_the_script_asks_for_it(
    programs: Path, tmp_path: Path
) -> None:
    program(programs / "python", "trap 'exit 1' TERM; sleep 0.3; kill -TERM $PPID; sleep 60 & wait")
    slow = "pause() { [ \"$BASH_COMMAND\" != 'code=$?' ] || sleep 0.3; }; trap pause DEBUG\n"
    script = slow + sbatch_script(SPEC, STUDY, tmp_path, [])
    done = in_bash(script)
    assert done.returncode == 1
    assert not (tmp_path / "requeued").exists()


def test_study_that_dies_of_the_signal_before_it_listens_is_requeued(
    programs: Path, tmp_path: Path
) -> None:
    """Imports from a slow file system take seconds, in which Python has no handler."""
    program(programs / "python", "kill -TERM $PPID; exec sleep 60")
    script = sbatch_script(SPEC, STUDY, tmp_path, [])
    in_bash(script)
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


def test_signal_that_comes_before_the_study_has_the_job_requeued(
    programs: Path, tmp_path: Path
) -> None:
    """The change into a folder that is being mounted takes seconds."""
    program(programs / "python", "exec sleep 60")
    early = 'cd() { kill -TERM $$; builtin cd "$@"; }\n'
    script = early + sbatch_script(SPEC, STUDY, tmp_path, [])
    in_bash(script)
    assert (tmp_path / "requeued").read_text() == "requeue 42\n"


@pytest.mark.parametrize(
    "options", [["-N4"], ["-N", "2"], ["--nodes=2"], ["-p", "x", "--nodes", "3"]]
)
def test_more_nodes_than_the_study_uses_are_refused(options: list[str]) -> None:
    with pytest.raises(BadInput, match="nodes are asked for"):
        sbatch_script(SPEC, STUDY, Path("/w"), options)


def test_storage_that_the_job_would_refuse_is_refused_before_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(project)
    local = ask("submit", "study.yaml", "--print", cwd=project, check=True)
    assert "autotune.db is a file of this machine" in local.stderr
    url = "postgresql://db.example/tune"
    served = ask("submit", "study.yaml", "--print", cwd=project, env={"AUTOTUNE_STORAGE": url})
    assert (served.returncode, served.stderr) == (0, "")
    monkeypatch.setattr(urls, "file_system", lambda _: "nfs4")
    refused = ask("submit", "study.yaml", "--print", cwd=project)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"storage {project / 'autotune.db'} is on nfs4" in refused.stderr


@pytest.mark.parametrize("variable", ["APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"])
def test_submit_in_an_image_that_the_job_is_not_in_is_refused(
    project: Path, tmp_path: Path, variable: str
) -> None:
    write_study(project)
    program(tmp_path / "sbatch", "echo submitted")
    inside = {variable: "/images/train.sif", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    refused = ask("submit", "study.yaml", cwd=project, env=inside)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "this process is in a container (/images/train.sif)" in refused.stderr
    shown = ask("submit", "study.yaml", "--print", cwd=project, env=inside, check=True)
    assert shown.stdout.startswith("#!/bin/bash")
    assert "(/images/train.sif)" in shown.stderr
    options = ("--", "--container-image=train.sqsh")
    assert ask("submit", "study.yaml", *options, cwd=project, env=inside).returncode == 0


def test_manifest_for_kubernetes_is_printed(project: Path) -> None:
    write_study(project)
    told = ask("submit", "study.yaml", "--kubernetes", "job", cwd=project, check=True)
    found = yaml.safe_load(told.stdout)
    assert (found["kind"], found["metadata"]["name"]) == ("Job", "tiny")
    refused = ask("submit", "study.yaml", "--kubernetes", "pod", cwd=project)
    assert refused.returncode == 2
    assert "--kubernetes takes job or rayjob, got pod" in refused.stderr


def test_manifest_takes_neither_options_of_sbatch_nor_a_launcher_of_slurm(project: Path) -> None:
    write_study(project)
    words = ("submit", "study.yaml", "--kubernetes", "job")
    told = ask(*words, "--", "-N1", "--gpus-per-node=8", cwd=project)
    assert (told.returncode, told.stdout) == (2, "")
    assert "-N1 --gpus-per-node=8: options of sbatch" in told.stderr
    write_study(project, launcher="slurm")
    told = ask(*words, cwd=project)
    assert (told.returncode, told.stdout) == (2, "")
    assert "launcher: slurm runs inside an allocation of Slurm" in told.stderr


def test_job_of_kubernetes_ignores_the_code_of_a_requeue() -> None:
    found = yaml.safe_load(job_manifest(SPEC, STUDY, Path('/w "x"')))
    assert re.fullmatch("my-study-[0-9a-f]{8}", found["metadata"]["name"])
    rules = found["spec"]["podFailurePolicy"]["rules"]
    assert rules[0] == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75]}}
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["autotune", "start", "study.yaml", "--foreground"]
    assert container["workingDir"] == '/w "x"'


def test_paths_in_a_job_of_kubernetes_are_what_they_are() -> None:
    study, folder = Path("it's $(HOME).yaml"), Path('/w\n"ü"\t\\')
    found = yaml.safe_load(job_manifest(SPEC, study, folder))
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert container["command"][2] == "it's $$(HOME).yaml"  # as it writes a dollar
    assert container["workingDir"] == str(folder)


ON_RAY = StudySpec.model_validate(
    {
        "name": "My.Study",
        "workload": {"name": "gpt"},
        "launcher": {"kind": "ray", "address": "auto"},
        "resources": {"nodes": 3},
    }
)


def test_pods_of_manifests_are_valid_by_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    job, ray_job = (
        yaml.safe_load(make(ON_RAY, STUDY, Path("/w")).replace("TODO", '"1"'))
        for make in MANIFESTS.values()
    )
    cluster = ray_job["spec"]["rayClusterSpec"]
    templates = [cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]]
    templates.append(ray_job["spec"]["submitterPodTemplate"])
    pods = [{"apiVersion": "v1", "kind": "Pod", **template} for template in templates]
    for manifest in (job, *pods):
        validate(manifest, "1.33", strict=True)


def test_pods_that_train_are_told_the_name_of_their_node() -> None:
    found = [yaml.safe_load(make(ON_RAY, STUDY, Path("/w"))) for make in MANIFESTS.values()]
    job, ray_job = (one["spec"] for one in found)
    [workers] = ray_job["rayClusterSpec"]["workerGroupSpecs"]
    for template in (job["template"], workers["template"]):
        [container] = template["spec"]["containers"]
        [node] = [one for one in container["env"] if one["name"] == NODE]
        assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_pods_that_submit_a_study_are_told_their_namespace_as_its_owner() -> None:
    found = [yaml.safe_load(make(ON_RAY, STUDY, Path("/w"))) for make in MANIFESTS.values()]
    job, ray_job = (one["spec"] for one in found)
    for template in (job["template"], ray_job["rayClusterSpec"]["headGroupSpec"]["template"]):
        [container] = template["spec"]["containers"]
        [owner] = [one for one in container["env"] if one["name"] == OWNER]
        assert owner["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}


def test_pods_of_manifests_are_those_that_restricted_namespaces_take() -> None:
    job, ray_job = (
        yaml.safe_load(make(ON_RAY, STUDY, Path("/w")))["spec"] for make in MANIFESTS.values()
    )
    cluster = ray_job["rayClusterSpec"]
    groups = [job, cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    templates = [ray_job["submitterPodTemplate"], *(group["template"] for group in groups)]
    [uid] = re.findall(r"^ARG UID=(\d+)$", CONTAINERFILE.read_text(), re.MULTILINE)
    for pod in (template["spec"] for template in templates):
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": int(uid),
            "fsGroup": int(uid),
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_pods_are_given_the_time_that_all_recipes_give() -> None:
    job, ray_job = (
        yaml.safe_load(make(ON_RAY, STUDY, Path("/w")))["spec"] for make in MANIFESTS.values()
    )
    head = ray_job["rayClusterSpec"]["headGroupSpec"]
    unit = (CONTAINERFILE.parent / "autotune.service").read_text()
    [seconds] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    for group in (job, head):
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] == int(seconds)


def test_storage_of_a_job_of_kubernetes_is_a_secret() -> None:
    found = yaml.safe_load(job_manifest(SPEC, STUDY, Path("/w")))
    [container] = found["spec"]["template"]["spec"]["containers"]
    [storage] = [one for one in container["env"] if one["name"] == "AUTOTUNE_STORAGE"]
    assert storage["valueFrom"]["secretKeyRef"]["key"] == "storage"


def test_ray_job_runs_the_study_on_the_cluster_that_it_makes() -> None:
    found = yaml.safe_load(ray_job_manifest(ON_RAY, STUDY, Path("/w")))
    spec = found["spec"]
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    assert "kueue.x-k8s.io/queue-name" in found["metadata"]["labels"]
    assert spec["entrypoint"] == "env -C /w autotune start study.yaml --foreground"
    assert spec["shutdownAfterJobFinishes"]
    # Kueue itself sets `suspend`, and refuses a cluster that grows.
    assert not {"suspend", "clusterSelector"} & spec.keys()
    assert "enableInTreeAutoscaling" not in spec["rayClusterSpec"]
    [workers] = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert [workers[name] for name in ("replicas", "minReplicas", "maxReplicas")] == [3, 3, 3]


def test_only_a_lost_head_has_a_ray_job_begun_again() -> None:
    spec = yaml.safe_load(ray_job_manifest(ON_RAY, STUDY, Path("/w")))["spec"]
    assert (spec["backoffLimit"], spec["submitterConfig"]["backoffLimit"]) == (0, 20)


@pytest.mark.parametrize("launcher", ["local", "ray", {"kind": "ray", "address": "10.0.0.1:6379"}])
def test_ray_job_is_for_a_study_on_its_own_cluster(launcher: object) -> None:
    spec = StudySpec.model_validate({**SPEC.model_dump(mode="json"), "launcher": launcher})
    with pytest.raises(BadInput, match="kind: ray, address: auto"):
        ray_job_manifest(spec, STUDY, Path("/w"))


@pytest.mark.parametrize(("study", "folder"), [("my study.yaml", "/w"), ("study.yaml", "/w/$HOME")])
def test_paths_that_shells_take_apart_are_refused(study: str, folder: str) -> None:
    with pytest.raises(BadInput, match="would take it apart"):
        ray_job_manifest(ON_RAY, Path(study), Path(folder))


LONG = "x" * 99


@pytest.mark.parametrize("name", ["2024", "0x1F", "1e3", "true", "No", "null", "GPT_a", LONG])
def test_name_of_a_job_of_kubernetes_is_a_label_and_the_study_s_own(name: str) -> None:
    found = yaml.safe_load(job_manifest(named(name), STUDY, Path("/w")))
    label = found["metadata"]["name"]
    assert re.fullmatch("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", label)
    others = (name.lower(), name.upper(), f"{name}x", name.replace("_", "-"))
    labels = {
        yaml.safe_load(job_manifest(named(other), STUDY, Path("/w")))["metadata"]["name"]
        for other in {*others} - {name}
    }
    assert label not in labels
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert {"name": "AUTOTUNE_MACHINE", "value": name} in container["env"]


@pytest.mark.parametrize("name", ["2024", "GPT_a", "x" * 42, LONG])
def test_name_of_a_ray_job_is_one_that_kuberay_takes(name: str) -> None:
    spec = ON_RAY.model_copy(update={"name": name})
    found = yaml.safe_load(ray_job_manifest(spec, STUDY, Path("/w")))
    assert re.fullmatch("[a-z][a-z0-9-]{0,45}[a-z0-9]", found["metadata"]["name"])


def named(name: str) -> StudySpec:
    return StudySpec.model_validate({"name": name, "workload": {"name": "gpt"}})


def test_variables_of_sbatch_do_not_override_the_script(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBATCH_ACCOUNT reaches sbatch; variables that change --requeue or the signal do not."""
    write_study(project)
    for name in [name for name in os.environ if name.startswith("SBATCH_")]:
        monkeypatch.delenv(name)
    program(tmp_path / "sbatch", "env | grep ^SBATCH_ | sort")
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SBATCH_ACCOUNT": "lab",
        "SBATCH_NO_REQUEUE": "1",
        "SBATCH_SIGNAL": "B:USR1@5",
    }
    told = ask("submit", "study.yaml", cwd=project, env=environment, check=True)
    assert told.stdout == "SBATCH_ACCOUNT=lab\n"
