"""A study on several nodes of a cluster of namespaces: its records, and what is left of it on each."""

import contextlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psutil

from storage import MessageKind
from tests.support.nodes import Node
from tests.support.records import Records
from tests.support.steering import TINY_WORKLOAD, quick_measurement, write_study
from tests.support.waiting import wait_for

PATIENCE_SECONDS = 400.0
_AUTOTUNE = [sys.executable, "-P", "-m", "autotune"]


@dataclass
class Recovery:
    """Cost of a strike, in seconds.

    Attributes:
        back: from the strike until it was over, and the cluster ran on all nodes again.
        next_trial: from the strike to the end of the next trial that was begun after it.
        longest: without any trial that ended well, from the strike on.
        lost: attempts that were lost or given up.
        missing: trials without a result.
        repeated: results recorded once more.
        blamed: configurations that are said to have failed.
    """

    back: float
    next_trial: float
    longest: float
    lost: int
    missing: int = 0
    repeated: int = 0
    blamed: int = 0


class ClusterStudy(Records):
    """A study whose commands are given on one of the nodes."""

    ours: ClassVar[Sequence[str]] = ("autotune",)
    """Parts of the command lines of its processes."""

    def __init__(
        self,
        nodes: Sequence[Node],
        home: Node,
        folder: Path,
        launcher: str | Mapping[str, str],
        *,
        ranks: int,
        trials: int,
    ) -> None:
        super().__init__(f"sqlite:///{folder}/autotune.db", "tiny")
        self._all = nodes
        self._home = home
        self.folder = folder
        self.wanted = trials
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tiny.py").write_text(TINY_WORKLOAD.read_text())
        self._settings: dict[str, Any] = {
            "launcher": launcher,
            "resources": {"workers": ranks, "gpus_per_worker": 0},
            "search_space": {"micro_batch": [1, 2, 4, 8], "log_interval": list(range(1, 30))},
            "budget": {"trials": trials},
            "measurement": quick_measurement(
                warmup=0.5,
                max_measure_time=1.5,
                search_ci_half_width=1e-3,
                block_seconds=0.1,
                step_timeout=60,
            ),
        }
        self.write()

    def write(self, **changes: Any) -> None:
        """Write its file; keyword arguments replace sections."""
        self._settings |= changes
        write_study(self.folder, name=self.name, storage=self.url, **self._settings)

    def command(self, *arguments: str) -> str:
        """Return what a command prints, given on the node of the study."""
        found = self._home.run(*_AUTOTUNE, *arguments, cwd=self.folder)
        return found.stdout + found.stderr

    def wait_for_trials(self, count: int) -> None:
        """So many have been recorded, and one more runs."""

        def enough() -> bool:
            searched = self.recorded("search")
            return len(searched) >= count and any(a.running for a in self.attempts("search"))

        wait_for(enough, f"{count} trials; said so far: {self.said}", PATIENCE_SECONDS)

    def completed_after(self, moment: float) -> float | None:
        """When the first trial ended well that was begun after that moment."""
        ends = [
            a.ended
            for a in self.recorded("search")
            if a.started > moment and a.ended and a.result.throughput
        ]
        return min(ends, default=None)

    def longest_pause(self, since: float) -> float:
        """Seconds without the end of a measured run of whatever purpose, from that moment on."""
        ends = [a.ended for a in self.recorded() if a.ended and a.ended > since]
        return max(later - earlier for earlier, later in itertools.pairwise([since, *sorted(ends)]))

    def longest_block(self) -> float:
        """Return the seconds of the longest timed block that a figure is made of."""
        blocks = (b for a in self.recorded() for b in self.repository.attempts.blocks(a.id))
        return max(block.seconds for block in blocks if block.kept)

    @property
    def said(self) -> str:
        """All messages."""
        messages = self.repository.messages.of(self.study().id)
        return "\n".join(message.text for message in messages)

    @property
    def waits(self) -> str:
        """Return what the study says last that it waits for; empty if it says something else."""
        messages = self.repository.messages.of(self.study().id)
        waiting = messages and messages[-1].kind == MessageKind.WAITING
        return messages[-1].text if waiting else ""

    def seen_status(self) -> dict[str, Any]:
        """Return what `status --json` prints on the node of the study."""
        found = self._home.run(*_AUTOTUNE, "status", self.name, "--json", cwd=self.folder)
        return dict(json.loads(found.stdout))

    def wait_done(self) -> None:
        """It ends by itself, with all of its trials."""
        wait_for(lambda: self.study().state.ended, "the study ends", PATIENCE_SECONDS)
        assert self.study().state == "DONE", f"{self.study().error}\n{self.said}"
        self.assert_complete(trials=self.wanted)

    def processes(self) -> list[str]:
        """Return what is left of the study on all nodes."""
        found = []
        for node in self._all:
            for process in node.processes():
                with contextlib.suppress(psutil.Error):
                    line = " ".join(process.cmdline())
                    if any(part in line for part in self.ours):
                        found.append(f"{node.name}: {line[:200]}")
        return found

    def recovery(self, began: float, back: float, ended: float) -> Recovery:
        """Return what a strike at this moment has cost.

        Args:
            back: seconds until it was over.
            ended: when the next trial did.
        """
        again = [a for a in self.attempts() if a.result.state in ("LOST", "ABANDONED")]
        blamed = [a for a in self.recorded() if a.result.state not in ("COMPLETE", "PRUNED")]
        return Recovery(
            round(back, 1),
            round(ended - began, 1),
            round(self.longest_pause(began), 1),
            len(again),
            *self.losses(self.wanted),
            len(blamed),
        )
