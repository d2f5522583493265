"""Compiles the kernels for a GPU that need not be there, as `fused.py` launches them: `compile_kernels.py 90`.

Not a test itself: Triton's interpreter, in which the tests run, takes code that its compiler refuses.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget

from trustmopd.heads import fused, fused_objective, kernels
from trustmopd.heads.shared import Projection
from trustmopd.method import CandidateState

CAPABILITY = int(sys.argv[1])


class Target:
    """What Triton's launcher asks of a driver before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)


def compile_only(kernel: triton.JITFunction) -> None:
    """From here on the kernel is compiled where it would be launched."""
    launch = kernel.run

    def run(*args, warmup, **settings):
        machine_code = launch(*args, warmup=True, **settings).asm["cubin"]
        print(kernel.__name__, len(machine_code))

    kernel.run = run


def main() -> None:
    triton.runtime.driver.set_active(Target())
    for kernel in (kernels.row_products, kernels.weighted_rows, kernels.group_maxima, kernels.choose_candidates):
        compile_only(kernel)
    compile_only(kernels.trust_at_token)
    ids = torch.randint(300, (70, 17))  # enough choices for a look at popular rows
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        hidden = torch.zeros((70, 48), dtype=dtype, requires_grad=True)
        weight = torch.zeros((300, 48), dtype=dtype, requires_grad=True)
        fused.top_candidates_of(hidden, Projection(weight), 17)
        fused.top_candidates_of(hidden, Projection(weight, torch.zeros(300), logit_scale=2.0, softcap=30.0), 17)
        fused.candidate_logits(hidden, Projection(weight), ids).sum().backward()
    logp = torch.zeros((1, 70, 17))
    teachers = logp.expand(3, -1, -1, -1)
    learning = logp.clone().requires_grad_()
    for student_logp, reference, mu in (
        (logp, logp, None),
        (learning, logp, torch.ones(3)),
        (learning, teachers, None),
    ):
        at = CandidateState(
            student_logp=student_logp,
            teacher_logp=teachers,
            reference_logp=reference,
            candidate_ids=ids.unsqueeze(0),
            sampled_ids=ids[:, 0].unsqueeze(0),
            mask=torch.ones((1, 70)),
        )
        fused_objective.trust_objective(at, mu, gamma=7.0)


if __name__ == "__main__":
    main()
