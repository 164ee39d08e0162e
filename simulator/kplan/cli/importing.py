"""From an engine's config to a scenario, and what ``kplan import-config`` says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kplan.cli import options as o
from kplan.cli.output import print_json, prose, say
from kplan.cli.policy_table import POLICY_COLUMNS, policy_row
from kplan.cli.tables import print_table
from kplan.config.loads import load_words
from kplan.config.plan import Plan
from kplan.config.scenario import Scenario
from kplan.errors import InputError
from kplan.export import ENGINES, CurrentConfig, Verdict, largest_k
from kplan.files import write_texts
from kplan.search.single import SingleRun

DEFAULT_REPLICATIONS, OF_A_LOG = 5, 3
"""As kplan simulate."""
DRAFTER_FILE = "current-drafter.yaml"
_ALWAYS = {"engine", "model", "hardware", "proposer", "policy", "workload"}
"""Keys that a scenario says even where they are the default."""


@dataclass
class Answer:
    """What is known of a config, as far as it was asked."""

    config: CurrentConfig
    verdict: Verdict | None = None
    scenario: Scenario | None = None
    run: SingleRun | None = None
    plan: Plan | None = None
    written: tuple[Path, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the engine runs the config: by its rules, and by its own word where it was asked."""
        return self.config.runs and (self.verdict is None or self.verdict.accepted)

    def show(self, as_json: bool) -> None:
        """Print everything."""
        if as_json:
            print_json(self.record())
            return
        config = self.config
        drafts = f"{config.proposer or 'an unknown drafter'}, {config.policy}"
        speculates = "no speculation" if config.policy == "off" else drafts
        say(f"{ENGINES[config.engine]}, {config.model}: {speculates}")
        for finding in config.findings:
            prose(finding.line)
        if self.verdict is not None:
            prose(self.verdict.line)
        if self.run is not None and self.scenario is not None:
            self._show_run(self.scenario, self.run)
        elif not self.runs:
            prose("the engine does not run this config as it is: nothing was simulated")
        for path in self.written:
            say(f"wrote {path}")

    def _show_run(self, scenario: Scenario, run: SingleRun) -> None:
        rows = [run.off] + ([run.result] if run.result.name != run.off.name else [])
        print_table(
            f"the current config at {load_words(scenario)}, simulated",
            POLICY_COLUMNS,
            [policy_row(one, exportable_mark=False) for one in rows],
        )
        for note in run.notes:
            prose(f"note: {note}")
        if self.plan is not None:
            best = next((r for r in self.plan.policies if r.name == self.plan.answer.policy), None)
            if best is not None:
                print_table("recommended instead", POLICY_COLUMNS, [policy_row(best)])
            prose(self.plan.answer.words, style="bold")

    def record(self) -> dict[str, Any]:
        """The same as JSON."""
        config, run = self.config, self.run
        record: dict[str, Any] = {
            "engine": config.engine,
            "version": ENGINES[config.engine].version,
            "model": config.model,
            "policy": config.policy,
            "proposer": config.proposer,
            "drafter": config.drafter,
            "settings": dict(config.settings),
            "runs": self.runs,
            "findings": [{"severity": one.severity, "text": one.text} for one in config.findings],
        }
        if self.verdict is not None:
            record["check"] = self.verdict.record()
        if run is not None:
            record |= {
                "current": run.result.model_dump(mode="json"),
                "off": run.off.model_dump(mode="json"),
                "notes": list(run.notes),
            }
        if self.plan is not None:
            record["recommended"] = self.plan.answer.model_dump(mode="json")
        return record | {"files": [str(path) for path in self.written]}


def scenario_from(config: CurrentConfig, flags: Mapping[str, Any], scratch: Path) -> Scenario:
    """The scenario of a config at the load that the flags say; flags win over the config.

    Args:
        scratch: folder for the drafter YAML of a tree.

    Raises:
        InputError: what kplan cannot simulate, or a bad flag.
    """
    if config.unsimulated:
        raise InputError("config", config.policy, config.unsimulated, "leave the load out for the findings")
    values = dict(flags) | {"engine": config.engine, "policy": config.policy}
    values |= {key: value for key, value in config.settings.items() if flags.get(key) is None}
    values["model"] = flags["model"] or config.model
    if config.proposer is not None:
        values["proposer"] = config.proposer
        values["drafter"] = flags["drafter"] or _drafter(config, scratch)
        values["max_k"] = flags["max_k"] or max(7, largest_k(config.policy))
    scenario = o.scenario_of(None, values, {})
    if scenario.requests is None and flags["replications"] is None:
        many = OF_A_LOG if scenario.replay else DEFAULT_REPLICATIONS
        scenario = scenario.model_copy(update={"replications": many})
    return scenario


def write_scenario(scenario: Scenario, out: Path) -> tuple[Path, ...]:
    """The scenario as YAML, and beside it the drafter of a tree. Raises InputError when it cannot write."""
    said = scenario.model_dump(mode="json", include=_ALWAYS)
    values = said | scenario.model_dump(mode="json", exclude_defaults=True)
    texts = {}
    if scenario.drafter is not None and Path(scenario.drafter).name == DRAFTER_FILE:
        texts[out.with_name(DRAFTER_FILE)] = Path(scenario.drafter).read_text(encoding="utf-8")
        values["drafter"] = DRAFTER_FILE
    for key in ("traces", "replay"):
        if key in values:
            values[key] = str(Path(values[key]).absolute())
    texts = {out: yaml.safe_dump(values, sort_keys=False)} | texts
    write_texts(texts)
    return tuple(texts)


def _drafter(config: CurrentConfig, scratch: Path) -> str | None:
    """What names the drafter: its weights, or for a tree a drafter YAML in ``scratch``."""
    if config.tree is None:
        return None if config.proposer in ("ngram", "suffix", "mtp") else config.drafter
    tree, proposer = config.tree, str(config.proposer)
    content = {
        "name": "current",
        "proposer": proposer,
        "kind": "head",
        "hf_id": config.drafter,
        "targets": ["*"],
        "engine_methods": {config.engine: proposer.removesuffix("-tree").upper()},
        "summary": f"tree of a running config: {tree.depth} steps, topk {tree.topk}",
        "head": proposer.removesuffix("-tree"),
        "tree": {"depth": tree.depth, "topk": tree.topk, "verified": tree.verified},
        "provenance": {"kind": "assumed", "source": "the config of a running server"},
    }
    file = scratch / DRAFTER_FILE
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return str(file)
