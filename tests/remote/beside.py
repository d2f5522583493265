"""In each of several processes: the same steps under an engine, with resident policies and with all of them on Ray."""

import os
import sys
from pathlib import Path

import engines
import on_cpu
import torch

if __name__ == "__main__":
    torch.set_num_threads(1)
    on_cpu.allow_sharding()
    recipe, folder = Path(sys.argv[1]), Path(sys.argv[2])
    short = ("training.max_steps=2", "training.save_strategy=no")
    status = 0
    for placement in ("resident", "ray"):
        status |= engines.train(recipe, folder / placement, *short, f"training.teacher_placement={placement}")
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(status)  # gloo's threads sometimes abort a process on its way out
