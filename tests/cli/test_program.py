"""The program as a whole: what it imports, how fast it answers, which tracker it finds, what it never lets through."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from conftest import Machine

from meshnet import __version__
from meshnet.cli import launch, ports
from meshnet.cli.__main__ import main
from meshnet.cli.connect import as_url, find_tracker
from meshnet.cli.exits import exit_code_of
from meshnet.cli.home import check_name, home_of
from meshnet.cli.launch import DaemonSpec, command, environment
from meshnet.cli.processes import started_at
from meshnet.cli.terminal import format_age, format_bytes, visible, visible_text
from meshnet.domain.errors import MeshnetError, NodeFailed, NoRoute, NotFound, StartError, Unreachable
from meshnet.wire.runfile import RunFile

PROBE = """
import sys
from meshnet.cli.__main__ import main
code = main(sys.argv[1:])
heavy = {"torch", "textual", "transformers", "numpy", "aiohttp", "huggingface_hub"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("status",), ("down",), ("doctor",)])
def test_light_commands_import_nothing_heavy(machine: Machine, words: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *words], env=machine.environ, cwd=machine.root, capture_output=True, text=True
    )
    assert "imported" not in result.stderr
    assert "Traceback" not in result.stderr


def test_help_costs_less_than_400_ms_of_processor(machine: Machine) -> None:
    """Processor time, since the clock on the wall belongs to whoever else runs here."""
    probe = "import resource; from meshnet.cli.__main__ import main; main(['--help']); "
    probe += "used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"
    words = [sys.executable, "-c", probe]
    runs = [
        subprocess.run(words, env=machine.environ, cwd=machine.root, capture_output=True, text=True) for _ in range(2)
    ]
    assert min(float(run.stdout.splitlines()[-1]) for run in runs) < 0.4


def test_version_and_help(machine: Machine) -> None:
    assert machine.run("--version").stdout == f"meshnet {__version__}\n"
    help_text = machine.run("--help").stdout
    for name in ("up", "down", "status", "chat", "logs", "nodes", "routes", "coverage", "models", "console", "doctor"):
        assert f"\n  {name} " in help_text
    assert "3 tracker unreachable" in help_text.replace("\n  ", " ")


def test_doctor_finds_what_is_wrong(machine: Machine) -> None:
    good = machine.run("doctor")
    assert good.returncode == 0, good.stdout
    assert "smollm2-135m" in good.stdout
    findings = json.loads(machine.run("doctor", "--json").stdout)
    assert {"verdict": "ok", "what": "models", "words": "smollm2-135m"} in findings
    (machine.root / "here/meshnet.toml").write_text("[mesh\n")
    bad = machine.run("doctor")
    assert bad.returncode == 1
    assert "bad   mesh file" in bad.stdout


def test_tracker_is_found_in_the_documented_order(tmp_path: Path) -> None:
    environ = {"MESHNET_HOME": str(tmp_path / "home"), "MESHNET_TRACKER": "env:2"}
    (tmp_path / "meshnet.toml").write_text('[mesh]\ntracker = "http://file:3"\n')
    assert find_tracker("flag:1", environ, tmp_path) == "http://flag:1"
    assert find_tracker(None, environ, tmp_path) == "http://env:2"
    del environ["MESHNET_TRACKER"]
    assert find_tracker(None, environ, tmp_path) == "http://file:3"
    (tmp_path / "meshnet.toml").unlink()
    with pytest.raises(Unreachable, match="Start one with: meshnet up"):
        find_tracker(None, environ, tmp_path)
    default_home = {"XDG_STATE_HOME": str(tmp_path)}
    assert home_of(default_home).is_default
    assert not home_of(environ).is_default


@pytest.mark.parametrize("text", ["ftp://x", "http://a b", "x" * 600, "http://a\x1b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(StartError, match="no tracker's address"):
        as_url(text)


def test_run_files_of_others_and_half_written_ones_are_passed_over(machine: Machine) -> None:
    home = home_of(machine.environ)
    home.run_folder.mkdir(parents=True)
    (home.run_folder / "half.json").write_text('{"kind": "node", "na')
    (home.run_folder / "other.json").write_text('{"kind": "toaster"}')
    mine = RunFile(kind="node", name="n10", pid=1, started=1.0, url="http://x")
    for name in ("n10", "n2"):
        home.run_file(name).write_bytes(msgspec.json.encode(msgspec.structs.replace(mine, name=name)))
    assert [record.name for record in home.records()] == ["n2", "n10"]


@pytest.mark.parametrize("name", ["", "../n1", "a/b", ".hidden", "x" * 65, "a\n"])
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(StartError, match="cannot name a daemon"):
        check_name(name)


def test_command_line_of_a_daemon() -> None:
    settings = {"shard": "0-14", "port": 0, "peer": ["http://a", "http://b"], "rebalance": True, "dtype": None}
    spec = DaemonSpec("node", "n1", {**settings, "route_rng": 7})
    words = command(spec)
    assert words[1:6] == ["-P", "-m", "daemons.node", "--name", "n1"]
    assert words[6:] == ["--shard", "0-14", "--port", "0", "--peer", "http://a", "--peer", "http://b", "--rebalance"]
    assert environment(spec, {"A": "b"}) == {"A": "b", "MESHNET_ROUTE_RNG": "7"}


def test_ports_are_fixed_in_the_default_home_only(tmp_path: Path) -> None:
    default, own = home_of({"XDG_STATE_HOME": str(tmp_path)}), home_of({"MESHNET_HOME": str(tmp_path)})
    assert [launch.default_port(default, "node", name) for name in ("n1", "n3", "n99", "box")] == [7071, 7073, 0, 0]
    assert launch.default_port(default, "tracker", "tracker") == 7070
    assert launch.default_port(own, "tracker", "tracker") == launch.default_port(own, "node", "n1") == 0


def test_node_without_torch_names_the_install_command() -> None:
    with pytest.raises(StartError, match=r"pip install 'meshnet-llm\[node\]'"):
        launch.check_torch(DaemonSpec("node", "n1"), installed=False)
    launch.check_torch(DaemonSpec("tracker", "t"), installed=False)


def test_port_in_use_names_holder() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StartError, match=rf"Port {port} on 127.0.0.1 is in use by .*\(pid {os.getpid()}\)"):
            ports.check_free("127.0.0.1", port, "take another.")
    ports.check_free("127.0.0.1", port, "take another.")
    ports.check_free("127.0.0.1", 0, "take another.")


def test_port_on_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(StartError, match=r"Cannot listen on 192\.0\.2\.1:7070"):
        ports.check_free("192.0.2.1", 7070, "take another.")


def test_foreign_text_cannot_move_the_cursor() -> None:
    assert visible("a\x1b[2J\r\n\x9b\u202eb\u2028") == "a\\x1b[2J\\x0d\\x0a\\x9b\\u202eb\\u2028"
    assert visible_text("a\n\tb\x07") == "a\n\tb\\x07"
    assert visible("漢字 é 👩‍🚀") == "漢字 é 👩‍🚀"


def test_figures_as_people_read_them() -> None:
    assert [format_bytes(n) for n in (0, 999, 1000, 325_700_000, 7e13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "325.7 MB",
        "70.0 TB",
    ]
    assert [format_age(s) for s in (-1, 59.9, 75, 3_660, 90_000)] == ["0s", "59s", "1m15s", "1h1m", "1d1h"]


def test_exit_codes_of_errors() -> None:
    errors: list[tuple[MeshnetError, int]] = [
        (Unreachable("x"), 3),
        (Unreachable("x", code="connection_lost"), 1),
        (NoRoute("x"), 4),
        (
            NodeFailed(
                "n1 died (node w.0-14, unreachable); no other route is left: No route for m", code="unreachable"
            ),
            4,
        ),
        (NodeFailed("n1 died (node w.0-14, unreachable); the route is pinned.", code="unreachable"), 1),
        (NotFound("x"), 1),
        (StartError("x"), 1),
    ]
    assert [exit_code_of(error) for error, _ in errors] == [code for _, code in errors]


def test_started_at_of_nobody_is_none() -> None:
    assert started_at(os.getpid()) is not None
    assert started_at(2**22 + 1) is None


@pytest.mark.parametrize("home", ["file", "/proc/x"])
def test_home_that_cannot_be_used_is_one_line(machine: Machine, home: str) -> None:
    (machine.root / "file").touch()
    up = machine.run("up", MESHNET_HOME=str(machine.root / home))
    assert up.returncode == 1
    assert up.stderr.startswith("error: Cannot keep state in ") and up.stderr.count("\n") == 1
    assert "MESHNET_HOME" in up.stderr


@pytest.mark.parametrize(("bound", "usable"), [("0.0.0.0:7070", "127.0.0.1:7070"), ("[::]:1", "[::1]:1")])
def test_daemon_that_listens_everywhere_has_a_usable_address(machine: Machine, bound: str, usable: str) -> None:
    home = home_of(machine.environ)
    home.run_folder.mkdir(parents=True)
    record = RunFile(kind="tracker", name="tracker", pid=1, started=1.0, url=f"http://{bound}")
    home.run_file("tracker").write_bytes(msgspec.json.encode(record))
    assert [record.url for record in home.records()] == [f"http://{usable}"]


@pytest.mark.parametrize("shard", ["foo", "3-1"])
def test_shard_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str], shard: str) -> None:
    assert main(["up", "node", "--shard", shard, "--tracker", "127.0.0.1:9"]) == 2
    assert "--shard" in capsys.readouterr().err


def test_node_whose_tracker_is_nowhere_is_told_to_check_the_address(machine: Machine) -> None:
    node = machine.run("up", "node", "--model", "smollm2-135m", "--shard", "0-14", "--tracker", "127.0.0.1:9")
    assert node.returncode == 3
    assert node.stderr.startswith("error: No tracker answers at http://127.0.0.1:9. Check the address")


def test_another_programs_address_is_called_no_tracker(capsys: pytest.CaptureFixture[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        assert main(["status", "--tracker", f"127.0.0.1:{server.server_address[1]}"]) == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "error: That is no meshnet tracker" in capsys.readouterr().err


def test_key_that_is_none_is_one_line(machine: Machine) -> None:
    status = machine.run("status", "--tracker", "127.0.0.1:9", MESHNET_API_KEY="schlüssel")
    assert status.returncode == 1
    assert "MESHNET_API_KEY is no key" in status.stderr and "Traceback" not in status.stderr
