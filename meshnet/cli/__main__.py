"""``meshnet``: the commands, and what an error means for the exit code.

Commands that need more than a moment to import (models) are loaded when they are called; nothing here imports torch or
textual.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from meshnet import __version__
from meshnet.cli import exits
from meshnet.cli.bench import bench
from meshnet.cli.ca import app as ca_app
from meshnet.cli.chat import chat
from meshnet.cli.console import console as open_console
from meshnet.cli.coverage import coverage
from meshnet.cli.doctor import doctor
from meshnet.cli.down import down
from meshnet.cli.hints import hint_of
from meshnet.cli.keys import app as keys_app
from meshnet.cli.logs import logs
from meshnet.cli.models import app as models_app
from meshnet.cli.nodes import nodes
from meshnet.cli.relays import relays
from meshnet.cli.routes import app as routes_app
from meshnet.cli.status import status
from meshnet.cli.terminal import check_text, complain, prepare_streams, silence_broken_pipe
from meshnet.cli.up import app as up_app
from meshnet.cli.usage import usage
from meshnet.domain.errors import MeshnetError

app = typer.Typer(
    name="meshnet",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(up_app, name="up")
app.command()(down)
app.command()(status)
app.command()(chat)
app.command()(logs)
app.command()(nodes)
app.command()(relays)
app.add_typer(routes_app, name="routes")
app.command()(coverage)
app.command()(usage)
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")
app.add_typer(ca_app, name="ca")
app.command("console")(open_console)
app.command()(doctor)
app.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})(bench)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"meshnet {__version__}")
        raise typer.Exit


@app.callback()
def meshnet(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One large language model over many ordinary machines.

    \b
    First steps:
      meshnet up                                     a tracker and three nodes of a small real model
      meshnet chat "What is the capital of France?"  ask it
      meshnet status                                 what runs, what it serves
      meshnet console                                watch and steer the mesh
      meshnet down                                   stop it

    \b
    A machine that joins a mesh elsewhere:
      meshnet up node --tracker http://10.0.0.5:7070 --memory 8GB    gets the layers that help most
      meshnet up node --model smollm2-135m --shard 0-14 --tracker http://10.0.0.5:7070

    MESHNET_HOME is the root of models, logs and state: two homes are two meshes. Exit codes: 0 ok, 1 failed, 2 usage,
    3 tracker unreachable, 4 no route or mesh not ready, 130 interrupted.
    """


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors are one line on standard error."""
    prepare_streams()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # Whoever read has seen enough (| head): nothing failed.
        silence_broken_pipe()
        return exits.OK
    return code


def _run(arguments: list[str] | None) -> int:
    try:
        for word in sys.argv[1:] if arguments is None else arguments:
            check_text(word)
        app(args=arguments, prog_name="meshnet")
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        return end.code if isinstance(end.code, int) else exits.FAILED if end.code else exits.OK
    except MeshnetError as error:
        complain(error.message, hint=hint_of(error))
        return exits.exit_code_of(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}.")
        return exits.FAILED
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    return exits.OK


if __name__ == "__main__":
    sys.exit(main())
