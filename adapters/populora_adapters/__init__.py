"""Simulator adapters: one simulator, one file, imported at first use."""
