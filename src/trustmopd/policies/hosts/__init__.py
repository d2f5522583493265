"""Where a frozen policy lives: on the device, in host memory, sharded over the processes, or in actors on Ray."""
