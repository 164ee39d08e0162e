"""Every place where kplan reads what a user, a file or a server gives: one entry each, for all fuzzers.

A new reader is one entry of :data:`READERS`; ``test_fuzz_readers`` fails where the command line takes a path
that no entry names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import httpx
import optuna

from kplan.acceptance import load_model
from kplan.acceptance.collect import ImportOptions
from kplan.acceptance.joint_file import load_pair
from kplan.acceptance.load import load_acceptance, load_traces
from kplan.acceptance.replay_input import find_roles, read_requests
from kplan.cli.files import read_plan
from kplan.config.scenario import load_scenario
from kplan.dashboard.entry import read_token
from kplan.dashboard.guard import Guard
from kplan.errors import InfeasibleError, InputError
from kplan.export import export_engines
from kplan.export.read_config import source_of_file
from kplan.export.read_sglang import read_sglang
from kplan.latency import fit_tables
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import read_tpot
from kplan.latency.published import load_host_timings
from kplan.live import judge_steps, recording
from kplan.live.bench_serve import read_result
from kplan.live.dialect import Stream, StreamError, dialect_of
from kplan.live.events import events, said_by
from kplan.live.metrics import read_metrics
from kplan.live.prompts import read_prompts
from kplan.live.server import Server
from kplan.profiles import load_calibration, load_drafter, load_engine, load_hardware
from kplan.profiles import load_model as load_target
from kplan.profiles.load import parse
from kplan.profiles.schema import DrafterFile
from kplan.registry import parse_policy
from kplan.report import render_leaderboard, render_report
from kplan.search import board_file
from kplan.search.storage import opened
from kplan.validate.baseline import load_baseline
from kplan.validate.load import load_tables
from kplan.workload import load_log, load_workload
from kplan.workload.log_file import open_log
from tests.faults import seeds as s

TOLD = (InputError, InfeasibleError, StreamError)
"""What a reader may raise: all of it becomes one line, and no traceback."""


@dataclass(frozen=True)
class Reader:
    """One kind of file, or of answer.

    Attributes:
        name: unique.
        file: the name that its files have.
        make: the seeds, made when they are asked for.
        read: reads a file in this process; raises one of :data:`TOLD`.
        argv: the same by the command line, with FILE for the path; empty where a server says it.
        options: parameters of commands, as ``command param``, whose file this is.
    """

    name: str
    file: str
    make: Callable[[], Iterable[bytes]]
    read: Callable[[Path], object]
    argv: str = ""
    options: tuple[str, ...] = ()

    @cached_property
    def seeds(self) -> tuple[bytes, ...]:
        """Files that it reads."""
        return tuple(self.make())

    def try_bytes(self, data: bytes, folder: Path) -> bool:
        """Whether ``data`` is read as a file of ``folder``; False where it is refused in a line.

        Raises:
            AssertionError: it was refused, and not in one line.
        """
        path = folder / self.file
        path.write_bytes(data)
        try:
            self.read(path)
        except TOLD as error:
            told = str(error)
            assert told.strip(), "an error says nothing"
            assert len(told.splitlines()) == 1, f"an error of several lines: {told!r}"
            assert len(told) < 4000, f"an error of {len(told)} characters"
            return False
        return True


def _acceptance(path: Path, proposer: str = "eagle3", k: int | None = 3) -> None:
    load_acceptance(path, options=ImportOptions(proposer=proposer, recorded_k=k))


def _drafter(path: Path) -> None:
    proposer = parse("drafters", path, DrafterFile).proposer
    load_drafter(proposer, load_target("llama-3.1-8b"), str(path))


def _replay(path: Path) -> None:
    log = open_log(path)
    roles = find_roles(log.columns, {}, file=log.name, text=False)
    read_requests(log.read(list(dict.fromkeys(roles.values()))), roles, file=log.name)


def _export(path: Path) -> None:
    plan = read_plan(path)
    model = load_target(plan.question.model)
    export_engines(plan, model, load_drafter(plan.question.proposer, model, plan.question.drafter))


def _config(engine: str, path: Path) -> None:
    source_of_file(path, engine).read()


def _ladder(path: Path) -> None:
    given = {
        "model-path": "m", "speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "d",
        "speculative-adaptive": True, "speculative-adaptive-config": path.name,
    }  # fmt: skip
    read_sglang(given, frozenset(given), path.parent)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")  # as kplan.live.server.Server.text


def _metrics(engine: str, path: Path) -> None:
    snapshot = read_metrics(_text(path), engine)
    for figure in ("drafts", "accepted_per_position", "emissions", "running"):
        if snapshot.has(figure):
            snapshot.total(figure)
            snapshot.by_position(figure)


def _reply(body: bytes) -> httpx.Response:
    return httpx.Response(200, stream=httpx.ByteStream(body))


def _stream(engine: str, path: Path) -> None:
    async def read() -> None:
        dialect, stream = dialect_of(engine, "m"), Stream()
        async for event in events(_reply(path.read_bytes())):
            dialect.feed(stream, event, 0.0)
        dialect.counts(stream)

    asyncio.run(read())


def _said(path: Path) -> None:
    asyncio.run(said_by(_reply(path.read_bytes())))


def _answers(path: Path) -> None:
    """A server whose every answer is the file."""
    body = path.read_bytes()

    async def sent() -> AsyncIterator[bytes]:
        yield body

    with Server("http://127.0.0.1:1") as server:
        server._options["transport"] = httpx.MockTransport(lambda _: httpx.Response(200, content=sent()))
        server.info()


def _bench_load(path: Path) -> None:
    import json

    try:  # as kplan.live.bench_serve.load, which runs the generator first
        record = json.loads(_text(path))
    except (ValueError, RecursionError):
        return
    read_result(record, "vllm")


def _journal(path: Path) -> None:
    with opened(str(path)) as storage:
        for name in optuna.get_all_study_names(storage):
            optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)


def _recorded(path: Path) -> None:
    recording.sidecar(path).write_bytes(s.as_json(s.RECORDING_META))
    with recording.open_recording(path, s.RECORDING_META["settings"]) as made:  # type: ignore[arg-type]
        list(made.read())


def _recorded_meta(path: Path) -> None:
    rows = path.with_name(path.name.removesuffix(".meta.json"))
    rows.write_bytes(s.RECORDING_ROWS)
    with recording.open_recording(rows, {"model": "m"}) as made:
        _ = made.sound, made.passed("tokens")


def _token(path: Path) -> None:
    path.chmod(0o600)
    Guard("127.0.0.1", read_token(path))


def _shipped(*names: str) -> Callable[[], Iterable[bytes]]:
    return partial(s.shipped, *names)


def _made(*made: bytes | dict[str, Any]) -> Callable[[], Iterable[bytes]]:
    return lambda: [one if isinstance(one, bytes) else s.as_json(one) for one in made]


_TRACES = (
    "recommend traces",
    "simulate traces",
    "search traces",
    "leaderboard traces",
    "import-config traces",
    "verify traces",
    "dashboard traces",
    "traces/import file",
    "traces/describe file",
    "traces/fit file",
    "traces/pair file",
    "traces/workload file",
)
_LOGS = ("recommend replay", "simulate replay", "search replay", "import-config replay", "verify replay")
_IMPORT = "traces import FILE --out OUT --proposer eagle3 --recorded-k 3"

READERS: tuple[Reader, ...] = (
    Reader(
        "scenario",
        "s.yaml",
        _made(s.SCENARIO),
        lambda path: load_scenario(path, {}, {}),
        "simulate FILE --requests 2 --json",
        ("simulate scenario", "search scenario"),
    ),
    Reader(
        "hardware",
        "h.yaml",
        _shipped("hardware/l40s.yaml"),
        load_hardware,
        "simulate --concurrency 1 --hardware FILE",
    ),
    Reader(
        "model", "m.yaml", _shipped("models/llama-3.2-1b.yaml", "models/deepseek-v2-lite.yaml"), load_target
    ),
    Reader(
        "config.json",
        "config.json",
        _made(s.CONFIG, s.MOE_CONFIG),
        load_target,
        "simulate --concurrency 1 --model FILE",
        ("export model_dir", "import-config model_dir"),
    ),
    Reader(
        "drafter",
        "d.yaml",
        _shipped("drafters/eagle3-llama-3.1-8b.yaml", "drafters/eagle3-tree.yaml", "drafters/ngram.yaml"),
        _drafter,
    ),
    Reader(
        "calibration",
        "c.yaml",
        _shipped("calibrations/cpu.yaml", "calibrations/h100-sxm.yaml"),
        load_calibration,
        "simulate --concurrency 1 --calibration FILE",
    ),
    Reader("engine", "e.yaml", _shipped("engines/vllm.yaml", "engines/sglang.yaml"), load_engine),
    Reader(
        "workload", "w.yaml", _shipped("workloads/mtbench.yaml"), load_workload, "", ("traces/pair workload",)
    ),
    Reader("own trace", "t.parquet", lambda: [s.own_trace()], load_traces, "traces describe FILE", _TRACES),
    Reader("reference trace", "r.parquet", lambda: [s.reference()], load_traces, "traces describe FILE"),
    Reader("SpecDecode-Bench", "b.jsonl", lambda: [s.specdecode()], load_traces, "traces describe FILE"),
    *(
        Reader(name, "a.jsonl", partial(lambda name: [s.served()[name]], name), _acceptance, _IMPORT)
        for name in ("vllm", "vllm chunks", "sglang", "aiperf")
    ),
    *(
        Reader(name, "a.json", partial(lambda name: [s.served()[name]], name), partial(_acceptance, k=None))
        for name in ("bench totals", "aiperf totals")
    ),
    Reader(
        "CSV of steps",
        "a.csv",
        _made(s.CSV_STEPS),
        partial(_acceptance, k=None),
        "traces import FILE --out OUT --proposer eagle3",
    ),
    Reader("figures", "a.json", _made(s.FIGURES), load_acceptance),
    Reader(
        "token ids",
        "i.jsonl",
        s.token_ids,
        _replay,
        "traces replay FILE --proposer ngram --out OUT",
        ("traces/replay file",),
    ),
    Reader("request log", "l.csv", s.request_logs, load_log, "simulate --replay FILE --requests 1", _LOGS),
    Reader(
        "trace model",
        "m.json",
        _shipped("workloads/mtbench-eagle3.json", "workloads/gsm8k-ngram.json"),
        load_model,
        "traces tree FILE --proposer x --tree 3,2,5 --out OUT",
        ("traces/tree model", "traces/adapt model"),
    ),
    Reader("pair of models", "p.json", _shipped("workloads/gsm8k-ngram+eagle3.json"), load_pair),
    Reader(
        "plan",
        "plan.json",
        lambda: [s.plan()],
        lambda path: render_report(read_plan(path)),
        "report FILE --out OUT",
        ("export plan", "verify plan", "report run"),
    ),
    Reader("exported plan", "plan.json", lambda: [s.plan()], _export, "export FILE --out OUT"),
    Reader(
        "leaderboard",
        "leaderboard.json",
        lambda: [s.board()],
        lambda path: render_leaderboard(board_file.read(path)),
        "report FILE --out OUT",
    ),
    Reader(
        "vLLM config",
        "v.yaml",
        _made(s.VLLM_YAML),
        partial(_config, "vllm"),
        "import-config FILE --engine vllm",
        ("import-config file",),
    ),
    Reader(
        "SGLang config",
        "g.yaml",
        _made(s.SGLANG_YAML),
        partial(_config, "sglang"),
        "import-config FILE --engine sglang",
    ),
    Reader("SGLang ladder in force", "ladder.json", _made(s.LADDER), _ladder),
    Reader(
        "SGLang ladder of a policy",
        "ladder.json",
        _made(s.LADDER),
        lambda path: parse_policy(f"sglang-ema:{path}"),
    ),
    Reader(
        "step log",
        "s.jsonl",
        s.step_logs,
        partial(read_steps, proposer="ngram"),
        "calibrate --hardware cpu --out OUT --steps FILE",
        ("calibrate steps", "calibrate steplog"),
    ),
    Reader(
        "step log under load",
        "s.jsonl",
        s.step_logs,
        lambda path: judge_steps.read_step_log(path, 0),
        "",
        ("verify steplog",),
    ),
    *(
        Reader(f"{name} table", file, partial(s.kernel_table, file), read, "", ("calibrate tables",))
        for name, file, read in (
            ("GEMM", "h_gemm_x.csv", fit_tables.gemm_rows),
            ("GEMM parquet", "h_gemm_x.parquet", fit_tables.gemm_rows),
            ("attention", "h_generation_attention_x.parquet", fit_tables.decode_rows),
            ("all-reduce", "h_allreduce_vllm_x.csv", fit_tables.all_reduce_rows),
            ("step", "h_step_latency_x.csv", fit_tables.elementwise_rows),
            ("elementwise", "h_elementwise_x.csv", fit_tables.layer_rows),
            ("sampler", "h_sampler_x.csv", fit_tables.sampler_rows),
            ("Vidur", "h_vidur_linear_ops.parquet", fit_tables.vidur_rows),
        )
    ),
    Reader(
        "TPOT table",
        "t.csv",
        _made(s.TPOT),
        read_tpot,
        "calibrate --hardware cpu --out OUT --tpot FILE",
        ("calibrate tpot",),
    ),
    Reader(
        "host timings",
        "h.yaml",
        _shipped("calibrations/published/vllm-h100-host.yaml"),
        load_host_timings,
        "",
        ("calibrate timings",),
    ),
    Reader(
        "published table",
        "t.yaml",
        _shipped("published/pr32374-eagle.yaml", "published/leviathan-expected.yaml"),
        lambda path: load_tables([str(path)]),
        "validate FILE",
    ),
    Reader(
        "baseline",
        "b.json",
        _shipped("published/baseline.json"),
        load_baseline,
        "validate leviathan-expected --baseline FILE",
    ),
    Reader(
        "prompts",
        "p.jsonl",
        _made(*s.PROMPTS),
        read_prompts,
        "record --url http://127.0.0.1:1 --out OUT.jsonl --prompts FILE",
        ("record prompts", "traces/record prompts", "verify prompts"),
    ),
    Reader("token", "token", lambda: [b"0123456789abcdef\n"], _token, options=("dashboard token_file",)),
    Reader("search journal", "j.journal", lambda: [s.journal()], _journal, "search --qps 1 --storage FILE"),
    Reader("recording", "r.jsonl", _made(s.RECORDING_ROWS), _recorded),
    Reader("recording's settings", "r.jsonl.meta.json", _made(s.RECORDING_META), _recorded_meta),
    *(
        Reader(f"metrics of {engine}", "m.txt", _made(s.METRICS[engine].encode()), partial(_metrics, engine))
        for engine in ("vllm", "sglang")
    ),
    *(
        Reader(
            f"stream of {engine}",
            "e.txt",
            partial(lambda name: [s.streams(name)], engine),
            partial(_stream, engine),
        )
        for engine in ("vllm", "sglang")
    ),
    Reader(
        "answers of a server",
        "a.json",
        _made(
            {
                "data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096, "root": "r"}],
                "version": "0.32.0",
            }
        ),
        _answers,
    ),
    Reader("error of a server", "a.json", _made({"error": {"message": "no", "code": 400}}), _said),
    Reader("result of a load generator", "r.json", _made(s.BENCH_LOAD), _bench_load),
)
