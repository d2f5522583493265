"""Rows of files and Hub datasets: one reader for prompts, pools and benchmarks. No torch."""
