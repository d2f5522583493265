"""The life of a run: its identity, files, checkpoints, cost, and how it resumes."""
