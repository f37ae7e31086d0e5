"""``meshnet chat``: one-shot, in pipes, with data that would move the cursor, and as a conversation."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Machine
from fake_daemon import FakeMesh

from meshnet.cli.__main__ import main
from meshnet.cli.conversation import Conversation, ready_again
from meshnet.cli.question import Wishes, short_route
from meshnet.client.http import open_http
from meshnet.client.tracker import TrackerClient
from meshnet.domain.errors import NotFound

Mesh = tuple[str, FakeMesh]
Capsys = pytest.CaptureFixture[str]
N1, N2 = "walletn1xxxxxxxxxxxx.0-14", "walletn2xxxxxxxxxxxx.15-29"


def test_one_shot_prints_answer_and_then_what_it_took(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["chat", "--tracker", mesh[0], "Where is it?"]) == 0
    out, err = capsys.readouterr()
    assert out == "Paris is it.\n"
    assert re.fullmatch(
        r"scout \| n1\[0-14\] -> n2\[15-29\] \| 3 tokens \| first after \d+\.\d\d s( \| [\d.]+ tok/s)?\n", err
    )


def test_options_reach_the_request(mesh: Mesh, capsys: Capsys) -> None:
    words = ["--temperature", "0", "--max-tokens", "9", "--seed", "4", "--system", "Be brief.", "--route", "n1,n2"]
    words += ["--route-policy", "hop"]
    assert main(["chat", "--tracker", mesh[0], *words, "Hello"]) == 0
    (body,) = mesh[1].chats
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (body["route"], body["route_policy"]) == ([N1, N2], "hop")
    assert (body["temperature"], body["max_tokens"], body["seed"], body["model"]) == (0, 9, 4, "smollm2-135m")


def test_json_has_answer_route_and_usage(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["chat", "--tracker", mesh[0], "--json", "Hello"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["text"] == "Paris is it."
    assert (answer["mode"], answer["call_id"], answer["finish_reason"]) == ("scout", "call-1", "stop")
    assert (answer["prompt_tokens"], answer["completion_tokens"], answer["error"]) == (7, 3, None)
    assert answer["route"].startswith(f"smollm2-135m | {N1}[0-14]")


def test_control_characters_of_the_model_are_made_visible(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["chat", "--tracker", mesh[0], "escape"]) == 0
    assert capsys.readouterr().out == "\\x1b[2Jhi\\u202e\n\n"


@pytest.mark.parametrize(
    ("question", "code", "words"),
    [
        ("too long", 1, "The prompt has 9000 tokens, but this model's context holds 8192."),
        ("no route", 4, "Layers 15-29 of smollm2-135m are held by no live node."),
        ("pinned", 1, "The link broke (node n2, link_closed); the route is pinned."),
        ("cut", 1, "The answer was cut off: n2 died"),
        ("vanish", 1, "The answer was cut off:"),
    ],
)
def test_failures_say_why_and_keep_what_came(mesh: Mesh, capsys: Capsys, question: str, code: int, words: str) -> None:
    assert main(["chat", "--tracker", mesh[0], question]) == code
    out, err = capsys.readouterr()
    assert words in err
    assert out == ("Paris\n" if question in ("cut", "vanish") else "")


def test_unknown_model_says_what_there_is(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["chat", "--tracker", mesh[0], "--model", "gpt-9", "Hello"]) == 1
    assert "No model 'gpt-9' in this mesh. Served here: smollm2-135m." in capsys.readouterr().err


def test_mesh_without_nodes_is_not_ready(mesh: Mesh, capsys: Capsys) -> None:
    mesh[1].nodes.clear()
    assert main(["chat", "--tracker", mesh[0], "Hello"]) == 4
    assert "Start some with: meshnet up" in capsys.readouterr().err


def test_unreachable_tracker_names_address_and_what_to_start(capsys: Capsys) -> None:
    assert main(["chat", "--tracker", "127.0.0.1:9", "Hello"]) == 3
    assert "tracker at http://127.0.0.1:9 is not reachable; start it with: meshnet up" in capsys.readouterr().err


def test_tracker_of_another_machine_is_not_to_be_started_here(capsys: Capsys) -> None:
    assert main(["status", "--tracker", "http://no-such-host.invalid:7070"]) == 3
    said = capsys.readouterr().err
    assert "check the address, and that a tracker runs there" in said
    assert "start it with" not in said


def test_lost_node_is_said_with_what_starts_it_again(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["chat", "--tracker", mesh[0], "--route", "n1,n2", "pinned"]) == 1
    assert "Those of this machine are started again with: meshnet up" in capsys.readouterr().err


def test_empty_home_says_what_to_start(machine: Machine) -> None:
    chat = machine.run("chat", "Hello")
    assert chat.returncode == 3
    assert "Start one with: meshnet up" in chat.stderr


def test_pipe_in_is_a_question_and_end_of_file_is_none(machine: Machine, mesh: Mesh) -> None:
    piped = machine.run("chat", input="Where?\n", MESHNET_TRACKER=mesh[0])
    assert (piped.returncode, piped.stdout) == (0, "Paris is it.\n")
    assert mesh[1].chats[-1]["messages"][-1]["content"] == "Where?\n"
    nothing = machine.run("chat", MESHNET_TRACKER=mesh[0])
    assert (nothing.returncode, nothing.stdout, nothing.stderr) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_poor_terminals_get_clean_text(machine: Machine, mesh: Mesh, encoding: str) -> None:
    mesh[1].nodes[0]["name"] = "maschine-ä-漢"
    environ = {"LC_ALL": "C", "PYTHONIOENCODING": encoding, "NO_COLOR": "1", "TERM": "dumb"}
    for words in (("chat", "Hello"), ("status",), ("nodes",), ("coverage",)):
        result = machine.run(*words, MESHNET_TRACKER=mesh[0], **environ)
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout + result.stderr
        assert "Traceback" not in result.stderr


def test_proxies_of_the_environment_are_not_asked(machine: Machine, mesh: Mesh) -> None:
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), "http://127.0.0.1:9")
    assert machine.run("chat", "Hello", MESHNET_TRACKER=mesh[0], **proxies).returncode == 0


def test_reader_that_goes_away_leaves_no_traceback(machine: Machine, mesh: Mesh) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "meshnet.cli", "chat", "--tracker", mesh[0], "Hello"]
    chat = subprocess.run(words, env=machine.environ, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=30)
    os.close(writing)
    assert chat.returncode == 0
    assert chat.stderr == ""


class Typed:
    """Lines that a person types, given to the conversation's prompts."""

    def __init__(self, *lines: str) -> None:
        self._lines: Iterator[str] = iter(lines)
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def converse(url: str, *lines: str, route: tuple[str, ...] = ()) -> Typed:
    typed = Typed(*lines)
    with asyncio.Runner() as runner:
        Conversation(runner, url, Wishes(route=route), typed).run()
    return typed


def test_conversation_carries_its_history_until_reset(mesh: Mesh, capsys: Capsys) -> None:
    converse(mesh[0], "One", "Two", "/system Be kind.", "/reset", "Three", "/exit", "never")
    one, two, three = (body["messages"] for body in mesh[1].chats)
    assert one == [{"role": "user", "content": "One"}]
    answer = {"role": "assistant", "content": "Paris is it."}
    assert two == [*one, answer, {"role": "user", "content": "Two"}]
    assert three == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Three"}]


def test_conversation_pins_and_unpins_the_route(mesh: Mesh, capsys: Capsys) -> None:
    converse(mesh[0], "/route n1, n2", "One", "/route auto", "Two")
    assert [body.get("route") for body in mesh[1].chats] == [[N1, N2], None]
    assert "The route is pinned to n1 -> n2." in capsys.readouterr().out


def test_conversation_refuses_unknown_commands_and_models(mesh: Mesh, capsys: Capsys) -> None:
    converse(mesh[0], "/rout n1", "/model gpt-9", "/again", "/help")
    out, err = capsys.readouterr()
    assert mesh[1].chats == []
    assert "There is no command /rout" in out and "Nothing was asked yet." in out and "/system TEXT" in out
    assert "No model 'gpt-9'" in err


def test_conversation_joins_lines(mesh: Mesh, capsys: Capsys) -> None:
    typed = converse(mesh[0], "One \\", "and two")
    assert mesh[1].chats[0]["messages"][0]["content"] == "One \nand two"
    assert typed.prompts[:2] == ["> ", ". "]


def test_answer_that_is_cut_is_kept_and_can_be_asked_again(mesh: Mesh, capsys: Capsys) -> None:
    typed = converse(mesh[0], "cut", "y", "n", "Next")
    assert typed.prompts.count("Ask again? [y/N] ") == 2
    first, again, last = (body["messages"] for body in mesh[1].chats)
    assert first == again == [{"role": "user", "content": "cut"}]
    assert last[1:] == [{"role": "assistant", "content": "Paris"}, {"role": "user", "content": "Next"}]


def test_lost_tracker_is_waited_for_and_the_question_offered_again(mesh: Mesh, capsys: Capsys) -> None:
    typed = converse(mesh[0], "vanish", "y", "n")
    out = capsys.readouterr().out
    assert f"The tracker at {mesh[0]} is lost; waiting" in out and "It is back." in out
    assert typed.prompts.count("Ask again? [y/N] ") == 2
    assert [body["messages"][-1]["content"] for body in mesh[1].chats] == ["vanish", "vanish"]


async def test_wait_for_a_tracker_has_an_end() -> None:
    async with open_http() as http:
        assert not await ready_again(TrackerClient(http, "http://127.0.0.1:9"), 0.05)


def test_again_replaces_the_last_answer(mesh: Mesh, capsys: Capsys) -> None:
    converse(mesh[0], "One", "Two", "/again")
    assert mesh[1].chats[2]["messages"] == mesh[1].chats[1]["messages"]


def test_question_that_is_the_clients_fault_is_not_offered_again(mesh: Mesh, capsys: Capsys) -> None:
    typed = converse(mesh[0], "too long", "Hello")
    assert "Ask again? [y/N] " not in typed.prompts
    assert mesh[1].chats[1]["messages"] == [{"role": "user", "content": "Hello"}]


def test_conversation_with_a_dead_tracker_ends_at_once(capsys: Capsys) -> None:
    assert main(["chat", "--tracker", "127.0.0.1:9", "--model", "m", "--json", "Hello"]) == 3


def test_ambiguous_node_name_is_refused(mesh: Mesh) -> None:
    mesh[1].nodes[1]["name"] = "n1"
    with pytest.raises(NotFound, match="'n1' means 2 nodes"):
        converse(mesh[0], route=("n1",))


def test_ctrl_c_stops_the_answer_and_not_the_program(machine: Machine, mesh: Mesh) -> None:
    terminal = Terminal([sys.executable, "-m", "meshnet.cli", "chat", "--tracker", mesh[0]], machine)
    try:
        terminal.wait_for("> ")
        terminal.type("hold\n")
        terminal.wait_for("Paris")
        terminal.interrupt()
        terminal.wait_for("stopped")
        terminal.wait_for("\n> ")
        mesh[1].hold.set()
        terminal.type("Hello\n")
        terminal.wait_for("Paris is it.")
        terminal.wait_for("\n> ")
        terminal.type("\x04")
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()
    assert mesh[1].chats[1]["messages"][1] == {"role": "assistant", "content": "Paris"}


class Terminal:
    """A program on a pseudo terminal."""

    def __init__(self, words: list[str], machine: Machine) -> None:
        self._master, slave = pty.openpty()
        environ = {**machine.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            words, env=environ, cwd=Path(machine.root), stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def wait_for(self, text: str) -> None:
        """Read on until ``text`` comes; what came up to it is consumed."""
        deadline = time.monotonic() + 20
        while text not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come; seen: {self._seen!r}"
            self._seen += os.read(self._master, 4096).decode("utf-8", "replace")
        self._seen = self._seen.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_short_route_names_nodes_where_it_can() -> None:
    signature = f"m | {N1}[0-14] -> {N2}[15-29]"
    assert short_route(signature, {N1: "a"}) == "a[0-14] -> walletn2.15-29[15-29]"
    assert short_route("", {}) == ""


@pytest.mark.parametrize("words", [("caf\udce9",), ("--route", "\udce9", "Hello"), ("--system", "\ud800", "Hello")])
def test_text_that_is_not_utf8_is_refused_before_it_is_sent(mesh: Mesh, capsys: Capsys, words: tuple[str, ...]) -> None:
    assert main(["chat", "--tracker", mesh[0], *words]) == 2
    assert "is not UTF-8 text" in capsys.readouterr().err
    assert mesh[1].chats == []


def test_pipe_that_is_not_utf8_is_refused(machine: Machine, mesh: Mesh) -> None:
    words = [sys.executable, "-m", "meshnet.cli", "chat", "--tracker", mesh[0]]
    chat = subprocess.run(words, env=machine.environ, input=b"caf\xe9\n", capture_output=True, timeout=30)
    assert chat.returncode == 2
    assert chat.stderr.startswith(b"error: ") and chat.stderr.count(b"\n") == 1


def test_line_under_the_answer_says_what_died_on_the_way(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["chat", "--tracker", mesh[0], "reroute"]) == 0
    assert " | rerouted once: n2 died | because it is proven" in capsys.readouterr().err


def test_unknown_node_of_a_route_is_refused_at_once(mesh: Mesh, capsys: Capsys) -> None:
    converse(mesh[0], "/route n1,n7", "/route")
    out, err = capsys.readouterr()
    assert err == "error: No node is called 'n7' here. Nodes: n1, n2.\n"
    assert "The mesh chooses the route." in out
    assert main(["chat", "--tracker", mesh[0], "--route", "n7", "Hello"]) == 1
    assert mesh[1].chats == []


def test_refused_key_names_its_variable_and_how_to_make_one(mesh: Mesh, capsys: Capsys) -> None:
    assert main(["chat", "--tracker", mesh[0], "no key"]) == 1
    err = capsys.readouterr().err
    assert "MESHNET_API_KEY" in err and "meshnet keys create NAME --scope chat" in err


def test_ctrl_c_ends_a_single_question_on_a_line_of_its_own(machine: Machine, mesh: Mesh) -> None:
    words = [sys.executable, "-m", "meshnet.cli", "chat", "--tracker", mesh[0], "hold"]
    chat = subprocess.Popen(words, env=machine.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert chat.stdout is not None
    try:
        assert chat.stdout.read(5) == b"Paris"
        chat.send_signal(signal.SIGINT)
        out, err = chat.communicate(timeout=20)
    finally:
        chat.kill()
    assert (chat.returncode, out, err) == (130, b"\n", b"stopped\n")
