"""The command `trustmopd`; also `python -m trustmopd`, and so `accelerate launch -m trustmopd train recipe.yaml`."""

import os
import signal


def main() -> None:
    """Run it. Ctrl-C while modules are imported ends it without a traceback; later, the verbs say what it means."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # a process in the background ignores it
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from trustmopd.cli import run

    signal.signal(signal.SIGINT, interrupt)
    run()


if __name__ == "__main__":
    main()
