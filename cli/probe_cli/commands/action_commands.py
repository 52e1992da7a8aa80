"""The commands that do something to a job: names, arguments, one line of meaning each.

The second half of the page that begins in `commands`, which takes them in. What
they do is in the modules they call, imported when they are called. The command's
main thread.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from probe_cli.core.examples import epilog

app = typer.Typer()

_Wait = Annotated[
    float | None,
    typer.Option(
        "--wait", metavar="S", min=0.001, help="Seconds to wait for the end of a step (PROBE_ACT_WAIT_S)."
    ),
]
_Format = Annotated[Literal["text", "json"], typer.Option("--format", help="How to write the answer.")]
_Alone = Annotated[bool, typer.Option("--force", help="Also one rank of several, alone.")]
_Steps = Annotated[int, typer.Option("--steps", metavar="N", min=1, help="For how many steps.")]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")]


@app.command(epilog=epilog("lr"))
def lr(
    context: typer.Context,
    scale: Annotated[
        float | None, typer.Option("--scale", metavar="F", help="Multiply the rates, and the schedule, by F.")
    ] = None,
    set: Annotated[
        float | None, typer.Option("--set", metavar="V", help="Have steps use V, whatever is scheduled.")
    ] = None,
    group: Annotated[
        int | None, typer.Option("--group", metavar="I", min=0, help="Only this parameter group, from 0.")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", metavar="NAME", help="Which one, where there are several.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also more than ten times the present rate, and one rank alone.")
    ] = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Show the learning rates and their history, or change them."""
    from probe_cli.commands.lr import show_rates
    from probe_cli.core.act_client import act, number, one_of

    chosen = {"group": group, "optimizer": optimizer}
    if scale is None and set is None:
        show_rates(context.obj, chosen, wait, format)
        return
    one_of(scale=scale, set=set)
    asked = {"scale": number(scale, "--scale", above_zero=True), "set": number(set, "--set")}
    act(context.obj, "lr", {**asked, **chosen, "force": force or None}, wait_s=wait, format=format)


_PLACE = "The file; with --every, and with the name of a job of several ranks, the folder."


@app.command(epilog=epilog("checkpoint"))
def checkpoint(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="PATH", help=_PLACE)],
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for the end of a step: for a job that hangs.")
    ] = False,
    overwrite: _Overwrite = False,
    every: Annotated[
        int | None, typer.Option("--every", metavar="N", min=1, help="One every N steps from now on.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="K", min=1, help="With --every: only the newest K.")
    ] = None,
    best: Annotated[
        str | None, typer.Option("--best", metavar="METRIC", help="With --every: also the best, by `loss`.")
    ] = None,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Save model, optimizer, schedulers, random states and position, verified."""
    from probe.base.errors import UsageError
    from probe_cli.core.act_client import act, path_for

    place = path_for(context.obj, path)
    if every is None and (keep is not None or best is not None):
        raise UsageError("--keep and --best are about checkpoints every so many steps", hint="Add --every N.")
    if every is not None and (now or overwrite):
        raise UsageError("--now and --overwrite are about one checkpoint", hint="Not with --every.")
    asked = {"folder": place, "every": every, "keep": keep, "best": best}
    if every is None:
        asked = {"path": place, "overwrite": overwrite or None}
    act(context.obj, "checkpoint", asked, wait_s=wait, now=now, format=format)


@app.command(epilog=epilog("clip"))
def clip(
    context: typer.Context,
    max_norm: Annotated[
        float | None, typer.Option("--max-norm", metavar="X", help="Highest norm of all gradients together.")
    ] = None,
    norm_type: Annotated[
        float | None, typer.Option("--norm-type", metavar="P", help="Which norm: 2 without it.")
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="End the clipping.")] = False,
    force: _Alone = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Clip the gradients before each step from now on."""
    from probe_cli.commands.actions import end_standing
    from probe_cli.core.act_client import act, number, one_of

    one_of(max_norm=max_norm, off=off)
    if off:
        end_standing(context.obj, "clip", wait, format)
        return
    norm = number(max_norm, "--max-norm", above_zero=True)
    kind = number(norm_type, "--norm-type", above_zero=True)
    asked = {"max_norm": norm, "norm_type": kind, "force": force or None}
    act(context.obj, "clip", asked, wait_s=wait, format=format)


@app.command(name="skip-nonfinite", epilog=epilog("skip-nonfinite"))
def skip_nonfinite(
    context: typer.Context,
    state: Annotated[Literal["on", "off"], typer.Argument(metavar="on|off", help="Begin or end it.")],
    force: _Alone = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Leave out each update whose gradients hold NaN or infinity, from now on."""
    from probe_cli.commands.actions import end_standing
    from probe_cli.core.act_client import act

    if state == "off":
        end_standing(context.obj, "skip_nonfinite", wait, format)
    else:
        act(context.obj, "skip_nonfinite", {"force": force or None}, wait_s=wait, format=format)


@app.command(name="spike-guard", epilog=epilog("spike-guard"))
def spike_guard(
    context: typer.Context,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", metavar="X", help="A spike: a gradient X times its usual size."),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="End it.")] = False,
    force: _Alone = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Reset the optimizer's momentum where gradients spike, from now on."""
    from probe_cli.commands.actions import end_standing
    from probe_cli.core.act_client import act, number, one_of

    one_of(threshold=threshold, off=off)
    if off:
        end_standing(context.obj, "spike_guard", wait, format)
        return
    asked = {
        "threshold": number(threshold, "--threshold", above_zero=True), "force": force or None,
    }
    act(context.obj, "spike_guard", asked, wait_s=wait, format=format)


@app.command(name="loss-scale", epilog=epilog("loss-scale"))
def loss_scale(
    context: typer.Context,
    set: Annotated[
        float | None, typer.Option("--set", metavar="X", help="The scale that the next step uses.")
    ] = None,
    force: _Alone = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Show the scale of the GradScaler and its history, or set it."""
    from probe_cli.commands.lr import show_loss_scale
    from probe_cli.core.act_client import act, number

    if set is None:
        show_loss_scale(context.obj, format)
        return
    asked = {"set": number(set, "--set", above_zero=True), "force": force or None}
    act(context.obj, "loss_scale", asked, wait_s=wait, format=format)


@app.command(epilog=epilog("pause"))
def pause(
    context: typer.Context,
    for_s: Annotated[
        float | None, typer.Option("--for", metavar="S", help="Seconds after which it goes on by itself.")
    ] = None,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Hold the training between two steps."""
    from probe_cli.core.act_client import act, number

    act(context.obj, "pause", {"for_s": number(for_s, "--for", above_zero=True)}, wait_s=wait, format=format)


@app.command(epilog=epilog("resume"))
def resume(context: typer.Context, wait: _Wait = None, format: _Format = "text") -> None:
    """Let a training that was paused go on."""
    from probe_cli.core.act_client import act

    act(context.obj, "resume", {}, wait_s=wait, format=format)


@app.command(epilog=epilog("stop"))
def stop(
    context: typer.Context,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="FILE", help="Save a checkpoint there first.")
    ] = None,
    exit_code: Annotated[
        int | None, typer.Option("--exit-code", metavar="N", min=0, max=255, help="Of the process (0).")
    ] = None,
    force: _Alone = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """End the training after the step that runs, as if it were done."""
    from probe_cli.core.act_client import act, path_for

    place = None if checkpoint is None else path_for(context.obj, checkpoint)
    asked = {"checkpoint": place, "exit_code": exit_code, "force": force or None}
    act(context.obj, "stop", asked, wait_s=wait, format=format)


@app.command(epilog=epilog("profile"))
def profile(
    context: typer.Context,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where the trace goes; Perfetto opens it.")
    ],
    steps: _Steps = 3,
    overwrite: _Overwrite = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Profile the next steps with torch's profiler."""
    from probe_cli.core.act_client import act, path_for

    asked = {"steps": steps, "path": path_for(context.obj, output), "overwrite": overwrite or None}
    act(context.obj, "profile", asked, wait_s=wait, format=format)


@app.command(epilog=epilog("capture"))
def capture(
    context: typer.Context,
    module: Annotated[str, typer.Argument(metavar="MODULE", help="Its path in the model: blocks.3.attn.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where the tensors go; torch.load opens it.")
    ],
    steps: _Steps = 1,
    overwrite: _Overwrite = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Save what goes into a module and comes out of it."""
    from probe_cli.core.act_client import act, path_for

    place = path_for(context.obj, output)
    asked = {"module": module, "steps": steps, "path": place, "overwrite": overwrite or None}
    act(context.obj, "capture", asked, wait_s=wait, format=format)


@app.command("memory-snapshot", epilog=epilog("memory-snapshot"))
def memory_snapshot(
    context: typer.Context,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where it goes, pickled.")
    ],
    overwrite: _Overwrite = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Save what holds memory: the device's allocator, for pytorch.org/memory_viz."""
    from probe_cli.core.act_client import act, path_for

    asked = {"path": path_for(context.obj, output), "overwrite": overwrite or None}
    act(context.obj, "memory_snapshot", asked, wait_s=wait, format=format)


@app.command("save-batch", epilog=epilog("save-batch"))
def save_batch(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="FILE", help="Where it goes, for torch.load.")],
    drop: Annotated[bool, typer.Option("--drop", help="And let go of it in the job.")] = False,
    overwrite: _Overwrite = False,
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Save the batch that the last NaN or infinity came with, else the last batch."""
    from probe_cli.core.act_client import act, path_for

    asked = {"path": path_for(context.obj, path), "drop": drop or None, "overwrite": overwrite or None}
    act(context.obj, "save_batch", asked, wait_s=wait, format=format)


@app.command(epilog=epilog("watch"))
def watch(
    context: typer.Context,
    expressions: Annotated[
        str | None, typer.Argument(metavar="[EXPRESSIONS]", help='Python, commas between: "loss, x.norm()".')
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Gradient, weight and update of every parameter.")
    ] = False,
    histograms: Annotated[
        bool, typer.Option("--histograms", help="Distributions of gradients and weights, and of outputs.")
    ] = False,
    activations: Annotated[
        bool, typer.Option("--activations", help="What every module puts out.")
    ] = False,
    updates: Annotated[
        bool, typer.Option("--updates", help="Measure the update of every parameter, not only of some.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="For how many steps.")
    ] = None,
    every: Annotated[
        int | None, typer.Option("--every", metavar="K", min=1, help="Only every K-th step.")
    ] = None,
    wait: _Wait = None,
    format: Annotated[
        Literal["table", "ndjson"], typer.Option("--format", help="How to write it.")
    ] = "table",
) -> None:
    """Evaluate expressions at the end of each step, or look deep into steps; Ctrl-C ends it."""
    from probe_cli.commands.watch import watch as watch_job

    deep = {
        "gradients": gradients, "histograms": histograms, "activations": activations, "updates": updates,
    }
    kinds = [name for name, wanted in deep.items() if wanted]
    watch_job(context.obj, expressions, kinds, steps, every, wait, format)


@app.command(epilog=epilog("actions"))
def actions(
    context: typer.Context,
    format: Annotated[Literal["table", "json"], typer.Option("--format", help="How to write it.")] = "table",
) -> None:
    """List what was done to a job: when, by whom, how it stands, how to undo it."""
    from probe_cli.commands.actions import list_actions

    list_actions(context.obj, format)


@app.command(epilog=epilog("undo"))
def undo(
    context: typer.Context,
    action_id: Annotated[str, typer.Argument(metavar="ID", help="As `actions` lists it.")],
    wait: _Wait = None,
    format: _Format = "text",
) -> None:
    """Take back what an action did."""
    from probe_cli.core.act_client import undo as undo_action

    undo_action(context.obj, action_id, wait, format)
