from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshnet.cli.keys import app
from meshnet.domain.keys import KeyRing
from meshnet.wire.keyfile import decode_keys


class Home:
    def __init__(self, path: Path) -> None:
        self.file = path / "keys.json"

    def run(self, *arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, list(arguments), env={"MESHNET_HOME": str(self.file.parent)})
        return result.exit_code, result.stdout, result.stderr

    @property
    def ring(self) -> KeyRing:
        return decode_keys(self.file.read_bytes())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_key_is_shown_once_and_kept_as_a_hash(home: Home) -> None:
    code, out, said = home.run("create", "bob", "--scope", "chat", "--scope", "read")
    key = out.strip()
    assert code == 0
    assert key not in said
    record = home.ring.find(key)
    assert record is not None
    assert record.scopes == {"chat", "read"}
    assert key.rsplit("_", 1)[1] not in home.file.read_text()
    assert key.rsplit("_", 1)[1] not in home.run("list")[1]
    assert stat.S_IMODE(home.file.stat().st_mode) == 0o600


def test_a_revoked_key_opens_nothing(home: Home) -> None:
    key = home.run("create", "bob")[1].strip()
    assert home.run("revoke", "bob")[0] == 0
    assert home.ring.find(key) is None
    assert "revoked" in home.run("list")[1]
    assert home.run("revoke", "bob")[0] != 0


@pytest.mark.parametrize(
    "arguments", [("create", "x", "--scope", "root"), ("create", "x", "--scope", "join", "--scope", "chat")]
)
def test_odd_scopes_make_no_key(home: Home, arguments: tuple[str, ...]) -> None:
    code, out, said = home.run(*arguments)
    assert (code != 0, out) == (True, "")
    assert "scope" in said
    assert not home.file.exists()


def test_names_cannot_paint_the_terminal(home: Home) -> None:
    home.run("create", "\x1b]0;owned\x07")
    assert "\x1b" not in home.run("list")[1]
