from __future__ import annotations

import pytest

from meshnet.domain.errors import WeightsError
from meshnet.weights.naming import Place, place_tensor

Q = "self_attn.q_proj.weight"


@pytest.mark.parametrize(
    "root", ["model.", "", "model.language_model.", "language_model.model.", "model.language_model.model."]
)
def test_every_root_becomes_the_same_names(root: str) -> None:
    assert place_tensor(f"{root}layers.2.{Q}", 3, "f") == Place("layer", f"model.layers.2.{Q}", 2)
    assert place_tensor(f"{root}embed_tokens.weight", 3, "f") == Place("embedding", "model.embed_tokens.weight")
    assert place_tensor(f"{root}norm.weight", 3, "f") == Place("head", "model.norm.weight")


@pytest.mark.parametrize("name", ["lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"])
def test_lm_head_under_any_root(name: str) -> None:
    assert place_tensor(name, 3, "f") == Place("head", "lm_head.weight")


@pytest.mark.parametrize(
    "name",
    [
        "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
        "model.visual.blocks.0.attn.qkv.weight",
        "model.vision_tower.embeddings.weight",
        "multi_modal_projector.mm_input_projection_weight.x",
        "mtp.layers.0.self_attn.q_proj.weight",
        "model.layers.3.self_attn.q_proj.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
    ],
)
def test_what_a_text_shard_never_runs_is_left_out(name: str) -> None:
    assert place_tensor(name, 3, "f") is None


def test_per_expert_and_scale_names_stay_as_they_are() -> None:
    name = "model.layers.0.mlp.experts.7.gate_proj.weight_scale_inv"
    assert place_tensor(name, 3, "f") == Place("layer", name, 0)


@pytest.mark.parametrize("name", ["model.mystery.weight", "transformer.h.0.attn.weight", "model.layers.x.weight"])
def test_a_name_that_fits_nowhere_is_an_error_not_a_loss(name: str) -> None:
    with pytest.raises(WeightsError, match=name):
        place_tensor(name, 3, "some.safetensors")
