"""Which model families meshnet can cut into layers, and what their checkpoints leave unsaid."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.domain.errors import WeightsError


@dataclass(frozen=True, slots=True)
class Family:
    """``model_type`` is the text model's own; ``wrappers`` are types that keep it under ``text_config``."""

    model_type: str
    architecture: str
    wrappers: tuple[str, ...] = ()
    is_tied_by_default: bool = False
    """What the family means when a config does not say ``tie_word_embeddings``."""
    gguf_archs: tuple[str, ...] = ()
    """``general.architecture`` of GGUF files that convert exactly. Short on purpose: GGUF metadata leaves out facts
    of other families (attention scale, expert layout) that their config.json states."""


FAMILIES = (
    Family("llama", "LlamaForCausalLM", gguf_archs=("llama",)),
    Family("qwen2", "Qwen2ForCausalLM", gguf_archs=("qwen2",)),
    Family("qwen3", "Qwen3ForCausalLM", gguf_archs=("qwen3",)),
    Family("qwen3_moe", "Qwen3MoeForCausalLM"),
    Family("qwen3_5_text", "Qwen3_5ForCausalLM", ("qwen3_5",)),
    Family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", ("qwen3_5_moe",)),
    Family("mistral", "MistralForCausalLM"),
    Family("mixtral", "MixtralForCausalLM"),
    Family("gemma3_text", "Gemma3ForCausalLM", ("gemma3",), is_tied_by_default=True),
    Family("gpt_oss", "GptOssForCausalLM"),
    Family("phi3", "Phi3ForCausalLM"),
    Family("smollm3", "SmolLM3ForCausalLM", is_tied_by_default=True),
    Family("olmo2", "Olmo2ForCausalLM"),
    Family("granite", "GraniteForCausalLM"),
)


def find_family(model_type: str) -> Family:
    """By the text model's type or a wrapper's. Raises WeightsError naming the supported ones."""
    for family in FAMILIES:
        if model_type == family.model_type or model_type in family.wrappers:
            return family
    raise WeightsError(
        f"Models of type {model_type!r} are not supported. Supported: {supported_types()}.",
        code="unsupported_model",
    )


def find_gguf_family(architecture: str) -> Family:
    """By a GGUF file's ``general.architecture``. Raises WeightsError naming the supported ones."""
    for family in FAMILIES:
        if architecture in family.gguf_archs:
            return family
    known = ", ".join(arch for family in FAMILIES for arch in family.gguf_archs)
    raise WeightsError(
        f"GGUF files of architecture {architecture!r} are not supported. Supported: {known}. "
        "The model's safetensors folder may work where its GGUF does not.",
        code="unsupported_model",
    )


def supported_types() -> str:
    return ", ".join((family.wrappers or (family.model_type,))[0] for family in FAMILIES)
