"""Typed clients of the daemons' HTTP interfaces, and the only httpx in the house."""
