"""Every step and every request of a run in files, so that any figure can be traced to what it is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kplan.engine import Fleet, Replica
from kplan.engine.state import STEPS, W_CLOSE_S, W_OPEN_S, Steps
from kplan.errors import InputError
from kplan.files import made_folder, replacing_together, telling
from kplan.formats import KEY, RECORDS
from kplan.provenance import digest, file_digest, versions
from kplan.registry import PolicySpec
from kplan.simulate.draw import Drawn
from kplan.simulate.record_columns import (
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    as_table,
    open_table,
)
from kplan.simulate.run import run_fleet
from kplan.simulate.server import is_off
from kplan.simulate.setup import Setup

FILES = RUN_FILE, STEPS_FILE, REQUESTS_FILE = "run.json", "steps.parquet", "requests.parquet"
"""The first is the mark of the others, see :func:`kplan.files.replacing_together`."""
ROWS = 65_536
"""Request rows built and written at once."""


@contextmanager
def recording(folder: Path, reads: Sequence[Path] = ()) -> Iterator[Recorder]:
    """Make ``folder`` ready; steps.parquet, requests.parquet and run.json are there when the block ends well.

    They are written beside their places and moved when all are whole: a failure or an interrupt leaves what
    was there, and no folder where there was none.

    Args:
        reads: files that the same run reads, which must not be written over.

    Raises:
        InputError: the folder is a file, or cannot be written, or holds one of ``reads`` under such a name.
    """
    paths = tuple(folder / name for name in FILES)
    with telling("--records", folder):
        _refuse_taken(folder, paths, reads)
    with made_folder("--records", folder), replacing_together(paths) as sinks:
        yield Recorder(paths, *sinks)


def _refuse_taken(folder: Path, paths: Sequence[Path], reads: Sequence[Path]) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError("--records", str(folder), "is a file", "name a folder")
    for path in paths:
        if path.is_dir():
            raise InputError("--records", str(path), "is a folder", "move it, or name another folder")
        if path.resolve() in [read.resolve() for read in reads]:
            raise InputError("--records", str(path), "is read by the same command", "name another folder")


@dataclass(frozen=True)
class Recorder:
    """Writes the files of one run (see :func:`recording`).

    Attributes:
        paths: where run, steps and requests will be.
        run, steps, requests: what takes their places.
    """

    paths: tuple[Path, ...]
    run: BinaryIO
    steps: BinaryIO
    requests: BinaryIO

    def write(
        self,
        setup: Setup,
        spec: PolicySpec,
        drawn: Sequence[Drawn],
        replicas: int,
        about: Mapping[str, Any],
    ) -> None:
        """Run ``spec`` on every element of ``drawn`` once more and write down all that happens.

        Rows stream: what is held is one replication's requests and some 65,536 steps per replica.

        Args:
            replicas: servers that the load is dealt to.
            about: more for run.json.

        Raises:
            InputError: the disk is full, or the folder went away.
        """
        scenario = scenario_record(setup, spec, drawn, replicas)
        origin = {
            "scenario_hash": digest(scenario),
            "policy": spec.text,
            "versions": versions(),
            "kind": "simulated",
            "source": "predicted step by step, measured on no server; run.json has the assumptions",
        }
        replications = []
        with (
            telling("--records", self.paths[0].parent),
            open_table(self.steps, "steps", STEP_COLUMNS, origin) as steps,
            open_table(self.requests, "requests", REQUEST_COLUMNS, origin) as requests,
        ):
            for number, one in enumerate(drawn):
                fleet, scale = run_fleet(
                    setup, spec, one, replicas=replicas, record=_StepRows(steps, number).write
                )
                for replica, served in enumerate(fleet.replicas):
                    _write_requests(requests, number, replica, served)
                replications.append(
                    {
                        "replication": number,
                        "seed": setup.scenario.seed + number,
                        "rate_scale": scale,
                        "replicas": _windows(fleet),
                    }
                )
        run = {
            KEY: RECORDS.version,
            **origin,
            "scenario": scenario,
            "replications": replications,
            **about,
        }
        with telling("--records", self.paths[0].parent):
            self.run.write((json.dumps(run, indent=2, allow_nan=False) + "\n").encode("utf-8"))


class _StepRows:
    """Writes the steps of one replication, numbered per replica."""

    def __init__(self, writer: Any, replication: int) -> None:
        self._writer, self._replication = writer, replication
        self._written: dict[int, int] = {}

    def write(self, replica: int, steps: Steps) -> None:
        n, first = len(steps), self._written.get(replica, 0)
        if n == 0:
            return
        self._written[replica] = first + n
        end_s = steps["start_s"] + (
            steps["verify_s"] + steps["draft_s"] + steps["sampling_s"] + steps["overhead_s"]
        )
        own = {"query_tokens": steps["tokens"], "measured": steps["measured"] > 0, "end_s": end_s}
        given = {name: steps[name] for name in STEP_COLUMNS if name in steps.dtype.names}
        where = _where(self._replication, replica, n) | {"step": np.arange(first, first + n)}
        self._writer.write_table(as_table(STEP_COLUMNS, given | own | where, self._writer.schema))


def _write_requests(writer: Any, replication: int, number: int, replica: Replica) -> None:
    """All requests of a replica, in order of admission."""
    window = replica.window
    for first in range(0, len(replica.admitted), ROWS):
        at = replica.admitted[first : first + ROWS]
        place = np.arange(first, first + len(at))
        rows = replica.records[at]
        later = rows["output_len"] - 1
        spread_s = rows["finish_s"] - rows["first_token_s"]
        own = {
            "request": at,
            "ttft_s": rows["first_token_s"] - rows["arrival_s"],
            "tpot_s": np.divide(spread_s, later, out=np.full(len(at), np.nan), where=later > 0),
            "cached_tokens": rows["cached"],
            "measured": (window.start <= place) & (place < window.stop),
        }
        given = {name: rows[name] for name in REQUEST_COLUMNS if name in rows.dtype.names}
        where = _where(replication, number, len(at))
        writer.write_table(as_table(REQUEST_COLUMNS, given | own | where, writer.schema))


def _where(replication: int, replica: int, n: int) -> dict[str, Any]:
    return {"replication": np.full(n, replication), "replica": np.full(n, replica)}


def _windows(fleet: Fleet) -> list[dict[str, Any]]:
    """What was simulated and what of it was measured, by replica; no seconds where no step was."""
    found = []
    for number, replica in enumerate(fleet.replicas):
        sums, window = replica.machine.sums, replica.window
        edges = {"open_s": sums[W_OPEN_S], "close_s": sums[W_CLOSE_S]}
        found.append(
            {
                "replica": number,
                "requests": len(replica.admitted),
                "steps": int(replica.machine.counters[STEPS]),
                "measured": {
                    "first_admitted": window.start,
                    "last_admitted": window.stop - 1,
                    **{name: None if np.isnan(at) else float(at) for name, at in edges.items()},
                },
            }
        )
    return found


def scenario_record(setup: Setup, spec: PolicySpec, drawn: Sequence[Drawn], replicas: int) -> dict[str, Any]:
    """The scenario with every default filled in; a file by its name and the hash of its bytes.

    Args:
        replicas: how many served it.
    """
    scenario = setup.scenario
    files = {
        name: {name: path.name, f"{name}_hash": file_digest(path)}
        for name, path in (("replay", scenario.replay), ("traces", scenario.traces))
        if path is not None
    }
    filled = {
        "policy": spec.text,
        "requests": len(drawn[0].prompt_len),
        "replicas": replicas,
        "max_num_seqs": setup.max_num_seqs_off if is_off(spec) else setup.max_num_seqs,
        "max_num_batched_tokens": setup.max_num_batched_tokens,
    }
    record = scenario.model_dump(mode="json") | filled
    for named in files.values():
        record |= named
    return record
