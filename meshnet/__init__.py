"""meshnet: one large language model over many ordinary machines."""

__version__ = "0.1.0"
