"""Frozen policies in other processes, on other GPUs and machines, by Ray. Nothing else imports Ray."""
