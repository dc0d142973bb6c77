"""Streaming rollouts: policy, sampling, the turn loop over a kept cache, training rows."""
