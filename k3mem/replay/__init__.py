"""Traces: formats, the clairvoyant bound, reports."""
