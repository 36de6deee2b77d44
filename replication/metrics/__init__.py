"""Measures of fidelity, answers and cost."""
