"""Measures: programs that time meshnet as a whole. They may import everything; nobody imports them."""
