"""Phrases that several sentences share."""

from __future__ import annotations

from kplan.config.scenario import Scenario


def slo_text(scenario: Scenario) -> str:
    """The SLOs as asked, for example "TPOT <= 20 ms and TTFT <= 1000 ms"."""
    parts = []
    if scenario.slo_tpot_ms is not None:
        parts.append(f"TPOT <= {scenario.slo_tpot_ms:g} ms")
    if scenario.slo_ttft_ms is not None:
        parts.append(f"TTFT <= {scenario.slo_ttft_ms:g} ms")
    return " and ".join(parts) or "the load"


def fixed_k(policy: str) -> int | None:
    """The one K of a policy text, 0 for off, None when K changes."""
    name, _, rest = policy.partition(":")
    return 0 if name == "off" else int(rest) if name == "fixed" else None


def policy_text(text: str, proposer: str) -> str:
    """A policy as a person would say it."""
    name, _, rest = text.partition(":")
    if name == "off":
        return "no speculation"
    if name == "fixed":
        return f"K = {rest} ({proposer})"
    if name == "table":
        return f"the K table {rest} ({proposer})"
    return f"{text} ({proposer})"


def rate_text(qps: float) -> str:
    """Three digits: a small rate is not rounded to nothing."""
    return f"{qps:.3g}" if qps < 100 else f"{qps:.0f}"


def within_text(who: str, qps: float) -> str:
    """What is served within the SLOs, for example "Within the SLO they serve up to 71.2 QPS"."""
    return f"Within the SLO {who} up to {rate_text(qps)} QPS" if qps else "The SLO is missed at any rate"
