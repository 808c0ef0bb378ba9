"""Batch scripts and manifests that run a study in a batch system, and go on with it."""

import hashlib
import json
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.config import StudySpec
from autotune.errors import BadInput, GaveUp, Requeued
from launchers.sections import AUTO, RaySection, SlurmSection

_WARNING_SECONDS = 60
"""Time between the signal and the end of a job: a daemon leaves within seconds."""
_TERMINATED = 128 + signal.SIGTERM
"""Exit code of a process that has died of SIGTERM, as shells have it."""
LONGEST_WAIT = "10m"
"""Longest wait for what a study lacks, with nodes that do nothing meanwhile: a restart of a cluster or a
server takes minutes."""
_PREEMPTED_WITHIN = 300
"""Seconds between a preemption and the end of the study, which is told to leave at once."""
_HELD = re.compile(r"^(\S+) .*held", re.IGNORECASE | re.MULTILINE)
"""A pending job that is held, by its reason."""
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --requeue
#SBATCH --dependency=singleton
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@{warning}
{options}# A shell hears of a signal only while it waits: the study is in the background.
# Before version 5, bash may lose a signal to a process that it has just forked.
told= study=
leave() {{ told=1; [ -z "$study" ] || {{ sleep 1; kill -TERM $study; }}; }}
trap leave TERM
# One that was suspended to preempt it, and went on, keeps the time of that.
preempted() {{
  local shown at begun
  shown=$(SLURM_TIME_FORMAT=standard scontrol show job "$SLURM_JOB_ID")
  [[ $shown != *JobState=PREEMPTED* ]] || return 0
  [[ $shown =~ [[:space:]]PreemptTime=([0-9][^[:space:]]*) ]] || return 1
  at=${{BASH_REMATCH[1]}}
  [[ $shown =~ [[:space:]]StartTime=([0-9][^[:space:]]*) ]] || return 1
  begun=${{BASH_REMATCH[1]}}
  [[ ! $at < $begun ]] && [ $(($(date +%s) - $(date -d "$at" +%s))) -le {preempted_within} ]
}}
{on_one_node}cd {folder} || exit 2
# The next job of the study may begin on another node.
export AUTOTUNE_MACHINE="${{AUTOTUNE_MACHINE:-slurm-$SLURM_CLUSTER_NAME}}"
# A study that cannot run keeps the nodes of the job no longer.
export AUTOTUNE_GIVE_UP_AFTER="${{AUTOTUNE_GIVE_UP_AFTER:-{give_up_after}}}"
{command} &
study=$!
[ -z "$told" ] || leave
# A wait that the signal interrupts returns the code of the signal, not that of the study.
while told=; wait $study; code=$?; [ -n "$told" ]; do :; done
# It died of the signal, which came while Python started.
[ $code -ne {terminated} ] || code={requeued}
again=
[ $code -ne {requeued} ] || again=requeue
# It would wait again: the job keeps no nodes until its user says so.
[ $code -ne {gave_up} ] || again=requeuehold
if [ -n "$again" ]; then
  # A controller that is restarted or busy answers seconds later.
  for pause in 1 2 4 8; do
    state=$(squeue -h -o %T -j "$SLURM_JOB_ID")
    [ -z "$state" ] || break
    sleep $pause
  done
  # A job that was cancelled is no longer running, and stays cancelled. One that Slurm has ended to
  # preempt it is not running either.
  if [ "${{state:-RUNNING}}" = RUNNING ] || preempted; then
    for pause in 1 2 4 8; do
      if scontrol $again "$SLURM_JOB_ID"; then
        [ $again = requeue ] ||
          echo "the job is held: scontrol release $SLURM_JOB_ID begins it again" >&2
        break
      fi
      sleep $pause
    done
  fi
fi
exit $code
"""
_ON_ONE_NODE = """\
# Options such as --gpus and --ntasks may bring several nodes.
if [ "${SLURM_JOB_NUM_NODES:-1}" -ne 1 ]; then
  echo "error: this job has $SLURM_JOB_NUM_NODES nodes, and its study would run on the first one:" \\
    "ask for one (-N1 --gpus-per-node=NUMBER), or say launcher: slurm" >&2
  exit 2
fi
"""
_JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: {label}
spec:
  backoffLimit: 20
  podFailurePolicy:   # {requeued}: told to leave, the next pod goes on
    rules:
      - action: Ignore
        onExitCodes: {{operator: In, values: [{requeued}]}}
      - action: Ignore
        onPodConditions: [{{type: DisruptionTarget, status: "True"}}]
      - action: FailJob
        onExitCodes: {{operator: In, values: [1, 2]}}
  template:
    spec:
      restartPolicy: Never
      # The user of the image, who owns what is on the claim; fsGroup makes a new volume writable.
      securityContext: {security}
      terminationGracePeriodSeconds: {grace}
      containers:
        - name: tune
          image: TODO   # the image that you train in, with autotune installed
          workingDir: {folder}
          command: [{words}]
          securityContext: {unprivileged}
          env:
            - {{name: AUTOTUNE_MACHINE, value: {machine}}}   # stays when the pod is made anew
            - name: AUTOTUNE_NODE   # figures are of the node, whichever pod is on it
              valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}
            - name: AUTOTUNE_OWNER   # tells a study from that of another namespace
              valueFrom: {{fieldRef: {{fieldPath: metadata.namespace}}}}
            # On a claim that is a disk of one node (ReadWriteOnce) leave it out: SQLite is there.
            - name: AUTOTUNE_STORAGE   # postgresql://...
              valueFrom: {{secretKeyRef: {{name: TODO, key: storage}}}}
          resources:   # whole CPUs, requests equal to limits: the pod has its CPUs to itself
            requests: {{cpu: TODO, memory: TODO}}
            limits: {{cpu: TODO, memory: TODO}}   # nvidia.com/gpu: 8
          volumeMounts:
            - {{name: work, mountPath: {folder}}}
            - {{name: shm, mountPath: /dev/shm}}
      volumes:
        - name: work   # study.yaml, code, .autotune, best.yaml; SQLite if it is the storage
          persistentVolumeClaim: {{claimName: TODO}}
        - name: shm
          emptyDir: {{medium: Memory}}
"""
# Checked against KubeRay v1.7.0 and Kueue v0.19.2. RayJob knows no exit codes: backoffLimit would make
# a new cluster for codes 1 and 2 as well. A lost head has the submitter fail, not the Ray job.
_RAY_JOB = """\
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {label}
  labels:
    kueue.x-k8s.io/queue-name: TODO   # a LocalQueue of Kueue, which suspends and resumes the RayJob
spec:
  entrypoint: {entrypoint}
  shutdownAfterJobFinishes: true
  backoffLimit: 0   # a new cluster for whatever failed, bad input too
  submitterConfig: {{backoffLimit: 20}}   # a lost head: submitted to the next one, the study goes on
  submitterPodTemplate:
    spec:
      restartPolicy: Never
      securityContext: {security}
      containers:
        - name: ray-job-submitter
          image: TODO   # the same as below
          securityContext: {unprivileged}
          resources: {{requests: {{cpu: 500m, memory: 200Mi}}, limits: {{cpu: "1", memory: 1Gi}}}}
  rayClusterSpec:
    rayVersion: TODO   # of the image: 2.52.0 or newer, for the token
    authOptions: {{mode: token}}
    headGroupSpec:
      rayStartParams: {{num-cpus: "0", num-gpus: "0"}}   # the daemon alone is here, no trial
      template:
        spec:
          terminationGracePeriodSeconds: {grace}
          # The user of the image, who owns what is on the claim; fsGroup makes a new volume writable.
          securityContext: {security}
          containers:
            - name: ray-head
              image: TODO   # the image that you train in, with autotune and ray[default] installed
              workingDir: {folder}
              securityContext: {unprivileged}
              env:
                - {{name: AUTOTUNE_MACHINE, value: {machine}}}   # stays when the pod is made anew
                - name: AUTOTUNE_OWNER   # tells a study from that of another namespace
                  valueFrom: {{fieldRef: {{fieldPath: metadata.namespace}}}}
                - name: AUTOTUNE_STORAGE   # postgresql://...: SQLite is for one machine
                  valueFrom: {{secretKeyRef: {{name: TODO, key: storage}}}}
              resources:
                requests: {{cpu: TODO, memory: TODO}}
                limits: {{cpu: TODO, memory: TODO}}
              volumeMounts:
                - {{name: work, mountPath: {folder}}}
          volumes:
            - name: work   # study.yaml, code, .autotune, best.yaml; ReadWriteMany
              persistentVolumeClaim: {{claimName: TODO}}
    workerGroupSpecs:
      - groupName: workers
        replicas: {nodes}   # pods: those of a trial, times the trials at a time
        minReplicas: {nodes}
        maxReplicas: {nodes}
        rayStartParams: {{}}
        template:
          spec:
            securityContext: {security}
            containers:
              - name: ray-worker
                image: TODO   # the same
                workingDir: {folder}
                securityContext: {unprivileged}
                env:
                  - name: AUTOTUNE_NODE   # figures are of the node, whichever pod is on it
                    valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}
                resources:   # whole CPUs, requests equal to limits: the pod has its CPUs to itself
                  requests: {{cpu: TODO, memory: TODO}}
                  limits: {{cpu: TODO, memory: TODO, nvidia.com/gpu: TODO}}
                volumeMounts:
                  - {{name: work, mountPath: {folder}}}
                  - {{name: shm, mountPath: /dev/shm}}
            volumes:
              - name: work
                persistentVolumeClaim: {{claimName: TODO}}
              - name: shm
                emptyDir: {{medium: Memory}}
"""
_UID = 10001
"""User of the image that the recipes' Containerfile makes, unless it is given another."""
_OF_PODS = {
    "grace": 150,  # a daemon clears away what runs, and is given two minutes for it
    # What the standard `restricted` of Pod Security asks for.
    "security": f"{{runAsNonRoot: true, runAsUser: {_UID}, fsGroup: {_UID}, "
    "seccompProfile: {type: RuntimeDefault}}",
    "unprivileged": "{allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}",
}
"""Entries of all pods, as YAML."""
_LONGEST_LABEL = 63
"""Letters of a name in Kubernetes, as its pods have it for a label."""
_LONGEST_RAY_JOB = 47
"""Letters of the name of a RayJob, which begins with a letter."""
_RAY_JOB_PREFIX = "tune-"
_DIGITS = 8
_CONFLICTS = {
    "--array": "each task of the array would run the same study",
    "--wrap": "it takes the place of the script that runs the study",
    "--no-requeue": "the study goes on in the job that Slurm requeues",
    "--signal": "the study leaves on the signal that its script asks for",
}
"""Option of sbatch -> why it cannot be given."""
_OVERRIDING = frozenset(
    f"SBATCH_{name}"
    for name in ("ARRAY_INX", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "REQUEUE", "SIGNAL")
)
"""Variables with which sbatch overrides lines of a script."""
_SWITCHES = frozenset(
    (
        *("--contiguous", "--exclusive", "--get-user-env", "--hold", "--nice", "--no-kill"),
        *("--overcommit", "--oversubscribe", "--parsable", "--propagate", "--quiet", "--reboot"),
        *("--requeue", "--spread-job", "--test-only", "--use-min-nodes", "--verbose", "--wait"),
        *("-H", "-k", "-O", "-Q", "-s", "-v", "-W"),
    )
)
"""Options of sbatch behind which no value stands."""
_IMAGES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "CH_RUNNING")
"""Variables of processes in a container of Apptainer, Singularity or Charliecloud."""
_NODES = re.compile(r"(?:-N|--nodes=?)(\d+)")


def sbatch_script(spec: StudySpec, study: Path, folder: Path, options: Sequence[str]) -> str:
    """Return a batch script for Slurm.

    Args:
        study: its file.
        folder: in which the study is started.
        options: of sbatch, which come last in the script.

    Raises:
        BadInput: an option conflicts with the script, a word is none, or more nodes are asked for
            than the study would use.
    """
    _refuse_conflicts(options)
    _refuse_other_scripts(options)
    nodes = _nodes(options)
    if nodes > 1 and not spec.launcher.is_shared:
        raise BadInput(
            f"{nodes} nodes are asked for, and this study would run on the first one: on several it "
            "needs launcher: slurm, or a running Ray cluster (launcher: {kind: ray, address: HOST:PORT})"
        )
    return _SCRIPT.format(
        name=job_name(spec),
        warning=_WARNING_SECONDS,
        options="".join(f"#SBATCH {line}\n" for line in _lines(options)),
        on_one_node="" if spec.launcher.is_shared else _ON_ONE_NODE,
        folder=shlex.quote(str(folder)),
        command=shlex.join([sys.executable, "-P", "-m", *_command(study)]),
        give_up_after=LONGEST_WAIT,
        requeued=Requeued.exit_code,
        gave_up=GaveUp.exit_code,
        terminated=_TERMINATED,
        preempted_within=_PREEMPTED_WITHIN,
    )


def job_name(spec: StudySpec) -> str:
    """Return the name of a study's jobs in Slurm."""
    return f"autotune-{spec.name}"


def held_jobs(told: str) -> list[str]:
    """Return the jobs that are held.

    Args:
        told: answer of `squeue --format '%i %r'`, the number and the reason of each pending job.
    """
    return _HELD.findall(told)


def sbatch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for sbatch, without variables that would override lines of the script.

    The job would not be requeued, or hear of its end too late. Others, such as SBATCH_ACCOUNT, stay.
    """
    return {name: value for name, value in environment.items() if name not in _OVERRIDING}


def outside_of_image(environment: Mapping[str, str], options: Sequence[str]) -> str:
    """Return why a job would not find this process's Python; empty if nothing tells that.

    Args:
        environment: of this process, which is in a container of the cluster or not.
        options: of sbatch; with one of a container the job is in that.
    """
    image = next((environment[name] for name in _IMAGES if environment.get(name)), "")
    if not image or any(word.startswith("--container") for word in options):
        return ""
    return (
        f"this process is in a container ({image}), and the job would start {sys.executable} outside "
        "of it: submit from a virtual environment on a file system that the nodes share, or have the "
        "whole script that --print shows run in the container, as your site does it"
    )


def job_manifest(spec: StudySpec, study: Path, folder: Path) -> str:
    """Return a Kubernetes Job; entries that only the user knows are TODO.

    Raises:
        BadInput: the study would not run in it.
    """
    if isinstance(spec.launcher, SlurmSection):
        raise BadInput(
            "launcher: slurm runs inside an allocation of Slurm, and a pod is in none: on one node say "
            "launcher: local, on several print a rayjob"
        )
    return _JOB.format(
        label=_quoted(_label(spec.name)),
        machine=_quoted(spec.name),
        **_OF_PODS,
        folder=_quoted(str(folder)),
        # Kubernetes replaces $(NAME) in a command.
        words=", ".join(_quoted(word.replace("$", "$$")) for word in _command(study)),
        requeued=Requeued.exit_code,
    )


def ray_job_manifest(spec: StudySpec, study: Path, folder: Path) -> str:
    """Return a RayJob of KubeRay; entries that only the user knows are TODO.

    Raises:
        BadInput: the study would not run on its cluster, or a path is none that shells take as it is.
    """
    if spec.launcher != RaySection(kind="ray", address=AUTO):
        raise BadInput(
            "a RayJob makes the Ray cluster that its study runs on: it needs "
            f"launcher: {{kind: ray, address: {AUTO}}}"
        )
    command = ["env", "-C", str(folder), *_command(study)]  # `cd` would be for another shell
    for word in command:
        if shlex.quote(word) != word:
            raise BadInput(f"{word}: the shells of a RayJob would take it apart; rename it")
    label = _label(spec.name, _LONGEST_RAY_JOB - len(_RAY_JOB_PREFIX))
    return _RAY_JOB.format(
        label=_quoted(_RAY_JOB_PREFIX + label),
        machine=_quoted(spec.name),
        **_OF_PODS,
        folder=_quoted(str(folder)),
        entrypoint=_quoted(" ".join(command)),
        nodes=spec.resources.nodes or 1,
    )


MANIFESTS = {"job": job_manifest, "rayjob": ray_job_manifest}
"""Kind of a manifest for Kubernetes -> what makes it."""


def _label(name: str, longest: int = _LONGEST_LABEL) -> str:
    """Return a name in Kubernetes for a study, which no study of another name has."""
    label = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")
    if label == name and len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{label[: longest - len(digest) - 1].rstrip('-')}-{digest}"


def _command(study: Path) -> list[str]:
    return ["autotune", "start", str(study), "--foreground"]


def _refuse_conflicts(options: Sequence[str]) -> None:
    """Refuse options that would have Slurm run something else than the script, or not go on with it."""
    for word in options:
        name = word.partition("=")[0]
        if word.startswith("-a") and not word.startswith("--"):
            name = "--array"
        for refused, why in _CONFLICTS.items():
            if name.startswith("--") and len(name) > len("--") and refused.startswith(name):
                raise BadInput(f"{word}: {why}; leave it out")


def _refuse_other_scripts(options: Sequence[str]) -> None:
    """Refuse words that sbatch would take for a script: it would not read that of the study."""
    takes_value = False
    for word in options:
        if word == "--" or not (word.startswith("-") or takes_value):
            raise BadInput(
                f"{word}: sbatch would run it in the place of the study; behind -- stand options of "
                "sbatch alone"
            )
        is_bare = len(word) == len("-p") or (word.startswith("--") and "=" not in word)
        takes_value = word.startswith("-") and is_bare and word not in _SWITCHES


def _lines(options: Sequence[str]) -> list[str]:
    """Return the options of sbatch line by line, each with its value."""
    lines: list[str] = []
    for word in options:
        if word.startswith("-") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def _nodes(options: Sequence[str]) -> int:
    """Return the nodes that options of sbatch ask for; 1 if they do not say."""
    words = list(options)
    for place, word in enumerate(words):
        if word in ("-N", "--nodes") and place + 1 < len(words):
            word = f"-N{words[place + 1]}"
        if found := _NODES.match(word):
            return int(found[1])
    return 1


def _quoted(text: str) -> str:
    """Return a text as a YAML scalar in double quotes."""
    return json.dumps(text, ensure_ascii=False)
