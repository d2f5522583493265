"""Runs untrusted Python, and brings back what it computed."""
