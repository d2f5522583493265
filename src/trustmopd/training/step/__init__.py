"""One training step: read the batch, ask the frozen policies, compute the objective, note what happened."""
