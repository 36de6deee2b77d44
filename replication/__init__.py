"""Chunk-level KV reuse: build, fuse and measure."""
