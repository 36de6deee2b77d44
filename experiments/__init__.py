"""Experiments, one file per group of claims."""
