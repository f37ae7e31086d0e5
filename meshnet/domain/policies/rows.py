"""One line of the routing table, the same for every policy."""

from __future__ import annotations

from meshnet.domain.candidates import Candidate
from meshnet.domain.routing import ArmRow
from meshnet.domain.routing_stats import ArmStats


def arm_row(
    candidate: Candidate, arm: ArmStats, best_proven_tps: float | None, share: float, predicted_tps: float
) -> ArmRow:
    coefficient = arm.tps / best_proven_tps if arm.tps is not None and best_proven_tps else None
    return ArmRow(
        candidate=candidate,
        status=arm.status,
        tps=arm.tps,
        coefficient=coefficient,
        expected_share=share,
        predicted_tps=predicted_tps,
        samples=arm.samples,
        mass=arm.mass,
        age_s=arm.age_s,
        ttft_s_per_prompt_token=arm.ttft_s_per_prompt_token,
        decode_s_per_token=arm.decode_s_per_token,
        success_share=arm.success_share,
        failures=arm.failures,
        spread_tps=arm.spread_tps,
    )
