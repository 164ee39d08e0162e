"""Data with its provenance and no logic: YAML files that are loaded by name.

One folder a kind: hardware, models, drafters, calibrations, engines, workloads with their trace models,
prompts, traces that ship, and the published measurements that ``kplan validate`` predicts.
:mod:`kplan.profiles` reads them, and a user's own files of the same kinds.
"""
