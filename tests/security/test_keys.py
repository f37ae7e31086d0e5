from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound, StartError
from meshnet.domain.keys import KeyRing, Scope, check_bind, check_key, demand, make_key
from meshnet.wire.keyfile import decode_keys, encode_keys

ALL_SCOPES: tuple[Scope, ...] = ("chat", "read", "admin", "join")


def key(scope: Scope, byte: int = 1, name: str = "k"):
    return make_key(name, frozenset({scope}), bytes([byte]) * 32, 5.0)


def test_a_key_is_found_by_its_text_alone_and_by_no_other() -> None:
    text, record = key("chat")
    ring = KeyRing([record])
    assert ring.find(text) == record
    for wrong in (
        "",
        text[:-1],
        text + "A",
        text[:-1] + ("A" if text[-1] != "A" else "B"),
        f"mnk_{'a' * 8}_{'A' * 43}",
    ):
        assert ring.find(wrong) is None


def test_the_secret_is_in_no_record_and_in_no_file() -> None:
    text, record = key("admin")
    secret = text.rsplit("_", 1)[1]
    assert secret not in repr(record)
    assert secret.encode() not in encode_keys(KeyRing([record]))


def test_revoked_keys_open_nothing_and_stay_listed() -> None:
    text, record = key("chat")
    ring = KeyRing([record]).revoke("k", 9.0)
    assert ring.find(text) is None
    assert [(r.name, r.revoked) for r in ring.records] == [("k", 9.0)]
    with pytest.raises(NotFound):
        ring.revoke("k", 10.0)
    assert not ring.has_live()


def test_names_of_live_keys_are_unique() -> None:
    ring = KeyRing([key("chat", 1)[1]])
    with pytest.raises(Conflict):
        ring.add(key("chat", 2)[1])
    assert len(ring.revoke("k", 1.0).add(key("chat", 2)[1])) == 2


@pytest.mark.parametrize("scopes", [set(), {"join", "chat"}])
def test_odd_scopes_are_refused(scopes: set[Scope]) -> None:
    with pytest.raises(InvalidRequest):
        make_key("k", frozenset(scopes), b"1" * 32, 0.0)


def test_key_files_come_back_as_they_were_and_damaged_ones_open_nothing() -> None:
    ring = KeyRing([key(scope, i, f"k{i}")[1] for i, scope in enumerate(ALL_SCOPES, 1)]).revoke("k2", 7.0)
    data = encode_keys(ring)
    assert decode_keys(data).records == ring.records
    for damaged in (data[:-20], data.replace(b"chat", b"root"), b"{}", b""):
        with pytest.raises(StartError):
            decode_keys(damaged)


# need, and the scopes that suffice beyond local. None: no key is asked for.
TABLE: dict[str, set[Scope] | None] = {
    "public": None,
    "models": {"chat", "read", "admin"},
    "chat": {"chat", "admin"},
    "read": {"read", "admin"},
    "admin": {"admin"},
    "join": {"join", "admin"},
    "forward": {"admin"},
    "peer": {"admin"},
    "lease": None,
    "link": None,
}


@pytest.mark.parametrize(("need", "profile"), itertools.product(TABLE, ("lan", "exposed")))
def test_each_need_takes_its_scopes_and_no_other(need, profile) -> None:
    wanted, scopes = demand(profile, need), TABLE[need]
    assert wanted.signed == (need in ("join", "lease"))
    for scope in ALL_SCOPES:
        record = key(scope)[1]
        if scopes is None or scope in scopes:
            check_key(wanted, record)
        else:
            with pytest.raises(Forbidden) as refused:
                check_key(wanted, record)
            assert refused.value.code == "wrong_scope"
    if scopes is not None:
        with pytest.raises(Forbidden) as refused:
            check_key(wanted, None)
        assert refused.value.code == "unauthorized"


@pytest.mark.parametrize("need", TABLE)
def test_local_asks_for_no_key_but_for_signatures(need) -> None:
    check_key(demand("local", need), None)
    assert demand("local", need).signed == (need in ("join", "lease"))


@pytest.mark.parametrize(
    ("host", "profile", "has_keys", "has_tls", "flag"),
    [
        ("127.0.0.1", "local", False, False, None),
        ("::1", "local", False, False, None),
        ("0.0.0.0", "local", False, False, "--profile lan"),
        ("0.0.0.0", "local", True, True, "--profile lan"),
        ("10.0.0.5", "lan", False, False, "keys create"),
        ("10.0.0.5", "lan", True, False, None),
        ("0.0.0.0", "exposed", True, False, "--tls-certificate"),
        ("0.0.0.0", "exposed", False, True, "keys create"),
        ("0.0.0.0", "exposed", True, True, None),
    ],
)
def test_no_daemon_listens_for_strangers_without_keys(host, profile, has_keys, has_tls, flag) -> None:
    if flag is None:
        check_bind(host, profile, has_keys=has_keys, has_tls=has_tls)
        return
    with pytest.raises(StartError, match=flag):
        check_bind(host, profile, has_keys=has_keys, has_tls=has_tls)


@given(st.text(max_size=80))
def test_no_text_opens_anything_by_chance(text: str) -> None:
    assert KeyRing([key("admin")[1]]).find(text) is None
