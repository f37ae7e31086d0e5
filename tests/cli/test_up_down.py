"""``up`` and ``down`` with real processes: idempotence, dead daemons, half-started meshes, ports, and who is ours."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest
from conftest import Machine

from meshnet.cli import processes
from meshnet.cli.home import home_of


def pids(machine: Machine) -> dict[str, int]:
    return {record.name: record.pid for record in processes.living(home_of(machine.environ))}


def test_up_starts_demo_mesh_and_down_leaves_nothing(machine: Machine) -> None:
    up = machine.run("up")
    assert up.returncode == 0, up.stderr
    assert "The mesh is up" in up.stdout
    assert "layers 15-29 of smollm2-135m" in up.stdout
    before = pids(machine)
    assert list(before) == ["tracker", "n1", "n2", "n3"]
    status = machine.run("status", "--json")
    snapshot = json.loads(status.stdout)
    assert len(snapshot["trackers"]) == 1
    assert [node["live"] for node in snapshot["nodes"]] == [True] * 3

    again = machine.run("up")
    assert again.returncode == 0
    assert pids(machine) == before
    assert again.stdout.count("kept") == 4

    down = machine.run("down")
    assert down.returncode == 0
    assert down.stdout.count("stopped") == 4
    assert not list((machine.root / "home/run").glob("*.json"))
    assert not [pid for pid in before.values() if _lives(pid)]
    assert machine.run("down").stdout == "Nothing runs.\n"


@pytest.mark.slow
def test_up_restarts_a_daemon_that_died_at_its_old_address(machine: Machine) -> None:
    assert machine.run("up").returncode == 0
    before = pids(machine)
    home = home_of(machine.environ)
    url = home.record("n2").url  # type: ignore[union-attr]
    os.kill(before["n2"], signal.SIGKILL)
    _wait_dead(before["n2"])
    status = machine.run("status")
    assert "n2" in status.stderr and "does not run any more" in status.stderr
    up = machine.run("up")
    assert up.returncode == 0, up.stderr
    assert f"n2 died (it was pid {before['n2']}); starting it again." in up.stdout
    after = pids(machine)
    assert {name for name in after if after[name] != before[name]} == {"n2"}
    assert home.record("n2").url == url  # type: ignore[union-attr]


@pytest.mark.slow
def test_up_says_what_failed_with_its_log_and_keeps_the_rest(machine: Machine) -> None:
    up = machine.run("up", FAKE_FAIL="n2")
    assert up.returncode == 1
    assert "n2 ended with exit code 1" in up.stderr
    assert "n2: the disk is on fire" in up.stderr
    assert "Still running: tracker, n1, n3" in up.stdout
    assert set(pids(machine)) == {"tracker", "n1", "n3"}
    assert not (machine.root / "home/run/n2.json").exists()
    healed = machine.run("up")
    assert healed.returncode == 0, healed.stderr
    assert healed.stdout.count("kept") == 3


@pytest.mark.slow
def test_up_gives_up_in_time_and_says_who_is_late(machine: Machine) -> None:
    up = machine.run("up", "--timeout", "5", FAKE_LOADING="n3")
    assert up.returncode == 1
    assert "n3 not ready in time: loading layers 0-29: 40 % of 100 B" in up.stderr


def test_up_sees_a_node_ready_that_shows_its_status_to_keys_only(machine: Machine) -> None:
    assert machine.run("up", "tracker").returncode == 0
    words = ("up", "node", "--model", "smollm2-135m", "--shard", "0-29", "--name", "a")
    up = machine.run(*words, FAKE_LOCKED="a")
    assert up.returncode == 0, up.stderr
    assert "started  its status needs a key of scope read in MESHNET_API_KEY" in up.stdout
    assert machine.run(*words, FAKE_LOCKED="a").returncode == 0


def test_up_that_may_not_read_a_nodes_status_says_what_the_node_says(machine: Machine) -> None:
    assert machine.run("up", "tracker").returncode == 0
    words = ("up", "node", "--model", "smollm2-135m", "--shard", "0-29", "--name", "a", "--timeout", "3")
    up = machine.run(*words, FAKE_LOCKED="a", FAKE_LOADING="a")
    assert up.returncode == 1
    assert "a not ready in time: registered node=a." in up.stderr
    assert "API key" not in up.stderr


def test_up_without_tracker_starts_no_node(machine: Machine) -> None:
    up = machine.run("up", FAKE_FAIL="tracker")
    assert up.returncode == 1
    assert "tracker: the disk is on fire" in up.stderr
    assert pids(machine) == {}


def test_up_names_who_holds_the_port(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        up = machine.run("up", "tracker", "--port", str(port))
    assert up.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use by" in up.stderr
    assert f"(pid {os.getpid()})" in up.stderr
    assert up.stderr.count("\n") == 1
    assert not list((machine.root / "home/run").glob("*.json"))


@pytest.mark.slow
def test_two_ups_at_once_start_one_mesh(machine: Machine) -> None:
    words = [sys.executable, "-m", "meshnet.cli", "up"]
    both = [
        subprocess.Popen(words, env=machine.environ, cwd=machine.root / "here", stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted(text.count("started") for text in outputs) == [0, 4]
    ours = [p for p in psutil.process_iter(["cmdline", "environ"]) if _is_daemon_of(p, machine)]
    assert len(ours) == 4


@pytest.mark.slow
def test_up_reads_meshnet_toml(machine: Machine) -> None:
    (machine.root / "here/meshnet.toml").write_text(
        '[tracker]\nname = "t"\nroute_rng = 7\n'
        '[[node]]\nname = "a"\nshard = "0-14"\nthreads = 3\n[[node]]\nname = "b"\nshard = "10-20"\n'
    )
    up = machine.run("up", "--timeout", "5")
    assert up.returncode == 4
    assert "layers 21-29 of smollm2-135m are held by no ready node" in up.stderr
    assert "--threads 3" in (machine.root / "home/logs/a.log").read_text()
    home = home_of(machine.environ)
    tracker = psutil.Process(home.record("t").pid)  # type: ignore[union-attr]
    assert tracker.environ()["MESHNET_ROUTE_RNG"] == "7"


def test_up_refuses_unreadable_toml_with_its_line(machine: Machine) -> None:
    (machine.root / "here/meshnet.toml").write_text('[mesh]\nmodel = "smollm2-135m\n')
    up = machine.run("up")
    assert up.returncode == 1
    assert "meshnet.toml is not valid TOML" in up.stderr
    assert "line 2" in up.stderr


def test_node_whose_tracker_does_not_answer_is_not_started(machine: Machine) -> None:
    words = ("--model", "smollm2-135m", "--shard", "0-14", "--tracker", "127.0.0.1:9")
    up = machine.run("up", "node", *words)
    assert up.returncode == 3
    assert "No tracker answers at http://127.0.0.1:9. Check the address" in up.stderr
    (machine.root / "here/meshnet.toml").write_text('[mesh]\ntracker = "127.0.0.1:9"\n[[node]]\nshard = "0-14"\n')
    assert machine.run("up").returncode == 3
    assert pids(machine) == {}


def test_model_that_nobody_knows_starts_nothing(machine: Machine) -> None:
    (machine.root / "here/meshnet.toml").write_text('[mesh]\nmodel = "no-such"\n[[node]]\nshard = "0-14"\n')
    up = machine.run("up")
    assert up.returncode == 1
    assert "no-such could not be fetched, so nothing was started" in up.stderr
    assert "smollm2-135m" in up.stderr, "it says what there is"
    assert pids(machine) == {}


def test_down_kills_who_does_not_stop(machine: Machine) -> None:
    assert machine.run("up", "tracker", FAKE_STUBBORN="tracker").returncode == 0
    home = home_of(machine.environ)
    (record,) = home.records()
    (result,) = processes.stop(home, [record], patience_s=0.2)
    assert result.outcome == "killed"
    assert not _lives(record.pid)
    assert home.records() == []


def test_down_leaves_a_process_that_only_has_the_pid(machine: Machine) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        run = machine.root / "home/run"
        run.mkdir(parents=True)
        started = psutil.Process(stranger.pid).create_time()
        # One with the pid and another start; one with both, whose command line is not ours.
        for name, start in (("n1", started - 500), ("n2", started)):
            record = {"kind": "node", "name": name, "pid": stranger.pid, "started": start, "url": "http://127.0.0.1:9"}
            (run / f"{name}.json").write_text(json.dumps(record))
        down = machine.run("down")
        assert down.returncode == 0
        assert down.stdout.count("was not running any more") == 2
        assert stranger.poll() is None
        assert not list(run.glob("*.json"))
    finally:
        stranger.communicate(b"\n", timeout=10)


def test_down_finds_a_daemon_that_is_still_starting(machine: Machine) -> None:
    """``up`` leaves a run file before the daemon does: an interrupted start leaves no orphan."""
    slow = machine.root / "fakes/daemons/tracker.py"
    slow.write_text("import time\n\ntime.sleep(60)\n")
    up = machine.run("up", "tracker", "--timeout", "1")
    assert up.returncode == 1
    assert "tracker not ready in time: starting the process" in up.stderr
    (pid,) = pids(machine).values()
    down = machine.run("down")
    assert down.returncode == 0 and "stopped" in down.stdout
    assert not _lives(pid)


def test_down_of_an_unknown_name_says_what_runs(machine: Machine) -> None:
    down = machine.run("down", "nobody")
    assert down.returncode == 1
    assert "No daemon is named 'nobody' here. Running: nothing." in down.stderr


@pytest.mark.slow
def test_up_node_takes_the_next_name_and_the_tracker_of_the_home(machine: Machine) -> None:
    assert machine.run("up", "tracker").returncode == 0
    for name in ("n1", "n2"):
        up = machine.run("up", "node", "--model", "smollm2-135m", "--shard", "0-29")
        assert up.returncode == 0, up.stderr
        assert name in pids(machine)
    assert machine.run("down", "n1").stdout.startswith("n1 ")
    assert set(pids(machine)) == {"tracker", "n2"}


@pytest.mark.slow
def test_unnamed_node_takes_no_dead_nodes_name_unless_it_is_the_same_command(machine: Machine) -> None:
    assert machine.run("up").returncode == 0
    dead = pids(machine)["n3"]
    os.kill(dead, signal.SIGKILL)
    _wait_dead(dead)
    words = ("up", "node", "--model", "smollm2-135m", "--shard", "0-29", "--threads", "2")
    assert machine.run(*words).returncode == 0
    assert set(pids(machine)) == {"tracker", "n1", "n2", "n4"}
    assert machine.run("down", "n4").returncode == 0
    assert machine.run(*words).returncode == 0
    assert machine.run(*words[:-2]).returncode == 0
    assert set(pids(machine)) == {"tracker", "n1", "n2", "n4", "n5"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "banana"), "'banana' is no size"),
        (("--kv-budget", "much"), "'much' is no size"),
        (("--shard", "0-14"), "Layers 0-14 of which model?"),
        (("--shard", "abc", "--model", "smollm2-135m"), "abc"),
        (("--relay", "ftp://a:7090"), "it begins with ws:// or wss://"),
    ],
)
def test_flags_that_cannot_be_are_usage_errors_before_any_start(
    machine: Machine, words: tuple[str, ...], said: str
) -> None:
    up = machine.run("up", "node", *words, COLUMNS="200")
    assert up.returncode == 2
    assert said in up.stderr
    assert not (machine.root / "home/run").exists() and not (machine.root / "home/nodes").exists()


def test_flags_for_a_daemon_that_runs_are_said_to_change_nothing(machine: Machine) -> None:
    assert machine.run("up", "tracker", "--host", "127.0.0.1").returncode == 0
    same = machine.run("up", "tracker", "--host", "127.0.0.1")
    assert "kept" in same.stdout and "flags do not change" not in same.stdout
    other = machine.run("up", "tracker", "--host", "127.0.0.1", "--port", "1")
    assert other.returncode == 0
    assert "tracker ran already, without --port 1: flags do not change a running daemon." in other.stdout
    assert "First: meshnet down tracker" in other.stdout


def test_logs_shows_and_follows(machine: Machine) -> None:
    assert "There are no logs" in machine.run("logs").stderr
    assert machine.run("up", "tracker").returncode == 0
    log = machine.root / "home/logs/tracker.log"
    with log.open("a") as file:
        file.write("one \x1b[31m line\n")
    shown = machine.run("logs", "tracker", "-n", "1")
    assert shown.stdout == "one \\x1b[31m line\n"
    words = [sys.executable, "-m", "meshnet.cli", "logs", "-f", "-n", "1"]
    follower = subprocess.Popen(words, env=machine.environ, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None
    assert follower.stdout.readline() == "one \\x1b[31m line\n"
    with log.open("a") as file:
        file.write("another\n")
    assert follower.stdout.readline() == "another\n"
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=10)
    assert follower.returncode == 130


@pytest.mark.parametrize("words", [("--nope",), ("nope",), ("up", "node", "--threads", "0")])
def test_usage_errors_exit_2(machine: Machine, words: tuple[str, ...]) -> None:
    assert machine.run(*words).returncode == 2


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _wait_dead(pid: int) -> None:
    deadline = time.monotonic() + 5
    while _lives(pid):
        assert time.monotonic() < deadline


def _is_daemon_of(process: psutil.Process, machine: Machine) -> bool:
    try:
        ours = process.environ().get("MESHNET_HOME") == machine.environ["MESHNET_HOME"]
        return ours and any(word.startswith("daemons.") for word in process.cmdline())
    except psutil.Error:
        return False


def test_real_tracker_comes_up_empty_and_goes_down(machine: Machine) -> None:
    """No fakes: the tracker needs no torch, so its whole life can be lived here."""
    environ = {"PYTHONPATH": ""}
    up = machine.run("up", "tracker", **environ)
    assert up.returncode == 0, up.stdout + up.stderr
    snapshot = json.loads(machine.run("status", "--json", **environ).stdout)
    assert len(snapshot["trackers"]) == 1 and snapshot["nodes"] == []
    chat = machine.run("chat", "Hello", **environ)
    assert chat.returncode == 4
    assert "No node serves a model" in chat.stderr
    assert "kept" in machine.run("up", "tracker", **environ).stdout
    (pid,) = pids(machine).values()
    assert "stopped" in machine.run("down", **environ).stdout
    assert not _lives(pid)
    assert not list((machine.root / "home/run").glob("*.json"))


def test_real_relay_of_the_file_takes_its_trackers_tickets(machine: Machine) -> None:
    (machine.root / "here/meshnet.toml").write_text("[tracker]\n[relay]\nmax_nodes = 3\n")
    environ = {"PYTHONPATH": ""}
    up = machine.run("up", **environ)
    assert up.returncode == 0, up.stdout + up.stderr
    home = home_of(machine.environ)
    tracker, relay = home.record("tracker"), home.record("relay")
    assert tracker is not None and relay is not None
    with urllib.request.urlopen(f"{tracker.url}/healthz", timeout=10) as answer:
        wallet = json.load(answer)["wallet"]
    process = psutil.Process(relay.pid)
    words = process.cmdline()
    assert words[words.index("--trackers") + 1] == wallet
    assert words[words.index("--splice-port") + 1] == "0", "another home's relay may have the usual one"
    assert process.environ()["MESHNET_MAX_NODES"] == "3"
    assert machine.run("up", **environ).stdout.count("kept") == 2
    assert machine.run("down", **environ).stdout.count("stopped") == 2


def test_foreground_becomes_the_daemon(machine: Machine) -> None:
    words = [sys.executable, "-m", "meshnet.cli", "up", "tracker", "--foreground"]
    run = subprocess.Popen(words, env=machine.environ, cwd=machine.root / "here", stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline() == "tracker begins with --name tracker --port 0\n"
    run.terminate()
    run.communicate(timeout=10)
    assert run.returncode == 0


def test_interrupted_up_says_that_what_was_started_goes_on(machine: Machine) -> None:
    words = [sys.executable, "-m", "meshnet.cli", "up", "tracker"]
    (machine.root / "fakes/daemons/tracker.py").write_text("import time\n\ntime.sleep(60)\n")
    run = subprocess.Popen(words, env=machine.environ, cwd=machine.root / "here", stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    assert run.stdout.readline().startswith("tracker   starting")
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=10)
    assert run.returncode == 130
    assert "What was started goes on" in out
    assert list(pids(machine)) == ["tracker"]


def test_model_that_a_node_serves_is_not_removed(machine: Machine) -> None:
    assert machine.run("up").returncode == 0
    removed = machine.run("models", "remove", "smollm2-135m")
    assert removed.returncode == 1
    assert "smollm2-135m is served now by n1, n2, n3." in removed.stderr
    assert machine.run("models", "remove", "--force", "smollm2-135m").returncode == 0
