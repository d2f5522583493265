"""Rows of files and Hub datasets: one reader for prompts, pools and benchmarks. No torch."""

from trustmopd.prompts.reading.formats import SUFFIXES, NoColumn, Row, kind_of, no_column, read_rows, whole_rows
from trustmopd.prompts.reading.sources import (
    EVERY_SPLIT,
    Location,
    hub_dataset,
    hub_rows,
    local_files,
    named,
    read_source,
)

__all__ = [
    "EVERY_SPLIT",
    "SUFFIXES",
    "Location",
    "NoColumn",
    "Row",
    "hub_dataset",
    "hub_rows",
    "kind_of",
    "local_files",
    "named",
    "no_column",
    "read_rows",
    "read_source",
    "whole_rows",
]
