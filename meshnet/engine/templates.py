"""Chat templates, rendered in a child process: a template comes with the weights, from anybody, and is a program.

jinja2's immutable sandbox keeps it from Python; a process of its own, with limits on time and memory, keeps a
template that loops or grows without end from taking the node along. The child starts with the codec, answers one
JSON line per request, and ends when its standard input does. Run as ``python -m meshnet.engine.templates``.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from meshnet.domain.chat import ChatMessage
from meshnet.domain.errors import InvalidRequest

DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models that bring none: plain turns, ``User: …`` and ``Assistant:``."""
RENDER_TIMEOUT_S = 5.0
"""A real template takes about a millisecond; a node may wait this long for one before it is called endless."""
START_TIMEOUT_S = 30.0
"""Start of the child (interpreter and jinja2, about 0.2 s) on a machine that is busy."""
MAX_OUTPUT_CHARS = 16_000_000
"""Longer than any context a model has, at four characters a token."""
_COMPLAINT_CHARS = 1000
"""What a template says of a refusal goes to the client; it may have put the whole conversation into it."""
_CHILD_MEMORY_BYTES = 2 << 30
"""Address space of the child where the system can limit it."""
_CHILD_CPU_S = 120
"""CPU time of one child: hours of ordinary templates. It ends a child that still spins when its node was killed."""
_SPENT = frozenset({-int(getattr(signal, name)) for name in ("SIGXCPU", "SIGKILL") if hasattr(signal, name)})
"""How a child ends whose CPU time is spent, perhaps with an honest request before it: that one is tried again."""


class TemplateRenderer:
    """One template and the child that renders it. Thread-safe; the child is started again after it was ended."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._setup = json.dumps({"template": source, "tokens": dict(special_tokens)})
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def render(self, messages: Sequence[ChatMessage], timeout_s: float = RENDER_TIMEOUT_S) -> str:
        """The prompt's text, generation prompt included. Raises InvalidRequest(code="chat_template"): the template
        refused, is broken, or took more than ``timeout_s``."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        with self._lock:
            answer = self._ask(json.dumps({"messages": turns}), timeout_s)
        if "text" in answer:
            return str(answer["text"])
        raise InvalidRequest(
            f"The chat template refused these messages: {answer['error']}", code="chat_template", param="messages"
        )

    def close(self) -> None:
        """End the child. A later render starts another."""
        with self._lock:
            self._end()

    def _ask(self, request: str, timeout_s: float) -> dict[str, Any]:
        if self._child is None or self._child.poll() is not None:
            self._start()
        answer = self._exchange(request, timeout_s)
        if answer is None and self._child is not None and self._child.poll() in _SPENT:
            self._start()
            answer = self._exchange(request, timeout_s)
        if answer is not None:
            return answer
        self._end()
        return {"error": f"it did not end within {timeout_s:g} s, or outgrew its memory."}

    def _start(self) -> None:
        self._end()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "meshnet.engine.templates"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._exchange(self._setup, START_TIMEOUT_S)

    def _exchange(self, line: str, timeout_s: float) -> dict[str, Any] | None:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        with contextlib.suppress(BrokenPipeError), selectors.DefaultSelector() as selector:
            child.stdin.write(line + "\n")
            child.stdin.flush()
            selector.register(child.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return None
            answer = child.stdout.readline()
            return json.loads(answer) if answer.endswith("\n") else None
        return None

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _limit_child() -> None:
    if sys.platform == "win32":
        return
    import resource

    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_CHILD_MEMORY_BYTES, _CHILD_MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (_CHILD_CPU_S, _CHILD_CPU_S))


def _compile(setup: Mapping[str, Any]) -> Any:
    import datetime

    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> str:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.globals.update(setup["tokens"])
    return environment.from_string(setup["template"])


def _render(template: Any, messages: list[dict[str, str]]) -> str:
    text = template.render(messages=messages, add_generation_prompt=True)
    if len(text) > MAX_OUTPUT_CHARS:
        raise ValueError(f"it made {len(text)} characters of these messages")
    return text


def serve() -> None:
    """The child: the first line brings the template, every other one messages; one JSON line answers each."""
    from jinja2.exceptions import TemplateError

    # What a template's own mistakes raise. Anything else ends the child, which the parent reports and replaces.
    mistakes = (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        MemoryError,
        RuntimeError,
    )
    _limit_child()
    template: Any = None
    broken = "no template"
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "template" in request:
                template = _compile(request)
                answer: dict[str, Any] = {"ready": True}
            elif template is None:
                answer = {"error": broken}
            else:
                answer = {"text": _render(template, request["messages"])}
        except mistakes as error:
            answer = {"error": str(error)[:_COMPLAINT_CHARS] or type(error).__name__}
            broken = answer["error"] if template is None else broken
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    serve()
