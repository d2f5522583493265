"""Checks before any GPU time is spent."""
