"""Importers of what servers say of each request: vLLM's metrics, SGLang's meta_info, aiperf's records.

All are JSONL, one request a line:

- **vLLM** (``--per-request-spec-decode-metrics summary|detailed``): the response, or the last chunk of a
  stream, with ``usage`` and ``metrics.speculative_decoding``; ``detailed`` lists ``per_step_accepted`` and
  ``per_step_drafted`` of the steps that had a draft. Without them ``usage`` and ``chunks``, of a server that
  drafts ``--recorded-k`` tokens in every step.
- **SGLang**: an object with ``meta_info`` (``prompt_tokens``, ``completion_tokens``,
  ``spec_correct_drafts_histogram``). It never lists steps: only the growth of the output does.
- **aiperf** (``profile_export.jsonl``): ``spec_decode_acceptance``, a record of either engine.

Beside any of them, ``chunks`` lists the tokens of each streamed chunk (stream interval 1), the prefill's
first: with it steps are placed for certain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kplan.acceptance.collect import ImportOptions, StepCollector
from kplan.acceptance.columns import Row, integers
from kplan.acceptance.figures import AcceptanceFigures
from kplan.acceptance.jsonl import MAX_COUNT, Progress, count, records, silent, tokens, value
from kplan.acceptance.placing import Ints, Steps, place_by_chunks, place_in_order
from kplan.acceptance.trace import MAX_K, MAX_TOKENS, TraceSet
from kplan.errors import InputError

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Served:
    """One request as its server reports it.

    Attributes:
        request_id: its name.
        prompt_len: tokens of the prompt, >= 1.
        output_len: tokens of the output, >= 1.
        histogram: (k + 1,) steps by accepted drafts; None when the engine does not say.
        max_k: drafts a step was asked for at most; 0 when the engine does not say.
        drafts: drafts verified in all; None when the engine does not say, or says it wrong.
        accepted: (s,) of each step with a draft, in order; None when the engine does not list them.
        drafted: (s,) drafts of each; None likewise.
        growth: the chunks alone tell the steps (each verified ``max_k`` drafts).
    """

    request_id: str
    prompt_len: int
    output_len: int
    histogram: Ints | None
    max_k: int
    drafts: int | None
    accepted: Ints | None = None
    drafted: Ints | None = None
    growth: bool = False


Reader = Callable[[dict[str, Any], Row, ImportOptions], Served | None]


def load_vllm(
    path: Path, options: ImportOptions, progress: Progress = silent
) -> TraceSet | AcceptanceFigures:
    """Read responses of vLLM, see the module's text. Raises InputError with file, row and column."""
    return _load(path, options, progress, _vllm, "vLLM per-request metrics")


def load_sglang(
    path: Path, options: ImportOptions, progress: Progress = silent
) -> TraceSet | AcceptanceFigures:
    """Read responses of SGLang; steps need ``chunks`` and ``--recorded-k``. Raises InputError likewise."""
    return _load(path, options, progress, _sglang, "SGLang meta_info")


def load_aiperf(
    path: Path, options: ImportOptions, progress: Progress = silent
) -> TraceSet | AcceptanceFigures:
    """Read aiperf's per-request records (``--export-level records``). Raises InputError likewise."""
    return _load(path, options, progress, _aiperf, "aiperf records")


def _load(
    path: Path, options: ImportOptions, progress: Progress, read: Reader, what: str
) -> TraceSet | AcceptanceFigures:
    collector = StepCollector(options.needed_proposer(what), options, path.stat().st_size)
    for where, record in records(path, progress):
        served = read(record, where, options)
        if served is None:
            collector.without += 1
            continue
        steps = _place(served, record, where, lookup=collector.lookup)
        if served.growth and steps is not None:
            collector.count_steps(steps.accepted, steps.drafted, served.max_k)
        elif served.accepted is not None and served.drafted is not None:
            collector.count_steps(served.accepted, served.drafted, served.max_k)
        elif served.histogram is not None:
            collector.count_histogram(served.histogram, served.drafts, served.max_k)
        collector.add_row(served.request_id, served.prompt_len, served.output_len, steps)
    return collector.result(f"{what}, {path.name}")


def _place(served: Served, record: dict[str, Any], where: Row, *, lookup: bool) -> Steps | None:
    if "chunks" not in record:
        return _in_order(served, lookup=lookup)
    chunks = integers(record["chunks"], where, "chunks", 0, MAX_TOKENS)
    chunks = chunks[chunks > 0]
    if not len(chunks):
        raise InputError(where.at("chunks"), "no token", "the prefill's chunk is needed", "drop the row")
    if served.growth:
        return None if lookup and served.histogram is None else _by_growth(served, chunks)
    if served.accepted is None or served.drafted is None:
        return None
    placed = place_by_chunks(chunks, served.accepted, served.drafted, served.output_len)
    if placed is not None:
        return placed
    in_order = _in_order(served, lookup=lookup)
    return in_order if in_order is not None and _merged(chunks, in_order, served.output_len) else None


def _merged(chunks: Ints, steps: Steps, output_len: int) -> bool:
    """Whether each chunk is some whole steps: a slow reader gets several at once."""
    ends = np.cumsum(chunks)
    return ends[-1] == output_len and bool(np.isin(ends[:-1], steps.position).all())


def _in_order(served: Served, *, lookup: bool) -> Steps | None:
    if served.accepted is None or served.drafted is None:
        return None
    may_skip = lookup or len(np.unique(served.drafted)) > 1  # K varied, so it may have been 0
    return place_in_order(served.accepted, served.drafted, served.output_len, may_skip=may_skip)


def _by_growth(served: Served, chunks: Ints) -> Steps | None:
    """Each chunk after the first is a step of max_k drafts, if the server's own histogram says so too.

    The last chunk may be cut by the output's end. Without a histogram its step is known up to there alone.
    """
    accepted = chunks[1:] - 1
    if (
        chunks[0] != 1
        or int(chunks.sum()) != served.output_len
        or int(accepted.max(initial=0)) > served.max_k
    ):
        return None
    position = np.concatenate([[1], 1 + np.cumsum(chunks[1:])])[:-1].astype(np.int64)
    drafted = np.full(len(accepted), served.max_k, np.int64)
    if served.histogram is None:
        known = len(accepted) if len(accepted) and accepted[-1] else max(len(accepted) - 1, 0)
        drafted[-1:] = accepted[-1:]
        return Steps(position[:known], accepted[:known], drafted[:known])
    shown = np.bincount(accepted, minlength=served.max_k + 1)
    told = np.zeros(served.max_k + 1, np.int64)
    told[: len(served.histogram)] = served.histogram[: served.max_k + 1]
    if len(accepted):  # the last step accepted as much as its chunk shows, or more
        shown[accepted[-1]] -= 1
        rest = told - shown
        if rest.min() < 0 or rest.sum() != 1 or int(np.argmax(rest)) < accepted[-1]:
            return None
        accepted = np.concatenate([accepted[:-1], [np.argmax(rest)]]).astype(np.int64)
    elif told.any():
        return None
    return Steps(position, accepted, drafted)


def _vllm(record: dict[str, Any], where: Row, options: ImportOptions) -> Served | None:
    choices = record.get("choices")
    if isinstance(choices, list) and len(choices) > 1:
        raise InputError(where.at("choices"), f"{len(choices)} choices", "n = 1 is needed", "ask for one")
    metrics = record.get("metrics")
    told = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    streamed = "chunks" in record and not options.figures
    if told is None and not (streamed and options.recorded_k):
        return None
    path = "metrics.speculative_decoding"
    prompt = tokens(record, "usage.prompt_tokens", where)
    output = tokens(record, "usage.completion_tokens", where)
    name = _name(record.get("id"), where)
    if told is None:
        return Served(name, prompt, output, None, options.recorded_k or 0, None, growth=True)
    served = _acceptance(record, told, path, where, name, prompt, output)
    steps = 0 if served.histogram is None else int(served.histogram.sum())
    every_step_full = 0 < steps * served.max_k == served.drafts
    return replace(served, growth=streamed and served.accepted is None and every_step_full)


def _aiperf(record: dict[str, Any], where: Row, _: ImportOptions) -> Served | None:
    told = record.get("spec_decode_acceptance")
    metadata = record.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if told is None or metadata.get("benchmark_phase") == "warmup":
        return None
    path = "spec_decode_acceptance"
    prompt = tokens(record, "metrics.input_sequence_length.value", where)
    own = isinstance(told, dict) and told.get("completion_tokens") is not None
    output = f"{path}.completion_tokens" if own else "metrics.output_sequence_length.value"
    name = _name(metadata.get("x_request_id"), where)
    return _acceptance(record, told, path, where, name, prompt, tokens(record, output, where))


def _acceptance(
    record: dict[str, Any], told: Any, path: str, where: Row, name: str, prompt_len: int, output_len: int
) -> Served:
    """The fields that vLLM and aiperf share: a histogram, counts, and the steps where they are listed."""
    if not isinstance(told, dict):
        raise InputError(where.at(path), str(told)[:60], "an object is needed")
    most = (
        0
        if told.get("num_spec_tokens") is None
        else count(record, f"{path}.num_spec_tokens", where, 1, MAX_K)
    )
    column = f"{path}.acceptance_histogram"
    histogram = histogram_of(value(record, column, where), where, column, most or MAX_K)
    drafts = count(record, f"{path}.num_draft_tokens", where, 0)
    accepted = drafted = None
    if told.get("per_step_accepted") is not None:
        accepted, drafted = (
            _steps(value(record, f"{path}.{key}", where), where, f"{path}.{key}", most or MAX_K)
            for key in ("per_step_accepted", "per_step_drafted")
        )
        _check_steps(accepted, drafted, histogram, where, path)
    elif not histogram.any():  # vLLM leaves out lists that are empty
        accepted = drafted = _NONE
    return Served(name, prompt_len, output_len, histogram, most, drafts, accepted, drafted)


def _sglang(record: dict[str, Any], where: Row, options: ImportOptions) -> Served | None:
    told = value(record, "meta_info", where)
    if not isinstance(told, dict) or told.get("spec_correct_drafts_histogram") is None:
        return None
    path = "meta_info.spec_correct_drafts_histogram"
    most = options.recorded_k or 0
    growth = "chunks" in record and not options.figures
    if growth and not most:
        bound = "SGLang does not say how many drafts a step verified"
        raise InputError("--recorded-k", "nothing", bound, "give --speculative-num-steps of a static server")
    return Served(
        request_id=_name(told.get("id"), where),
        prompt_len=tokens(record, "meta_info.prompt_tokens", where),
        output_len=tokens(record, "meta_info.completion_tokens", where),
        histogram=histogram_of(told["spec_correct_drafts_histogram"], where, path, most or MAX_K),
        max_k=most,
        drafts=None,  # spec_num_proposed_drafts is wrong under the adaptive policy
        growth=growth,
    )


def histogram_of(values: Any, where: Row, column: str, most: int) -> Ints:
    """(k + 1,) steps by accepted drafts, out of a list, or an object with the accepted drafts as its keys."""
    if isinstance(values, dict):
        keys = [int(key) if key.isascii() and key.isdigit() and len(key) < 4 else -1 for key in values]
        for key, shown in zip(keys, values, strict=True):
            if not 0 <= key <= most:
                raise InputError(where.at(column), shown, f"accepted drafts in 0..{most} are needed")
        dense: list[Any] = [0] * (max(keys, default=0) + 1)
        for key, steps in zip(keys, values.values(), strict=True):
            dense[key] = steps
        values = dense
    found = integers(values, where, column, 0, MAX_COUNT) if values != [] else _NONE
    if len(found) > most + 1:
        raise InputError(where.at(column), f"{len(found)} values", f"K = {most} gives {most + 1} at most")
    return found


def _steps(values: Any, where: Row, column: str, most: int) -> Ints:
    return _NONE if values == [] else integers(values, where, column, 0, most)


def _check_steps(accepted: Ints, drafted: Ints, histogram: Ints, where: Row, path: str) -> None:
    column = f"{path}.per_step_accepted"
    if len(accepted) != len(drafted):
        bound = f"per_step_drafted has {len(drafted)}"
        raise InputError(where.at(column), f"{len(accepted)} values", bound, "record the row again")
    more = accepted > drafted
    if more.any():
        at = int(np.argmax(more))
        raise InputError(where.at(column, at), int(accepted[at]), f"{int(drafted[at])} were drafted")
    shown = np.bincount(accepted, minlength=len(histogram))
    if len(shown) > len(histogram) or not np.array_equal(shown, histogram):
        bound = "acceptance_histogram counts other steps"
        raise InputError(where.at(column), f"{len(accepted)} steps", bound, "record the row again")


def _name(given: Any, where: Row) -> str:
    return given if isinstance(given, str) and given else f"row {where.row}"
