"""Ahead of time: a run's real programs compiled for a TPU slice that is not there."""
