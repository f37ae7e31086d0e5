from __future__ import annotations

import math

import pytest

from meshnet.domain.errors import StartError
from meshnet.domain.routing import RoutingConfig, is_positive_number


def test_defaults_are_the_records():
    config = RoutingConfig()
    assert (config.explore_share, config.weight_alpha, config.stats_half_life_s) == (0.3, 1.0, 600.0)
    assert (config.min_sample_tokens, config.policy) == (8, "adr")


@pytest.mark.parametrize(
    ("field", "value", "range_"),
    [
        ("explore_share", -0.1, "0 to 1"),
        ("explore_share", 1.1, "0 to 1"),
        ("explore_share", math.nan, "0 to 1"),
        ("explore_share", True, "0 to 1"),
        ("weight_alpha", -1.0, "0 to 1000"),
        ("weight_alpha", math.inf, "0 to 1000"),
        ("stats_half_life_s", 0.0, "1 to 604800"),
        ("min_sample_tokens", 0, "1 to 100000"),
        ("min_sample_tokens", "8", "1 to 100000"),
    ],
)
def test_out_of_range_is_refused_naming_field_and_range(field, value, range_):
    with pytest.raises(StartError, match=f"{field} is .*{range_}"):
        RoutingConfig(**{field: value})


def test_a_broken_number_of_tokens_is_refused():
    with pytest.raises(StartError, match="whole number"):
        RoutingConfig(min_sample_tokens=8.5)  # type: ignore[arg-type]


def test_unknown_policy_is_refused_naming_the_known():
    with pytest.raises(StartError, match="adr, hop, greedy"):
        RoutingConfig(policy="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1, 0.5, 1e300])
def test_positive_numbers(value):
    assert is_positive_number(value)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "1", None, 10**400])
def test_everything_else_is_none(value):
    assert not is_positive_number(value)
