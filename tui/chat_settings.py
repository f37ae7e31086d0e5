"""How the next question is asked: temperature, seed and length, and the words typed to change them. Pure.

A line of the entry that begins with ``:`` is a command, never a question; a blank before it makes it a question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshnet.domain.errors import InvalidRequest
from meshnet.domain.routing import POLICY_NAMES

TEMPERATURE = 0.3
"""At start: lively enough to read, close enough to greedy that two routes answer alike. 0 is greedy."""
MAX_TEMPERATURE = 2.0
"""What the chat endpoint takes."""
MAX_SEED = (1 << 31) - 1
"""Of those that are typed or drawn: short enough to read out."""
DRAWN_SEEDS = 100_000
"""Drawn seeds have at most five digits: they are read from one screen and typed into another."""
WORDS = ":temperature 0.3   :seed 7|random   :max_tokens 200|auto   :route NAME   :policy NAME|auto   :model NAME"


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """``seed`` None: another one is drawn for each question. ``max_tokens`` None: the tracker's own limit."""

    temperature: float = TEMPERATURE
    seed: int | None = None
    max_tokens: int | None = None

    def as_command(self) -> str:
        """All of it as one line to edit."""
        seed = "random" if self.seed is None else self.seed
        length = "auto" if self.max_tokens is None else self.max_tokens
        return f":set temperature={self.temperature:g} seed={seed} max_tokens={length}"


@dataclass(frozen=True, slots=True)
class Where:
    """A command that picks: ``kind`` is route, policy or model, ``name`` is what was typed."""

    kind: str
    name: str


def is_command(text: str) -> bool:
    return text.startswith(":")


def read_command(text: str, settings: ChatSettings) -> ChatSettings | Where:
    """What ``text`` (with its colon) changes. Raises InvalidRequest with the words there are."""
    name, _, rest = text[1:].strip().partition(" ")
    name, value = _whole_word(name), rest.strip()
    if name == "set":
        for pair in value.split():
            key, equals, given = pair.partition("=")
            if not equals:
                raise InvalidRequest(f"{pair!r} is no setting: write name=value, as {settings.as_command()}")
            settings = _changed(settings, _whole_word(key), given)
        return settings
    if name in ("route", "policy", "model"):
        if name == "policy" and value not in (*POLICY_NAMES, "auto"):
            raise InvalidRequest(f"there is no policy {value!r}: auto, {', '.join(POLICY_NAMES)}")
        return Where(name, value)
    return _changed(settings, name, value)


def _whole_word(name: str) -> str:
    """``temp``, ``max`` and the like for what they begin."""
    whole = ("temperature", "seed", "max_tokens", "set", "route", "policy", "model")
    found = [word for word in whole if name and word.startswith(name)]
    return found[0] if len(found) == 1 else name


def _changed(settings: ChatSettings, name: str, value: str) -> ChatSettings:
    if name == "temperature":
        return replace(settings, temperature=_temperature(value))
    if name == "seed":
        return replace(settings, seed=None if value in ("random", "") else _whole(name, value, 0, MAX_SEED))
    if name == "max_tokens":
        return replace(settings, max_tokens=None if value in ("auto", "") else _whole(name, value, 1, MAX_SEED))
    raise InvalidRequest(f"there is no :{name}; there are {WORDS} (a blank first makes it a question)")


def _temperature(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= MAX_TEMPERATURE:
        raise InvalidRequest(f"temperature {value!r} is not a number from 0 to {MAX_TEMPERATURE:g}")
    return found


def _whole(name: str, value: str, least: int, most: int) -> int:
    found = int(value) if value.isascii() and value.isdigit() and len(value) <= len(str(most)) else -1
    if not least <= found <= most:
        raise InvalidRequest(f"{name} {value!r} is not a whole number from {least} to {most}")
    return found
