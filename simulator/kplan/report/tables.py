"""The tables of the report, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from kplan.config.plan import Answer, Assumption, Plan, PolicyResult, Question, Stat
from kplan.report.text import DASH, load, number


def policies(plan: Plan) -> str:
    """One row per policy, the recommended one marked."""
    head = (
        "policy",
        "TPOT, ms",
        "p99 TPOT, ms",
        "TTFT, ms",
        "p99 TTFT, ms",
        "speedup over off",
        "output tok/s",
        "goodput, req/s",
        "largest load, req/s",
        "mean K",
        "acceptance length",
        "mean batch",
        "preemptions",
    )
    rows = [
        ("recommended" if result.name == plan.answer.policy else "", _policy_cells(result))
        for result in plan.policies
    ]
    return html_table(head, rows)


def _policy_cells(result: PolicyResult) -> list[str]:
    name = f"<code>{escape(result.name)}</code>"
    if result.saturated:
        name += ' <span class="tag bad">saturated</span>'
    if not result.exportable:
        name += f' <span class="tag" title="{escape(result.why_not)}">not exportable</span>'
    return [
        name,
        _stat(result.tpot_ms),
        number(result.tpot_ms.p99) if result.tpot_ms else DASH,
        _stat(result.ttft_ms),
        number(result.ttft_ms.p99) if result.ttft_ms else DASH,
        _interval(result.speedup_vs_off, result.speedup_ci95),
        number(result.output_tok_s),
        number(result.goodput_qps),
        number(result.max_qps),
        number(result.mean_k),
        number(result.acceptance_length),
        number(result.mean_batch),
        str(result.preemptions),
    ]


def _stat(value: Stat | None) -> str:
    return DASH if value is None else _interval(value.mean, value.ci95)


def _interval(value: float | None, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return number(value)
    return f"{number(value)}<small>{number(interval[0])} to {number(interval[1])}</small>"


def batch_table(answer: Answer, question: Question) -> str:
    """The recommended K by batch size; empty when the answer is no table."""
    if answer.table is None:
        return ""
    rows = []
    for entry in answer.table:
        end = question.max_num_seqs if entry.end is None else entry.end
        rows.append(("", [f"{entry.start} to {end}", str(entry.k)]))
    return html_table(("requests in the step", "K (draft tokens)"), rows)


def assumptions(items: Sequence[Assumption]) -> str:
    """Every figure that the answer rests on, and how it is known."""
    rows = [
        (
            "",
            [
                escape(item.name),
                escape(item.value),
                f'<span class="tag {escape(item.kind)}">{escape(item.kind)}</span>',
                escape(item.source),
            ],
        )
        for item in items
    ]
    return html_table(("figure", "value", "how known", "source"), rows, wrap=True)


def question(asked: Question) -> str:
    """What was asked, with every default."""
    rows: list[tuple[str, object]] = [("load", load(asked))]
    rows += [(name, value) for name, value in _settings(asked) if value is not None]
    return html_table(
        ("setting", "value"), [("", [escape(name), escape(str(value))]) for name, value in rows]
    )


def _settings(asked: Question) -> Iterable[tuple[str, object]]:
    yield "model", asked.model
    yield "hardware", asked.hardware
    yield "calibration", asked.calibration
    yield "tensor parallel", asked.tp
    yield "data parallel", asked.dp if asked.dp > 1 else None
    yield "weights", asked.quantization
    yield "KV cache", None if asked.kv_cache_dtype == "auto" else asked.kv_cache_dtype
    yield "proposer", asked.proposer
    yield "drafter", asked.drafter
    yield "workload", asked.workload if asked.traces is None else None
    yield "recorded traces", asked.traces
    yield "data set", asked.dataset
    yield "engine", asked.engine
    yield "async scheduling", asked.async_scheduling
    yield "captured graphs", "none" if asked.enforce_eager else None
    yield "SLO on TPOT, ms", asked.slo_tpot_ms
    yield "SLO on TTFT, ms", asked.slo_ttft_ms
    yield "replicas asked for", asked.replicas
    yield "router", asked.router
    yield "largest K", asked.max_k
    yield "max_num_seqs", asked.max_num_seqs
    yield "max_num_batched_tokens", asked.max_num_batched_tokens
    yield "max_model_len", asked.max_model_len
    yield "prefix caching", None if asked.prefix_caching else "off"
    yield "requests per replication", asked.requests
    yield "replications", asked.replications
    yield "seed", asked.seed


def html_table(head: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, wrap: bool = False) -> str:
    """Rows of (class, cells), a cell for every head; heads are escaped here, cells are HTML already.

    Every cell carries its head, which a narrow screen shows in place of the head row.
    """
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f"<tr{_class(kind)}>"
        + "".join(
            f'<td data-head="{escape(label)}">{cell}</td>' for label, cell in zip(head, cells, strict=True)
        )
        + "</tr>"
        for kind, cells in rows
    )
    kind = ' class="wrap"' if wrap else ""
    return (
        '<div class="scroll" tabindex="0">'
        f"<table{kind}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
