@testbed.command("build", epilog="Example: trustmopd testbed build --out runs/world --seed 1")
def testbed_build(
    out: Annotated[Path, typer.Option(help="Folder of the checkpoints and their card.")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Everything follows from it.")] = 0,
    regime: Annotated[
        str, typer.Option(help="How specialists are trained: moderate, overtrained or drifting.")
    ] = "moderate",
    reference_of: Annotated[
        Path | None, typer.Option(help="Take the reference of that world.", show_default=False)
    ] = None,
    evaluation_prompts: Annotated[int, typer.Option(min=1, help="Prompts of each kind to score it on.")] = 2000,
) -> None:
    """Make the small world's reference and specialists again: supervised training, then GRPO with verified rewards."""
    again = ["trustmopd", "testbed", "build", "--out", str(out), "--seed", str(seed), "--regime", regime]
    again += ["--evaluation-prompts", str(evaluation_prompts)]
    again += ["--reference-of", str(reference_of)] if reference_of else []
    with errors(shlex.join(again), kept="finished stages"):
        from studies.small_world.build_world import build_world
        from studies.small_world.reinforcement import REGIMES
        from trustmopd.quickstart.machine import quiet

        if regime not in REGIMES:
            raise ValueError(f"--regime {regime}: there is no such regime. Choose from {', '.join(REGIMES)}.")
        quiet()
        build_world(
            out,
            seed,
            reinforcement=REGIMES[regime],
            evaluation_prompts=evaluation_prompts,
            reference_of=reference_of,
        )
        say(f"World: {out}\nCard:  {out / 'README.md'}")
