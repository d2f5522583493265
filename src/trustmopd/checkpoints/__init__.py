"""Checkpoints as files: averages, adapters into full weights, completeness. Weights are read tensor by tensor."""
