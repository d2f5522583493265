"""Whether vLLM can be used here: installed, of a version that TRL takes, and knowing the model."""

import os
import socket
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec

import transformers

#: What TRL 1.16 takes.
OLDEST, NEWEST = (0, 22), (0, 31)


def check_vllm(asked: str, instead: str) -> None:
    """`asked` is how the user asked for vLLM, `instead` what to do without it."""
    span = f"{_text(OLDEST)} to {_text(NEWEST)}"
    if find_spec("vllm") is None:
        raise ValueError(
            f"{asked} needs vLLM, which is not installed. Install it (pip install 'trustmopd[vllm]'; "
            f"docs/rollouts.md says how), or {instead}."
        )
    found = vllm_version()
    if not OLDEST <= _release(found) <= NEWEST:
        raise ValueError(
            f"{asked} needs vLLM {span}, the versions that TRL 1.16 works with; {found} is installed. Install one of "
            f"those (docs/rollouts.md says how), or {instead}."
        )


def vllm_version() -> str:
    """By the package's own record: importing vLLM takes ten seconds. The CPU build has another name."""
    return version(packages_distributions()["vllm"][0])


def code_for(architecture: str) -> tuple[bool, bool]:
    """Whether vLLM has its own code for an architecture, and whether it can run transformers' code of it: if that lets
    it put in its attention."""
    from vllm import ModelRegistry

    other = getattr(transformers, architecture, None)
    lends = other is None or other.is_backend_compatible()  # an architecture of the checkpoint's own is not judged
    return architecture in ModelRegistry.get_supported_archs(), lends


def check_architecture(architecture: str, name: str, model_impl: str) -> None:
    """For training: with `transformers` or `auto`, vLLM runs transformers' code too."""
    known, lends = code_for(architecture)
    if model_impl == "vllm" and not known:
        remedy = "vllm_model_impl = 'transformers' to let it run transformers' own, or " if lends else ""
        raise ValueError(
            f"vLLM {vllm_version()} has no code for {architecture}, the architecture of {name}. Set {remedy}use_vllm = "
            "False."
        )
    if not lends and (model_impl == "transformers" or not known):
        raise ValueError(
            f"vllm_model_impl = {model_impl!r}: vLLM {vllm_version()} cannot run transformers' code of {architecture}, "
            f"the architecture of {name}. Set {'vllm_model_impl = vllm, or ' if known else ''}use_vllm = False."
        )


def can_sleep() -> bool:
    """Whether vLLM can hand its memory back on this machine."""
    from vllm.platforms import current_platform

    return current_platform.is_sleep_mode_available()


def check_port(port: int) -> None:
    """Of the group that carries the weights to a server: the first process will listen there."""
    if os.environ.get("RANK", "0") != "0":
        return
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError as error:
            raise ValueError(
                f"vllm_group_port = {port} is taken by another process ({error.strerror}). Choose another, or end that "
                "process."
            ) from error


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
