from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from meshnet.domain.chat import ChatMessage
from meshnet.domain.errors import InvalidRequest
from meshnet.engine.templates import DEFAULT_TEMPLATE, TemplateRenderer

ASK = [ChatMessage("user", "hi")]


def _render(source: str, messages: list[ChatMessage] = ASK, timeout_s: float = 5.0) -> str:
    with closing(TemplateRenderer(source, {"bos_token": "<s>"})) as renderer:
        return renderer.render(messages, timeout_s)


def _refusal(source: str, timeout_s: float = 5.0) -> str:
    with pytest.raises(InvalidRequest) as raised:
        _render(source, timeout_s=timeout_s)
    assert raised.value.code == "chat_template"
    assert "Traceback" not in raised.value.message
    return raised.value.message


@pytest.fixture(scope="module")
def default() -> Iterator[TemplateRenderer]:
    with closing(TemplateRenderer(DEFAULT_TEMPLATE, {})) as renderer:
        yield renderer


def test_the_default_writes_plain_turns(default: TemplateRenderer) -> None:
    turns = [ChatMessage("system", "Be brief."), ChatMessage("user", "日本 😀")]
    assert default.render(turns) == "System: Be brief.\nUser: 日本 😀\nAssistant:"


def test_a_renderer_answers_again_and_again(default: TemplateRenderer) -> None:
    assert [default.render(ASK) for _ in range(3)] == ["User: hi\nAssistant:"] * 3


def test_tokens_and_helpers_of_published_templates_are_there() -> None:
    loop = "{% for m in messages %}{% break %}{% endfor %}"
    source = "{{ bos_token }}{{ messages | tojson }}" + loop + "{{ strftime_now('%Y')[:2] }}"
    assert _render(source) == '<s>[{"role": "user", "content": "hi"}]20'


def test_a_refusal_comes_with_the_templates_own_words() -> None:
    assert "no such order" in _refusal("{{ raise_exception('no such order') }}")


def test_a_broken_template_is_refused_every_time() -> None:
    with closing(TemplateRenderer("{% if %}", {})) as renderer:
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="Expected an expression"):
                renderer.render(ASK)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('touch marker') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_does_not_reach_python(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _refusal(source)
    assert not list(tmp_path.iterdir())


def test_an_endless_template_is_ended_and_the_next_request_is_served() -> None:
    spin = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'spin' %}" + spin + "{% endif %}ok"
    with closing(TemplateRenderer(source, {})) as renderer:
        with pytest.raises(InvalidRequest, match="did not end"):
            renderer.render([ChatMessage("user", "spin")], timeout_s=0.5)
        assert renderer.render(ASK) == "ok"


@pytest.mark.parametrize("source", ["{{ 'x' * 10**10 }}", "{{ '%9999999999d' % 1 }}"])
def test_a_template_that_outgrows_its_memory_is_refused(source: str) -> None:
    _refusal(source)


def test_a_child_that_was_ended_between_requests_is_replaced() -> None:
    with closing(TemplateRenderer(DEFAULT_TEMPLATE, {})) as renderer:
        first = renderer.render(ASK)
        child = renderer._child
        assert child is not None
        child.kill()
        child.wait()
        assert renderer.render(ASK) == first
