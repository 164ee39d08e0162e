"""Microbenchmarks of a model's operations on a GPU, in the form that ``kplan calibrate --tables`` reads."""
