from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from meshnet.domain.errors import StartError
from meshnet.weights import places
from meshnet.wire.runfile import RunFile
from tui import settings


@pytest.mark.parametrize("environ", [{"MESHNET_HOME": "/x/y"}, {"MESHNET_HOME": "~/m"}, {"MESHNET_HOME": " "}, {}])
def test_state_root_is_the_stores_own_rule(environ: dict[str, str]) -> None:
    assert settings.state_root(environ) == places.state_root(environ)


def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "console.toml").write_text('[console]\ntracker = "file:1"\nmouse = true\n')
    home = {"MESHNET_HOME": str(tmp_path)}
    assert settings.load(home, {}).tracker == "http://file:1"
    assert settings.load(home, {}).mouse is True
    assert settings.load(home | {"MESHNET_TRACKER": "env:2"}, {}).tracker == "http://env:2"
    assert (
        settings.load(home | {"MESHNET_TRACKER": "env:2"}, {"tracker": "https://flag:3/"}).tracker == "https://flag:3"
    )


def test_the_homes_running_tracker_is_found_and_a_dead_ones_file_is_not_believed(tmp_path: Path) -> None:
    home = {"MESHNET_HOME": str(tmp_path)}
    (tmp_path / "run").mkdir()
    assert settings.load(home, {}).tracker == "http://127.0.0.1:7070"
    run = RunFile(kind="tracker", name="tracker", pid=os.getpid(), started=0.0, url="http://127.0.0.1:4242")
    (tmp_path / "run" / "tracker.json").write_bytes(msgspec.json.encode(run))
    assert settings.load(home, {}).tracker == "http://127.0.0.1:4242"
    dead = msgspec.structs.replace(run, pid=2**22 + 1)
    (tmp_path / "run" / "tracker.json").write_bytes(msgspec.json.encode(dead))
    assert settings.load(home, {}).tracker == "http://127.0.0.1:7070"
    (tmp_path / "run" / "broken.json").write_text("{")
    assert settings.load(home, {}).tracker == "http://127.0.0.1:7070"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[console]\ntraker = 'x'\n", "no setting 'traker'"),
        ("[console\n", "not valid TOML"),
        ("[console]\nmouse = 'yes'\n", "mouse"),
        ("[console]\ntracker = 'ftp://x'\n", "no tracker's address"),
    ],
)
def test_a_bad_file_is_one_sentence_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "console.toml"
    path.write_text(text)
    with pytest.raises(StartError, match=words):
        settings.load({}, {}, path)


def test_over_ssh_and_without_colour_the_terminals_own_colours_are_used() -> None:
    assert settings.default_theme({"SSH_CONNECTION": "1 2 3 4"}) == "ansi-dark"
    assert settings.default_theme({"NO_COLOR": "1"}) == "ansi-dark"
    assert settings.default_theme({}) == "meshnet"
