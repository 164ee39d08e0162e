"""``kplan traces fit``: a trace model from a recording, or from the figures that a server shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kplan.cli import complete
from kplan.cli import options as o
from kplan.errors import InputError

if TYPE_CHECKING:
    from kplan.acceptance import TraceModel, TraceSet
    from kplan.validate.order import Order
    from kplan.workload.figures import Figures

_WHAT_FITS = "a trace FILE, --per-position or --mean-acceptance-length"


def fit(
    proposer: Annotated[
        str,
        typer.Option(
            "--proposer", autocompletion=complete.proposers, help="eagle, eagle3, ngram, suffix ..."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="model to write (JSON); from figures also NAME.yaml, for --workload"),
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="trace file (kplan parquet, JSONL ...)")
    ] = None,
    dataset: o.DatasetOfFile = None,
    keep_loopy: Annotated[bool, typer.Option("--keep-loopy", help="fit on degenerate outputs too")] = False,
    holdout: Annotated[
        bool, typer.Option("--holdout/--no-holdout", help="fit a half, test on the other")
    ] = True,
    judge_order: Annotated[
        bool,
        typer.Option("--judge-order", help="rank the policies on a half of FILE and on a model of the other"),
    ] = False,
    per_position: Annotated[
        str | None, typer.Option("--per-position", help="acceptance at positions 1, 2, ...: .72,.45,.28")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="of --per-position: marginal (all up to there accepted, vLLM's metric) or conditional",
        ),
    ] = None,
    mean_acceptance_length: Annotated[
        str | None, typer.Option("--mean-acceptance-length", help="tokens per step, bonus included")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", help="K of the server that showed the figures")] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            help="shipped model that lends the rest [sharegpt-eagle3; of a server's steps the best]",
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            "--lengths",
            autocompletion=complete.shipped("workloads"),
            help="workload that lends output lengths [that of --like]",
        ),
    ] = None,
    source: Annotated[str, typer.Option("--source", help="where the figures were published")] = "",
    json: o.Json = False,
) -> int:
    """Fit a trace model of one proposer and write it as JSON, with how well it fits.

    Of a recording (FILE) of every position or of a server's steps, or of figures alone: --per-position with
    --kind, or --mean-acceptance-length, both with --k. What steps and figures leave open is borrowed; an
    answer that rests on them shows what it may change.
    """
    from kplan.cli.paths import check_outputs

    check_outputs({"--out": out}, [] if file is None else [file])
    text = per_position or mean_acceptance_length
    if (file is None) == (text is None) or (per_position and mean_acceptance_length):
        raise InputError(
            "input", "none" if file is None and text is None else "several", f"give {_WHAT_FITS}"
        )
    if file is None:
        for flag, given in (
            ("--dataset", dataset is not None),
            ("--keep-loopy", keep_loopy),
            ("--no-holdout", not holdout),
            ("--judge-order", judge_order),
        ):
            if given:
                raise InputError(flag, "given", "goes with a FILE, not with figures", "leave it out")
        figures = _figures(per_position, kind, mean_acceptance_length, k)
        return _from_figures(figures, proposer, out, like, lengths, source, json)
    for flag, value in (("--kind", kind), ("--k", k), ("--lengths", lengths)):
        if value is not None:
            raise InputError(flag, value, "goes with figures, not with a FILE", "leave it out")
    return _from_recording(file, dataset, proposer, out, keep_loopy, holdout, judge_order, like, json)


def _from_recording(
    file: Path,
    dataset: str | None,
    proposer: str,
    out: Path,
    keep_loopy: bool,
    holdout: bool,
    judge_order: bool,
    like: str | None,
    json: bool,
) -> int:
    from kplan.acceptance import load_traces, save_model
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.progress import progress
    from kplan.workload.build import fit_recording

    with progress() as tell:
        tell(f"reading {file.name}")
        traces = load_traces(file, dataset)
        if judge_order:
            _need_positions(traces, proposer)
        tell(f"fitting a model of {proposer}")
        model = fit_recording(traces, proposer, keep_loopy=keep_loopy, holdout=holdout, like=like)
        if judge_order:
            tell("ranking the policies on the recording and on the model")
        orders = _orders(traces, proposer, keep_loopy) if judge_order else []
    save_model(model, out)
    if json:
        record = {"out": str(out), "proposer": proposer, **model.facts}
        print_json(record | ({"order": [_order_record(one) for one in orders]} if judge_order else {}))
        return 0
    for line in fit_lines(model):
        prose(line)
    _show_orders(orders)
    say(f"wrote {out}")
    return 0


def _need_positions(traces: TraceSet, proposer: str) -> None:
    """Raises InputError for a recording of steps: a policy would ask for drafts that it does not hold."""
    trace = traces.proposers.get(proposer)
    if trace is not None and trace.seen is not None:
        bound = "policies are ranked on a recording of every position, and this one holds a server's steps"
        raise InputError("--judge-order", "given", bound, "leave it out")


def _from_figures(
    figures: Figures,
    proposer: str,
    out: Path,
    like: str | None,
    lengths: str | None,
    source: str,
    json: bool,
) -> int:
    from dataclasses import replace

    from kplan.acceptance import save_model
    from kplan.cli.output import print_json, prose, say
    from kplan.cli.progress import progress
    from kplan.workload import load_workload
    from kplan.workload.build import write_workload
    from kplan.workload.figures import DEFAULT_LIKE, from_figures

    like = like or DEFAULT_LIKE
    lender = load_workload(lengths or like.partition("-")[0])
    with progress() as tell:
        tell("fitting a model on the figures")
        model = from_figures(figures, proposer, lender, like=like, source=source)
    if out.suffix in (".yaml", ".yml"):
        summary = f"{figures.text()}; lengths of {lender.name}"
        own = replace(
            lender, name=out.stem, summary=summary, target="", provenance=model.provenance, missing={}
        )
        files = write_workload(own, {proposer: model}, out.parent)
    else:
        save_model(model, out)
        files = [out]
    written = [str(one) for one in files]
    if json:
        print_json({"files": written, "proposer": proposer, **model.facts})
        return 0
    reached = ", ".join(f"{value:.4f}" for value in model.facts["reached"])
    prose(f"{figures.text()}: the model reaches {reached}")
    prose(f"assumed as in {like}: {model.facts['assumed']}")
    for one in written:
        say(f"wrote {one}")
    return 0


def _figures(
    per_position: str | None, kind: str | None, mean_acceptance_length: str | None, k: int | None
) -> Figures:
    """What the flags say. Raises InputError for what they leave open."""
    from kplan.workload.figures import FigureKind, Figures

    if k is None:
        raise InputError("--k", "none", "figures hold at one K only", "give the K that the server ran")
    if mean_acceptance_length is not None:
        if kind is not None:
            raise InputError("--kind", kind, "goes with --per-position", "leave it out")
        values, rounding = _numbers("--mean-acceptance-length", mean_acceptance_length)
        return Figures(FigureKind.MEAN, values, k, rounding)
    by_position = (FigureKind.MARGINAL.value, FigureKind.CONDITIONAL.value)
    if kind not in by_position:
        raise InputError(
            "--kind", kind or "none", "marginal or conditional is needed",
            "marginal: all drafts up to the position accepted (vLLM's per-position metric); conditional: "
            "accepted where the one before was",
        )  # fmt: skip
    values, rounding = _numbers("--per-position", per_position or "")
    return Figures(FigureKind(kind), values, k, rounding)


def _numbers(flag: str, text: str) -> tuple[tuple[float, ...], float]:
    """The numbers in ``text`` and half the last digit of the one with the fewest."""
    parts = [part.strip() for part in text.split(",")]
    try:
        values = tuple(map(float, parts))
    except ValueError as error:
        raise InputError(flag, text, "numbers parted by commas are needed, such as .72,.45,.28") from error
    digits = min(len(part.partition(".")[2]) for part in parts)
    return values, 0.5 * 10.0**-digits


def fit_lines(model: TraceModel) -> list[str]:
    """How well a model of a recording fits, a line per K."""
    from kplan.acceptance.judge import verdicts

    missing = float("nan")
    lines = [
        f"{name.replace('_', ' ')} K={row['k']:.0f}: {row['real_acceptance_length']:.3f} tokens/step, "
        f"model off by {row['acceptance_length_error']:+.1%}; "
        f"lag-1 off by {row.get('lag1_error', missing):+.3f}; "
        f"SD of requests off by {row.get('request_sd_error', missing):+.1%}"
        for name in ("in_sample", "holdout")
        for row in model.facts.get(name, ())
    ]
    if "like" in model.facts:
        ks = ", ".join(map(str, model.facts["k"]))
        lines.append(f"fitted on {model.facts['steps']} steps of a server, K = {ks}")
        lines.append(f"assumed as in {model.facts['like']}: {model.facts['assumed']}")
    return lines + [f"holdout {line}" for line in verdicts(model.facts)]


def _orders(traces: TraceSet, proposer: str, keep_loopy: bool) -> list[Order]:
    from kplan.validate.order import judge_order

    return judge_order(traces, proposer, keep_loopy=keep_loopy)


def _show_orders(orders: list[Order]) -> None:
    from kplan.cli.output import prose
    from kplan.cli.tables import print_table

    if not orders:
        return
    columns = ["policy", *(f"B={one.batch} {what}" for one in orders for what in ("recorded", "model"))]
    rows = [
        [name, *(f"{ms:.2f}" for one in orders for ms in (one.recorded[name], one.generated[name]))]
        for name in orders[0].recorded
    ]
    print_table("TPOT ms on the half not seen, and on a model of the other half", columns, rows)
    for one in orders:
        pairs = ", ".join(f"{a} and {b}" for a, b in one.model_differs) or "none"
        prose(f"batch {one.batch}: pairs ranked otherwise by the model: {pairs}")


def _order_record(order: Order) -> dict[str, Any]:
    return {
        "batch": order.batch,
        "recorded_tpot_ms": dict(order.recorded),
        "model_tpot_ms": dict(order.generated),
        "other_half_tpot_ms": dict(order.other_half),
        "model_differs": order.model_differs,
        "halves_differ": order.halves_differ,
    }
