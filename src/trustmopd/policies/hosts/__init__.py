"""Where a frozen policy lives: sharded over the processes, or in actors on Ray."""
