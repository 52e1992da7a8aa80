"""Plants a silent error of kinds.toml or kinds_heldout.toml in a program here and becomes that program.

    python plant.py PROGRAM [--fault KIND] [--seed N] [--steps N] [--folder DIR]
    python plant.py --check        # every edit applies once and compiles

A kind is a few edits of the program's text, as a person would have written it, so that the process that runs
is an ordinary script: neither its arguments nor its names say what is wrong with it. Without `--fault` the
program runs as it stands. Imports no torch.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
SHARED = ("progress.py", "synthetic.py", "handwriting_modules.py")
"""What the programs import; copied beside a planted one."""
HALVES = {"development": "kinds.toml", "held-out": "kinds_heldout.toml"}
DISTRIBUTED = ("ddp_cnn", "ddp_gpt", "ddp_ranker")
PROGRAMS = (
    "image_cnn", "nano_gpt", "lstm_lm", "house_prices", "vae", "dcgan", "actor_critic", "dqn", "unet",
    "tagger", "tabular_kfold", "text_transformer", "audio_cnn", "segmentation", "translator", "sensor_rnn",
    "reviews_gru", "metric_learning", "two_tower", "detector", "forecaster", "sparse_autoencoder", "a2c_grid",
    "keypoints", "classify_textures", "churn", "handwriting", "retail_notebook", "ppo_pole",
    "self_distillation", "gnn_molecules", *DISTRIBUTED,
)
HEALTHY_FOLDER = HERE.parent / "healthy"
HEALTHY = (
    "curriculum", "diffusion", "distillation", "fine_tuning", "k_fold", "lbfgs_physics", "mixture_of_experts",
    "multitask", "ppo", "recommender", "swa_forecast", "two_towers",
)
"""Programs in which nothing is planted: they do on purpose what looks like a fault."""


class Script(NamedTuple):
    """A program's text in a folder of its own, and what to start it with besides seed and steps."""

    path: Path
    options: list[str]


@functools.cache
def declared(half: str) -> dict[str, Any]:
    """What the file of a half holds."""
    return tomllib.loads((HERE / HALVES[half]).read_text())


def kinds(half: str = "all") -> dict[str, dict[str, Any]]:
    """The kinds of a half (or of both) by name, in the files' order."""
    halves = HALVES if half == "all" else [half]
    return {kind["name"]: kind for each in halves for kind in declared(each)["kind"]}


def symptoms() -> list[str]:
    """What only describes what follows from an error, whatever its kind."""
    return list(declared("development")["symptoms"])


def edited(program: str, edits: list[list[str]]) -> str:
    """The program's text after the edits; ValueError when one does not apply exactly once."""
    folder = HEALTHY_FOLDER if program in HEALTHY else HERE
    text = (folder / f"{program}.py").read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise ValueError(f"{program}: {text.count(old)} places for {old!r}")
        text = text.replace(old, new)
    return text


def write(program: str, kind: str, folder: Path, seed: int) -> Script:
    """Write the program with this kind planted (clean without one) into `folder`, with all that it needs.

    A kind of resumption first trains the clean program for some steps, for its checkpoint.
    """
    for name in SHARED:
        shutil.copy(HERE / name, folder)
    path, options = folder / f"{program}.py", []
    path.write_text(edited(program, []))
    if kind:
        planted = kinds()[kind]["programs"][program]
        if planted.get("prepare"):
            words = ["--seed", str(seed), "--steps", str(planted["prepare"]), "--out", str(folder)]
            subprocess.run([sys.executable, str(path), *words], check=True, stdout=subprocess.DEVNULL)
            options = ["--out", str(folder)]
        path.write_text(edited(program, planted["edits"]))
        options += ["--mark", str(planted.get("mark", 0))]
    return Script(path, options)


def check() -> list[str]:
    """What is wrong with the files of kinds."""
    wrong = [f"{name}: in both halves" for name in kinds("development") if name in kinds("held-out")]
    for name, kind in kinds().items():
        if len(kind["programs"]) < 2:
            wrong.append(f"{name}: one program")
        for program, planted in kind["programs"].items():
            try:
                compile(edited(program, planted["edits"]), f"{program} with {name}", "exec")
            except (ValueError, SyntaxError) as error:
                wrong.append(f"{name}: {error}")
    return wrong


def main() -> None:
    """Plant, and become the program."""
    as_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_is)
    parser.add_argument("program", nargs="?", choices=[*PROGRAMS, *HEALTHY])
    parser.add_argument("--fault", default="", metavar="KIND")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="0: until it is stopped")
    parser.add_argument("--folder", type=Path, help="where to write the script; a temporary one without it")
    parser.add_argument("--check", action="store_true", help="check the files of kinds")
    wanted = parser.parse_args()
    if wanted.check:
        found = check()
        print("\n".join(found) or f"{len(kinds())} kinds")
        raise SystemExit(int(bool(found)))
    if wanted.program is None:
        parser.error("which program?")
    folder = wanted.folder or Path(tempfile.mkdtemp(prefix="training-"))
    script = write(wanted.program, wanted.fault, folder, wanted.seed)
    words = [str(script.path), "--seed", str(wanted.seed), "--steps", str(wanted.steps), *script.options]
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main()
