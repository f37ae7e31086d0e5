"""The law: pure values and decisions. No IO, no asyncio, no clock, no dice: ``now`` and ``rng`` are arguments."""
