"""Acceptance traces: files, walks, lookup proposers replayed, fitted models."""

from kplan.acceptance.adapt import match_walk
from kplan.acceptance.collect import ImportOptions
from kplan.acceptance.figures import AcceptanceFigures, FiguresKind, load_figures, save_figures
from kplan.acceptance.fit import fit
from kplan.acceptance.load import load_acceptance, load_traces
from kplan.acceptance.model import Lookup, TraceModel
from kplan.acceptance.model_file import load_model, save_model, to_json
from kplan.acceptance.ngram import replay_ngram
from kplan.acceptance.statistics import Steps, WalkShape, compare, walk_shape, walk_steps
from kplan.acceptance.store import save_traces
from kplan.acceptance.trace import MAX_K, MAX_TOKENS, ProposerTrace, TraceSet, need_every_position
from kplan.acceptance.tree import DraftTree, draft_tree, ratios_of, tree_model
from kplan.acceptance.walk import WalkStats, oracle_walk, step_tokens, walk

__all__ = [
    "MAX_K",
    "MAX_TOKENS",
    "AcceptanceFigures",
    "DraftTree",
    "FiguresKind",
    "ImportOptions",
    "Lookup",
    "ProposerTrace",
    "Steps",
    "TraceModel",
    "TraceSet",
    "WalkShape",
    "WalkStats",
    "compare",
    "draft_tree",
    "fit",
    "load_acceptance",
    "load_figures",
    "load_model",
    "load_traces",
    "match_walk",
    "need_every_position",
    "oracle_walk",
    "ratios_of",
    "replay_ngram",
    "save_figures",
    "save_model",
    "save_traces",
    "step_tokens",
    "to_json",
    "tree_model",
    "walk",
    "walk_shape",
    "walk_steps",
]
