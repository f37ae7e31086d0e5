"""Every way an answer ends: limits, stop strings, cancel, refusals, lost links, stalls, failing engines."""

from __future__ import annotations

import asyncio

import msgspec

from meshnet.wire.messages import Generate, Open, Opened
from tests.mesh.fake_engine import expected_text, expected_tokens, prompt_ids
from tests.mesh.ring import Mesh, RunningNode, open_mesh

PROMPT = "what is a mesh"
LONG = 1500


async def ring(mesh: Mesh, *shards: str, **kwargs: int) -> list[RunningNode]:
    return [await mesh.add(shard, **kwargs) for shard in shards or ("0-9", "10-19", "20-29")]


async def test_a_stop_string_ends_the_answer_before_it() -> None:
    text = expected_text(prompt_ids(PROMPT), 12)
    word = text.split()[5]
    async with open_mesh() as mesh:
        answer = await mesh.ask(mesh.route(*await ring(mesh)), stop=(word,))
        end = await answer.finished()
        assert answer.text == text[: text.index(word)]
        assert end.finish_reason == "stop"
        await mesh.all_free()


async def test_max_tokens_beyond_the_context_is_cut() -> None:
    prompt = " ".join(f"word{n}" for n in range(2040))
    async with open_mesh() as mesh:
        answer = await mesh.ask(mesh.route(*await ring(mesh, "0-29")), prompt, max_tokens=500)
        end = await answer.finished()
        assert (end.finish_reason, end.completion_tokens) == ("length", 8)


async def test_a_prompt_longer_than_the_context_is_the_clients_fault() -> None:
    prompt = " ".join(f"word{n}" for n in range(2048))
    async with open_mesh() as mesh:
        answer = await mesh.ask(mesh.route(*await ring(mesh, "0-29")), prompt)
        failed = await answer.failed()
        assert (failed.code, failed.culprit, failed.param) == ("context_length_exceeded", None, "messages")
        assert "2048" in failed.message
        await mesh.all_free()


async def test_cancel_frees_every_node_within_a_second() -> None:
    async with open_mesh() as mesh:
        hops = mesh.route(*await ring(mesh))
        answer = await mesh.ask(hops, max_tokens=LONG)
        await answer.tokens(3)
        mesh.cancel(hops, 1)
        await mesh.all_free(within_s=1.0)
        assert not answer.end.done()


async def test_a_cancel_right_behind_generate_frees_every_node() -> None:
    async with open_mesh() as mesh:
        hops = mesh.route(*await ring(mesh))
        for number in range(1, 20):
            await mesh.ask(hops, max_tokens=LONG)
            await asyncio.sleep(0.0005 * number)
            mesh.cancel(hops, number)
        await mesh.all_free(within_s=2.0)


async def test_the_trackers_death_frees_every_node() -> None:
    async with open_mesh() as mesh:
        answer = await mesh.ask(mesh.route(*await ring(mesh)), max_tokens=LONG)
        await answer.tokens(2)
        await mesh.links.close()
        await mesh.all_free()


async def test_death_of_any_hop_names_it_and_frees_the_others() -> None:
    for victim in (1, 2):
        async with open_mesh() as mesh:
            nodes = await ring(mesh)
            answer = await mesh.ask(mesh.route(*nodes), max_tokens=LONG)
            await answer.tokens(2)
            await mesh.kill(nodes[victim])
            failed = await answer.failed()
            assert failed.culprit == nodes[victim].node_id
            assert failed.code == "link_closed"
            await mesh.all_free()


async def test_a_full_node_refuses_and_is_named() -> None:
    async with open_mesh() as mesh:
        head = await mesh.add("0-9")
        middle = await mesh.add("10-19", kv_budget=100)
        tail = await mesh.add("20-29")
        failed = await (await mesh.ask(mesh.route(head, middle, tail))).failed()
        assert (failed.code, failed.culprit) == ("kv_full", middle.node_id)
        await mesh.all_free()


async def test_an_unreachable_hop_is_named() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh, "0-9", "10-29")
        await nodes[1].site.close()
        failed = await (await mesh.ask(mesh.route(*nodes))).failed()
        assert (failed.code, failed.culprit) == ("unreachable", nodes[1].node_id)
        await mesh.all_free()


async def test_a_route_of_another_epoch_or_revision_is_refused() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh, "0-9", "10-29")
        hops = mesh.route(*nodes)
        stale = (hops[0], msgspec.structs.replace(hops[1], epoch=7))
        failed = await (await mesh.ask(stale)).failed()
        assert (failed.code, failed.culprit) == ("epoch_changed", nodes[1].node_id)

        def other_weights(ask: Generate) -> Generate:
            return msgspec.structs.replace(ask, revision="fedcba9876543210")

        failed = await (await mesh.ask(hops, change=other_weights)).failed()
        assert (failed.code, failed.culprit) == ("epoch_changed", nodes[0].node_id)
        await mesh.all_free()


async def test_another_node_at_the_hops_address_is_an_epoch_change() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh, "0-9", "10-29", "10-29")
        hops = mesh.route(nodes[0], nodes[1])
        moved = (hops[0], msgspec.structs.replace(hops[1], url=nodes[2].site.url))
        failed = await (await mesh.ask(moved)).failed()
        assert (failed.code, failed.culprit) == ("epoch_changed", nodes[1].node_id)
        await mesh.all_free()


async def test_a_failing_step_ends_its_session_and_not_the_node() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        nodes[1].engine.fail_next = ZeroDivisionError("a bug in the engine")
        failed = await (await mesh.ask(mesh.route(*nodes))).failed()
        assert (failed.code, failed.culprit) == ("engine_failed", nodes[1].node_id)
        assert "bug" not in failed.message
        answer = await mesh.ask(mesh.route(*nodes))
        await answer.finished()
        assert answer.token_ids == expected_tokens(prompt_ids(PROMPT), 12)
        await mesh.all_free()


async def test_a_node_that_computes_for_long_is_not_blamed() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        nodes[1].engine.gate.clear()
        answer = await mesh.ask(mesh.route(*nodes))
        await asyncio.sleep(1.2)  # Four times the silence after which the hops are probed.
        assert not answer.end.done()
        nodes[1].engine.gate.set()
        await answer.finished()
        assert answer.token_ids == expected_tokens(prompt_ids(PROMPT), 12)


async def test_a_hop_that_falls_silent_is_blamed() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh, "0-9", "10-19")
        async with mesh.scripted("20-29") as mute:
            answer = await mesh.ask((*mesh.route(*nodes), mute.hop(20, 29)))
            opened = await mute.heard(Open)
            mute.tell(nodes[0].node_id, Opened(opened.session, opened.attempt))
            failed = await answer.failed()  # It heard rows and PROBE, and answers neither.
            assert (failed.code, failed.culprit) == ("silent", mute.node_id)
            await mesh.all_free()


async def test_a_node_that_forgot_the_session_is_blamed() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        answer = await mesh.ask(mesh.route(*nodes), max_tokens=LONG)
        await answer.tokens(3)
        for session in nodes[2].node.sessions:
            nodes[2].node.hops.drop(session.key)
        failed = await answer.failed()
        assert (failed.code, failed.culprit) == ("session_lost", nodes[2].node_id)
        await mesh.all_free()


async def test_draining_nodes_say_so() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        answer = await mesh.ask(mesh.route(*nodes), max_tokens=LONG)
        await answer.tokens(2)
        await nodes[1].node.drain()
        failed = await answer.failed()
        assert (failed.code, failed.culprit) == ("shutting_down", nodes[1].node_id)
        failed = await (await mesh.ask(mesh.route(*nodes))).failed()
        assert (failed.code, failed.culprit) == ("draining", nodes[1].node_id)
        await mesh.all_free()


async def test_head_tells_its_tracker_alone_that_it_has_an_answer_in_hand() -> None:
    async with open_mesh() as mesh:
        nodes = await ring(mesh)
        answer = await mesh.ask(mesh.route(*nodes), max_tokens=LONG)
        await answer.tokens(2)
        assert await mesh.probe(nodes[0], 1)
        assert not await mesh.probe(nodes[0], 99)
        assert not await mesh.probe(nodes[1], 1)
        mesh.cancel(mesh.route(*nodes), 1)
        await mesh.all_free()
