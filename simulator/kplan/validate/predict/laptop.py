"""Output tokens per second of closed-loop runs from their acceptance, priced as the mean step of the loop.

``settings`` has hardware, model, engine, prompt_tokens and output_tokens; ``at`` has concurrency, k,
acceptance_pct (accepted share of the drafts, in percent) and verified (drafts per request and step). Nothing
else of a row is read.
"""

from __future__ import annotations

from kplan.latency.fit_tpot import TpotRow
from kplan.latency.observed import Predictor, Served
from kplan.profiles import load_calibration, load_engine, load_hardware, load_model
from kplan.validate.table import Prediction, PublishedRow, PublishedTable

LOOKUP = "ngram"


def predict(table: PublishedTable) -> list[Prediction]:
    """One prediction per row, on the calibration of the table's hardware.

    A row that drafted in every step only by assumption (verified = k) says what no draft at all would give.
    """
    settings = table.settings
    hardware = load_hardware(settings["hardware"])
    served = Served(hardware, load_model(settings["model"]), load_engine(settings["engine"]))
    calibration = load_calibration(hardware)
    runs = [_run(row, table) for row in table.rows]
    idle = [run.model_copy(update={"acceptance_pct": 0.0, "verified": 0.0}) for run in runs]
    seconds = Predictor(served, [run.observation("", "") for run in [*runs, *idle]]).seconds(calibration)
    found = []
    for run, step_s, idle_run, idle_s in zip(
        runs, seconds[: len(runs)], idle, seconds[len(runs) :], strict=True
    ):
        rate = _rate(run, float(step_s))
        assumed = run.k > 0 and run.drafts == run.k
        note = f"taken to draft in every step; {_rate(idle_run, float(idle_s)):.0f} if in none"
        found.append(Prediction(rate, rate, rate, note=note if assumed else ""))
    return found


def _run(row: PublishedRow, table: PublishedTable) -> TpotRow:
    """The row as a run; its throughput is a stand-in of 1 that only tells how steps are counted."""
    at = row.at
    return TpotRow(
        concurrency=int(at["concurrency"]),
        output_tok_s=1.0,
        k=int(at["k"]),
        proposer=LOOKUP if int(at["k"]) else None,
        acceptance_pct=float(at["acceptance_pct"]),
        verified=float(at["verified"]),
        prompt_tokens=table.settings["prompt_tokens"],
        output_tokens=table.settings["output_tokens"],
    )


def _rate(run: TpotRow, step_s: float) -> float:
    """Output tokens per second of all clients: each takes ``steps`` steps for its output."""
    return run.concurrency * run.output_tokens / (run.steps * step_s)
