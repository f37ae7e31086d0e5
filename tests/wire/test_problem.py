from __future__ import annotations

import inspect

import pytest

from meshnet.domain import errors
from meshnet.wire import problem

ERRORS = [
    (errors.InvalidRequest("x", param="stop"), 400),
    (errors.ContextLengthExceeded(9000, 8192), 400),
    (errors.BadPin("x"), 400),
    (errors.InvalidRequest("x", code="method_not_allowed"), 405),
    (errors.InvalidRequest("x", code="body_too_large"), 413),
    (errors.Forbidden("x"), 403),
    (errors.NotFound("x", code="model_not_found"), 404),
    (errors.Conflict("x"), 409),
    (errors.EpochChanged("x"), 409),
    (errors.Overloaded("x"), 503),
    (errors.NoRoute("x"), 503),
    (errors.NodeFailed("x", code="stalled"), 502),
    (errors.DeadlineExceeded("x"), 504),
    (errors.MeshnetError("x"), 500),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: getattr(value, "code", None))
def test_error_goes_out_and_comes_back_as_what_it_was(error: errors.MeshnetError, status: int) -> None:
    assert problem.status_of(error) == status
    back = problem.error_from(status, problem.encode(error))
    assert (back.message, back.code) == (error.message, error.code)
    assert isinstance(error, type(back)) and type(back) is not Exception
    kind = problem.body_of(error)["error"]["type"]
    assert kind == ("server_error" if status >= 500 else "permission_error" if status == 403 else kind)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"error": "text"}', b"\xff", b"[" * 100_000, b'{"error":{}}']
)
def test_answer_without_our_shape_still_is_an_error(body: bytes) -> None:
    error = problem.error_from(502, body)
    assert isinstance(error, errors.NodeFailed) and "502" in error.message


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.InvalidRequest("x"), errors.InvalidRequest),
        (errors.Overloaded("x", code="shutting_down"), errors.Overloaded),
        (errors.DeadlineExceeded("x"), errors.DeadlineExceeded),
        (errors.NodeFailed("x", code="link_closed"), errors.NodeFailed),
        (errors.NoRoute("x"), errors.NoRoute),
    ],
)
def test_error_in_a_stream_comes_back_without_its_status(error: errors.MeshnetError, kind: type) -> None:
    assert type(problem.error_in_event(problem.encode(error))) is kind


def test_every_error_of_the_tree_is_drawn_in_its_docstring() -> None:
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.MeshnetError):
            assert name in (errors.__doc__ or "")
