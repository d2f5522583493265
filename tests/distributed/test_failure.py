"""One process dies, hangs or meets a NaN: the others end soon, say so, and leave a run that goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import engines
import failing
import pytest
from processes import ends, launch, refused, started

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(1800)]

#: Seconds within which a process ends once another is gone, and beyond `ddp_timeout` if that one only hangs.
#: Most of it is Python's own way out on a busy machine.
SOON = 30
#: `ddp_timeout`; processes wait that long for each other at the start, too, which is long on a busy machine.
PATIENCE = 40


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    engines.write_recipes(folder)
    return folder


@pytest.fixture(scope="module")
def whole(recipes: Path) -> list[float]:
    """The losses of a run that nothing happened to."""
    assert engines.train(recipes / "tied.yaml", recipes / "whole") == 0
    return engines.losses(recipes / "whole")


def contents(folder: Path) -> dict[str, bytes]:
    """Without the model card, which tells of the whole run."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "README.md"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_one_process_without_memory_for_its_teachers_stops_all(recipes: Path, tmp_path: Path) -> None:
    arguments = [failing.__file__, "memory", str(recipes / "tied.yaml"), str(tmp_path / "run")]
    for said in refused([*arguments, "training.teacher_placement=offload"], processes=2, logs=tmp_path):
        assert "rank 1" in said and "only 0 GiB are free" in said


def test_a_run_that_ended_well_is_not_failed_by_the_end_of_the_interpreter(recipes: Path, tmp_path: Path) -> None:
    """As a thread of Gloo's sometimes does, an object aborts the process at the end of the interpreter; handlers of
    other libraries have run before."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, pathlib, sys\n"
        "place = pathlib.Path(__file__).with_name('handled-' + os.environ['RANK'])\n"
        "def on_import(event, given):\n"
        "    if event == 'import' and given[0] == 'trl':\n"
        "        atexit.register(place.touch)\n"
        "sys.addaudithook(on_import)\n"
        "class Aborting:\n"
        "    def __del__(self, abort=os.abort):\n"
        "        abort()\n"
        "aborting = Aborting()\n"
    )
    path = os.pathsep.join([str(tmp_path), *(each for each in sys.path if each)])
    arguments = ["-m", "trustmopd", "train", str(recipes / "tied.yaml"), f"output={tmp_path / 'run'}"]
    arguments += ["training.use_cpu=true", "training.max_steps=1"]
    launch(arguments, processes=2, logs=tmp_path, settings={"PYTHONPATH": path})
    assert [(tmp_path / f"handled-{rank}").exists() for rank in range(2)] == [True, True]
    one = [sys.executable, "-m", "trustmopd", "--version"]  # one process leaves as always
    ended = subprocess.run(one, env=os.environ | {"PYTHONPATH": path, "RANK": "0"}, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGABRT and ended.stdout.startswith(b"trustmopd")


@pytest.mark.parametrize("moment", failing.MOMENTS)
def test_when_one_process_fails_the_others_end_and_the_run_goes_on(
    moment: str, recipes: Path, whole: list[float], tmp_path: Path
) -> None:
    run, recipe = tmp_path / "run", recipes / "tied.yaml"
    last = run / "checkpoints" / f"checkpoint-{failing.WHOLE}"
    arguments = [failing.__file__, moment, str(recipe), str(run)]
    arguments += [f"training.ddp_timeout={PATIENCE}"] if moment == "hang" else []
    with started(arguments, processes=2, logs=tmp_path) as running:
        if moment != "hang":
            running[1].wait(300)
        seconds = ends(running[0], 300)
        codes = [process.poll() for process in running]
    print(f"\n{moment}: the other process ended after {seconds:.1f} s")
    said = (tmp_path / "rank-0.log").read_text()
    assert codes[0] == 1 and codes[1] == {"hang": None, "nan": 1}.get(moment, -9)
    assert seconds < (300 if moment == "hang" else SOON)
    assert "error (rank 0" in said and "another process" in said
    assert ("--resume" in said) == (moment != "calibration")  # there is something to continue from
    assert "Traceback" not in said
    if moment == "nan":
        assert "NaN" in (tmp_path / "rank-1.log").read_text()
    if moment == "calibration":
        assert not (run / "calibration.json").exists() and not last.exists()
        return
    assert (last / "manifest.json").is_file()
    unfinished = run / "checkpoints" / f"checkpoint-{engines.STEPS}"
    assert unfinished.exists() == (moment == "checkpoint") and not (unfinished / "manifest.json").exists()
    before = contents(last)
    if moment == "step":  # the same number of processes
        launch([engines.__file__, "train", str(recipe), str(run), "--resume"], processes=2, logs=tmp_path)
    else:
        assert engines.train(recipe, run, "--resume") == 0
    assert engines.losses(run) == pytest.approx(whole, rel=1e-4)
    assert contents(last) == before
