"""``meshnet chat``: one question and its answer, or a conversation."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from meshnet.cli import exits
from meshnet.cli.connect import find_tracker, open_client, strangers_named
from meshnet.cli.conversation import Conversation, summary
from meshnet.cli.hints import hint_of
from meshnet.cli.question import Answer, Message, Wishes, ask, choose_model, with_names, with_node_ids
from meshnet.cli.terminal import check_text, complain, dim, error_console, visible_text
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import NOT_UTF8, InvalidRequest, MeshnetError

DEFAULT_TEMPERATURE = 0.3
"""The dialect's own default of 1.0 lets small models ramble; much lower, and large ones repeat themselves."""


def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this and exit. Without it: a conversation.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Default: the first that can answer.")] = None,
    route: Annotated[
        str | None, typer.Option(metavar="A,B", help="Pin the route: names or node_ids, head first.")
    ] = None,
    route_policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="Choose the route by this policy. Default: the tracker's.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 is greedy.")] = DEFAULT_TEMPERATURE,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed and question give the same answer.")] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a question instead of text.")] = False,
    tracker: Annotated[str | None, typer.Option(help="Address of the tracker.")] = None,
) -> None:
    """Chat with a model of the mesh.

    In a conversation Ctrl-C stops the answer, Ctrl-D ends, /help lists the commands.

    \b
    Examples:
      meshnet chat
      meshnet chat "What is the capital of France?"
      echo "Name three rivers." | meshnet chat --temperature 0
      meshnet chat --route n1,n2 "Hello"
    """
    hops = tuple(filter(None, (word.strip() for word in (route or "").split(","))))
    wishes = Wishes(model, hops, temperature, max_tokens, seed, system, route_policy)
    if question is None and sys.stdin is not None and sys.stdin.isatty() and not as_json:
        with asyncio.Runner() as runner:
            Conversation(runner, find_tracker(tracker, os.environ, Path.cwd()), wishes).run()
        return
    text = question if question is not None else _piped()
    if text.strip():
        url = find_tracker(tracker, os.environ, Path.cwd())
        try:
            raise typer.Exit(asyncio.run(_once(url, text, wishes, as_json)))
        except KeyboardInterrupt:  # The nodes were told by the cancelled request.
            if not as_json:
                _write("\n")
            error_console().print(dim("stopped"))
            raise typer.Exit(exits.INTERRUPTED) from None


def _piped() -> str:
    if sys.stdin is None:
        return ""
    try:
        return check_text(sys.stdin.read())
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"Standard input is not {error.encoding} text: {error.reason}.", code=NOT_UTF8) from None


async def _once(url: str, text: str, wishes: Wishes, as_json: bool) -> int:
    """Ask one question. The answer goes to standard output, what it took to standard error."""
    async with open_client(os.environ) as http:
        tracker = TrackerClient(http, url)
        with strangers_named(url):
            answer = Answer(await choose_model(tracker, wishes.model))
        wishes = await with_node_ids(tracker, wishes)
        question: list[Message] = [{"role": "user", "content": text}]
        try:
            await ask(tracker, question, wishes, answer, _skip if as_json else _write)
        except MeshnetError as error:
            error.message = await with_names(tracker, error.message, answer.call_id)
            raise
        if answer.error is not None:
            answer.error.message = await with_names(tracker, answer.error.message, answer.call_id)
        if as_json:
            _write(msgspec.json.encode(as_dict(answer)).decode() + "\n")
        else:
            _write("\n")
            error_console().print(dim(await summary(tracker, answer)), soft_wrap=True)
    if answer.error is None:
        return exits.OK
    mend = hint_of(answer.error) or "Ask again when it is mended."
    complain(f"The answer was cut off: {answer.error.message}", hint=f"What came is above. {mend}")
    return exits.exit_code_of(answer.error)


def as_dict(answer: Answer) -> dict[str, Any]:
    """The answer as ``--json`` prints it (docs/cli.md)."""
    return {
        "model": answer.model,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "call_id": answer.call_id,
        "mode": answer.mode,
        "route": answer.route,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "ttft_s": answer.ttft_s,
        "duration_s": answer.duration_s,
        "tps": answer.tps,
        "error": _error(answer.error),
        "meshnet": answer.meshnet,
    }


def _error(error: MeshnetError | None) -> dict[str, Any] | None:
    return None if error is None else {"code": error.code, "message": error.message}


def _write(text: str) -> None:
    sys.stdout.write(visible_text(text))
    sys.stdout.flush()


def _skip(text: str) -> None:
    """--json prints the whole answer at its end."""
