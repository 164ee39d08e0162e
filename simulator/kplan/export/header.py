"""The comments on top of an engine's file: which plan, load, prediction and engine version it stands for."""

from __future__ import annotations

from kplan.config.loads import load_words, ranks_words, traces_words
from kplan.config.plan import Plan, PolicyResult, Question, Stat
from kplan.export.choose import Choice
from kplan.export.engines import EngineVersion


def header(
    plan: Plan, engine: EngineVersion, choice: Choice, commands: tuple[str, str], notes: tuple[str, ...]
) -> str:
    """Comment lines (each starts with ``#``, ends with a newline), safe whatever text the plan holds.

    Args:
        commands: what starts the server from this file, and from the command line alone.
    """
    from_file, alone = commands
    question = plan.question
    lines = [
        f"{engine}, written by kplan {plan.versions.get('kplan', '(version unknown)')}",
        f"plan: scenario {plan.scenario_hash}, seed {question.seed}",
        f"load: {load(question)}",
        f"serves: {question.model}{_formats(question)} on {question.hardware}, {ranks_words(question)}, "
        f"proposer {question.proposer}",
        f"policy: {choice.rule.text}",
        f"predicted (simulated, not measured): {prediction(choice.result, plan.answer.replicas)}",
        f"run: {from_file}",
        f"or, without this file: {alone}",
        *(f"note: {note}" for note in notes),
        *_proposal(choice),
    ]
    return "".join(f"# {one_line(line)}\n" for line in lines)


def _proposal(choice: Choice) -> list[str]:
    """The table over batch and context, where the policy is one: no release loads it."""
    if not choice.rule.by_context:
        return []
    rows = ", ".join(str(list(row)).replace("None", "null") for row in choice.rule.by_context)
    return [f"in the form that vLLM PR #48944 proposes, which no release loads: [{rows}]"]


def _formats(question: Question) -> str:
    """The formats asked for, in brackets; "" when the model's own are taken."""
    asked = [f"{question.quantization} weights"] if question.quantization else []
    if question.kv_cache_dtype != "auto":
        asked.append(f"{question.kv_cache_dtype} KV cache")
    return f" ({', '.join(asked)})" if asked else ""


def load(question: Question) -> str:
    """The load in words, with units."""
    rate = load_words(question, "requests/s", "{} requests at a time")
    if question.replay is not None:
        return f"{rate}, acceptance of workload {question.workload}"
    if question.traces is None:
        return f"{rate} of workload {question.workload}"
    return f"{rate} of recorded traces {traces_words(question.traces, question.dataset)}"


def prediction(result: PolicyResult | None, replicas: int) -> str:
    """What the plan says of this policy, with units and intervals."""
    if result is None:
        return "none, the plan did not simulate this policy"
    if result.saturated:
        limit = "" if result.max_qps is None else f", which sustain {result.max_qps:.3g} requests/s"
        return f"the load saturates {replicas} replica(s){limit}"
    parts = [
        _stat("TPOT", result.tpot_ms),
        _stat("TTFT", result.ttft_ms),
        f"{result.output_tok_s:.0f} output tok/s over {replicas} replica(s)",
        f"mean batch {result.mean_batch:.1f}",
        f"acceptance length {result.acceptance_length:.2f}",
    ]
    return ", ".join(part for part in parts if part)


def one_line(text: str) -> str:
    """``text`` with line breaks and unprintable characters as spaces, so that a comment stays a comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _stat(name: str, stat: Stat | None) -> str:
    if stat is None:
        return ""
    interval = f"95% CI {stat.ci95[0]:.2f}..{stat.ci95[1]:.2f}, " if stat.ci95 else ""
    return f"{name} {stat.mean:.2f} ms ({interval}p99 {stat.p99:.1f})"
