"""Caches of LLM serving, one a module."""
