"""The caches of LLM serving, one file each."""
