"""The answer in words: what to run, what it gives, why, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kplan import metrics
from kplan.config.loads import load_words
from kplan.config.plan import Answer, Band, BatchRange, KCurvePoint
from kplan.registry import PolicySpec
from kplan.search.band_words import acceptance_reason, band_reason, widened
from kplan.search.candidates import TIE, table_text
from kplan.search.compare import unsteady_note
from kplan.search.evaluate import OVER, Evaluated, batch_quantiles, paired_speedup, runnable
from kplan.search.evidence import caveats
from kplan.search.peaks import Peak
from kplan.search.phrases import fixed_k, policy_text, rate_text, slo_text, within_text
from kplan.simulate import Setup, is_off

if TYPE_CHECKING:
    from kplan.search.recommend import Judged


@dataclass(frozen=True)
class Given:
    """What the words are about, beside the policies themselves.

    Attributes:
        table: the best K by batch in steady steps.
        per_replica: sustained requests/s of one replica by policy text.
        points: the K curve at the load's own batch.
        recorded_k: K of the recording behind the acceptance.
        band: the answer on the second source of GEMM times.
        acceptance: the answers under other acceptance that shows the same figures.
        longer: (best K at the mean batch, a longer context, its best K) when a longer context changes it.
        within: largest requests/s at which the chosen policy meets the SLOs, None without one.
        peak: when the load is at its highest, None of one that stays the same.
        chosen_by: what chose the policy, in a sentence; "" where it is the best of those compared here.
    """

    table: tuple[BatchRange, ...]
    per_replica: dict[str, float]
    points: Sequence[KCurvePoint]
    recorded_k: int
    band: Band | None
    acceptance: tuple[Band, ...]
    longer: tuple[int, int, int] | None
    within: float | None
    peak: Peak | None
    chosen_by: str


def answer(setup: Setup, judged: Judged, chosen: Evaluated, given: Given) -> Answer:
    """Put the verdict into the record that ``recommend`` prints."""
    text = chosen.spec.text
    saturated = judged.best is None and chosen.saturated
    sentence = _served(setup, judged, chosen, given)
    if judged.best is None:
        sentence = _falls_short(setup, judged, chosen, given)
    return Answer(
        policy=text,
        k=fixed_k(text),
        table=_table(chosen.spec),
        replicas=judged.replicas,
        saturated=saturated,
        feasible=judged.best is not None,
        words=sentence,
        why=tuple(_reasons(setup, judged, chosen, given)),
        max_qps=chosen.max_qps if setup.rate is not None else None,
        kv_tokens=setup.kv_tokens_off if is_off(chosen.spec) else setup.kv_tokens,
        band=given.band,
        acceptance=given.acceptance,
    )


def _table(spec: PolicySpec) -> tuple[BatchRange, ...] | None:
    """The ranges of a batch table, None of another policy."""
    if spec.name != "table":
        return None
    return tuple(BatchRange(start=start, end=end, k=k) for start, end, k in sorted(spec.kwargs["ranges"]))


def _replicas_text(setup: Setup, replicas: int) -> str:
    gpus = f"{setup.scenario.tp * setup.scenario.dp} x {setup.hardware.name}"
    return f"{replicas} replica{'s' if replicas > 1 else ''} of {gpus}"


def _served(setup: Setup, judged: Judged, chosen: Evaluated, given: Given) -> str:
    s, text = setup.scenario, chosen.spec.text
    tpot = metrics.stat_ms(chosen.runs, "tpot_s")
    ttft = metrics.stat_ms(chosen.runs, "ttft_s")
    rate = float(np.mean([run.output_tok_s for run in chosen.runs]))
    lead = ""
    qps = setup.rate
    if qps is not None and s.replicas is None and judged.replicas > 1:
        one = max(given.per_replica[done.spec.text] for done in judged.all if runnable(setup, done.spec))
        if one < qps:
            lead = f"{rate_text(qps)} QPS exceeds what one replica sustains, {rate_text(one)} QPS. "
        else:
            lead = f"{judged.replicas} replicas are needed for {slo_text(s)}. "
    what, where = policy_text(text, s.proposer), _replicas_text(setup, judged.replicas)
    parts = [f"{lead}Run {what} on {where}: at {load_words(setup.scenario)}"]
    if tpot is not None:
        ends = widened(tpot, given.acceptance)
        interval = f" (95% {ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
        parts.append(f"TPOT is {tpot.mean:.2f} ms{interval}")
    pair = paired_speedup(judged.named("off"), chosen)
    if text != "off" and pair is not None:
        off_ms = judged.named("off").tpot_s * 1e3
        parts.append(f"{pair[0]:.2f}x faster than without speculation ({off_ms:.2f} ms)")
    elif text != "off" and judged.named("off").saturated:
        parts.append("while without speculation the same replicas saturate")
    if ttft is not None:
        parts.append(f"TTFT {ttft.mean:.0f} ms (P99 {ttft.p99:.0f})")
    parts.append(f"{rate:,.0f} output tokens/s")
    sentence = ", ".join(parts) + "."
    if qps is not None and math.isfinite(chosen.max_qps):
        who = "They sustain" if judged.replicas > 1 else "It sustains"
        limits = chosen.sustained.ci95
        spread = f" (95% {rate_text(limits[0])} to {rate_text(limits[1])})" if limits else ""
        sentence += f" {who} {rate_text(chosen.max_qps)} QPS{spread}; {_share(setup, qps, chosen, given)}"
        if given.within is not None:
            whose = "they serve" if judged.replicas > 1 else "it serves"
            sentence += f" {within_text(whose, given.within)}."
    return sentence


def _share(setup: Setup, qps: float, chosen: Evaluated, given: Given) -> str:
    """How much of the sustained rate the load is, at its highest too where it changes."""
    load = "what is admitted of this load" if setup.source.refused else "this load"
    told, peak = f"{load} is {qps / chosen.max_qps:.0%} of that", given.peak
    if peak is None:
        return f"{told}."
    told += f" on average, {peak.qps / chosen.max_qps:.0%} {peak.when} ({rate_text(peak.qps)} QPS)."
    if peak.qps <= OVER * chosen.max_qps:
        return told
    need = _needed(peak.qps, chosen, given)
    return f"{told} While that lasts the batch grows, then the queue; {need} replicas sustain it."


def _needed(qps: float, chosen: Evaluated, given: Given) -> int:
    """Replicas that sustain ``qps`` under the chosen policy."""
    return math.ceil(qps / (OVER * given.per_replica[chosen.spec.text]))


def _falls_short(setup: Setup, judged: Judged, chosen: Evaluated, given: Given) -> str:
    s, qps, peak = setup.scenario, setup.rate, given.peak
    where = _replicas_text(setup, judged.replicas)
    if chosen.saturated and qps is not None:
        top = qps if peak is None else peak.qps
        need = max(judged.replicas + 1, _needed(qps, chosen, given))
        what = policy_text(chosen.spec.text, s.proposer)
        verb = "exceeds" if top > chosen.max_qps else "is at the limit of"
        told, at_peak = "", ""
        if peak is not None:
            told = f" on average, {rate_text(top)} {peak.when},"
            at_peak = f", {max(need, _needed(top, chosen, given))} to sustain the peak"
        return (
            f"{rate_text(qps)} QPS{told} {verb} what {where} can sustain, {rate_text(chosen.max_qps)} QPS "
            f"with {what}: the queue grows without end. At least {need} replicas are needed{at_peak}; "
            "leave --replicas out."
        )
    who = f"{chosen.spec.text} does not meet" if judged.fit else "No policy meets"
    told = f"{who} {slo_text(s)} on {where} at {load_words(s)}; add replicas or loosen the SLO."
    if given.within is None:
        return told
    return f"{told} {within_text('they serve' if judged.replicas > 1 else 'it serves', given.within)}."


def _reasons(setup: Setup, judged: Judged, chosen: Evaluated, given: Given) -> list[str]:
    visited = batch_quantiles(chosen, 0.05, 0.95)
    reasons = [_bound_text(chosen, given.points, visited)]
    reasons.extend([given.chosen_by] if given.chosen_by else _rivals(judged, chosen))
    reasons.extend(_oracle_gap(judged, chosen))
    reasons.append(_table_reason(chosen, given.table, visited))
    reasons.extend(_context_reason(chosen, given.longer))
    reasons.extend(band_reason(setup, given.band))
    reasons.extend(acceptance_reason(setup, given.acceptance))
    if any(run.preemptions for run in chosen.runs):
        reasons.append("The KV cache runs full and requests are preempted: give a replica more GPUs.")
    reasons.extend(unsteady_note(setup, judged.replicas, judged.drawn, chosen))
    reasons.extend(caveats(setup, given.recorded_k))
    return reasons


def _bound_text(chosen: Evaluated, points: Sequence[KCurvePoint], visited: tuple[int, ...]) -> str:
    split = metrics.time_split(chosen.runs)
    step_s = split.verify_s + split.draft_s + split.sampling_s + split.overhead_s
    batch, context = metrics.mean_batch(chosen.runs), metrics.mean_context(chosen.runs)
    text = (
        f"The batch stays at {visited[0]} to {visited[1]} (mean {batch:.1f}, context {context:.0f} tokens); "
        f"a step takes {step_s * 1e3:.2f} ms, of which "
        f"verification {split.verify_s / step_s:.0%} and drafting {split.draft_s / step_s:.0%}."
    )
    k = fixed_k(chosen.spec.text)
    used = round(metrics.mean_k(chosen.runs)) if k is None else k
    here = min(points, key=lambda point: abs(point.k - used))
    turn = next((point.k for point in points if point.bound == "compute"), None)
    text += f" At K = {here.k} the target pass is {here.bound}-bound"
    if turn is None:
        return f"{text}, and it would stay so up to K = {points[-1].k}."
    return f"{text}; it turns compute-bound at K = {turn}." if here.bound == "memory" else f"{text}."


def _table_reason(chosen: Evaluated, table: tuple[BatchRange, ...], visited: tuple[int, ...]) -> str:
    """The best K by batch, and the first batch above those visited at which it is not the one chosen."""
    listed = f"By steady step cost the best K by batch is {table_text(table).removeprefix('table:')}"
    k = fixed_k(chosen.spec.text)
    turn = next((r for r in table if r.start > visited[1] and r.k != k), None)
    if turn is None or chosen.spec.name == "table":
        return f"{listed}."
    return f"{listed}. What would change the answer: batches from {turn.start} on, best at K = {turn.k}."


def _context_reason(chosen: Evaluated, longer: tuple[int, int, int] | None) -> list[str]:
    if longer is None:
        return []
    now, context, then = longer
    batch = round(metrics.mean_batch(chosen.runs))
    why = (
        "reading the KV cache then bounds the step, and verifying more tokens costs little"
        if then > now
        else "drafting then costs more than it saves"
    )
    return [
        f"With contexts of {context:,} tokens a steady batch of {batch} is best at K = {then} instead of "
        f"{now}: {why}."
    ]


def _rivals(judged: Judged, chosen: Evaluated) -> list[str]:
    """The closest policy among those that the engine can run, that keep up and meet the SLOs."""
    others = [one for one in judged.fit if one is not chosen]
    if not others or judged.best is None:
        return []
    rival = min(others, key=lambda one: one.tpot_s)
    pair = paired_speedup(rival, chosen)
    if pair is None:
        return []
    gain, interval = pair
    told = f"TPOT ratio {gain:.3f}" + (f", 95% {interval[0]:.3f} to {interval[1]:.3f}" if interval else "")
    if abs(gain - 1) <= TIE:
        return [f"{rival.spec.text} is within 1% of it ({told}): the simpler policy and smaller K win."]
    if interval and interval[0] <= 1.0 <= interval[1]:
        return [f"{rival.spec.text} ties with it ({told}); the simpler policy and smaller K win a tie."]
    return [f"The next best is {rival.spec.text} ({told})."]


def _oracle_gap(judged: Judged, chosen: Evaluated) -> list[str]:
    off = judged.named("off")
    oracle = next((done for done in judged.all if done.spec.name == "oracle"), None)
    bound = None if oracle is None else paired_speedup(off, oracle)
    mine = paired_speedup(off, chosen)
    if bound is None or mine is None or bound[0] <= 1:
        return []
    share = (mine[0] - 1) / (bound[0] - 1)
    return [
        f"An oracle that knew every acceptance would reach {bound[0]:.2f}x over no speculation; "
        f"this reaches {mine[0]:.2f}x, {share:.0%} of that gain."
    ]
