"""Executors that come with k3mem."""
