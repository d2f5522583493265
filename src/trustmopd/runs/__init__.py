"""The run directory: the one place that knows its file names, what is in each file, and which checkpoint is whole.

No torch: reports are made on machines without it.
"""

from trustmopd.runs.checkpoints import newest_checkpoint, step_of, whole_checkpoints
from trustmopd.runs.layout import EntryDirectory, RunDirectory, as_commands, folder_of, located, searched

__all__ = [
    "EntryDirectory",
    "RunDirectory",
    "as_commands",
    "folder_of",
    "located",
    "newest_checkpoint",
    "searched",
    "step_of",
    "whole_checkpoints",
]
