"""Prompt sets: how they are built and screened, read and checked."""
