"""LMCache's own blender on a transformers model, as the referee of our `cacheblend-lmcache`.

Real are LMCache's engine, its segments and look-up, its loading of KV with rotation and zeroed separators, and
`LMCBlender`, which selects and writes back. Inside vLLM on a GPU its layer loop calls vLLM's modules; here the same
loop calls those of transformers, and none of our fusion code.
"""

import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache

from replication.chunk import ChunkKV
from replication.errors import ReplicationError
from replication.fuse import Prefill, Report
from replication.lmcache_engine import contained, require_lmcache, start_engine
from replication.model import Model
from replication.prompt import ChunkedPrompt, chain

SEPARATOR = " # # "
MODELS = ("LlamaForCausalLM", "Qwen2ForCausalLM")
_BLOCK = 64


def join(prompt: ChunkedPrompt, separator: tuple[int, ...]) -> ChunkedPrompt:
    """The prompt with these token ids, and nothing else, between its segments."""
    parts: list[tuple[str, tuple[int, ...]]] = []
    for segment in prompt.segments:
        if segment.kind != "separator":
            parts += [("separator", separator), (segment.kind, segment.ids)]
    return chain(parts[1:], prompt.bos)


class LMCacheBlender:
    """LMCache's engine and blender for one model.

    separator: text that its segments are split at. check_layers: as LMCache takes them. tokens: longest prompt.
    Errors: ReplicationError for a missing package, or a model that LMCache's loop is not for.
    """

    def __init__(
        self, model: Model, separator: str = SEPARATOR, check_layers: tuple[int, ...] = (1,), tokens: int = 2048
    ):
        require_supported(model)
        self.model, self.text = model, separator
        heads, size = model.config.num_key_value_heads, model.layers[0].self_attn.head_dim
        # vLLM's paged cache; LMCache's two buffers together have the size of one of its layers
        blocks = -(-2 * tokens // _BLOCK)
        self.pages = [torch.zeros(2, blocks, _BLOCK, heads, size, dtype=model.dtype) for _ in model.layers]
        with contained():
            from lmcache.v1.config import LMCacheEngineConfig
            from lmcache.v1.gpu_connector.gpu_connectors import VLLMBufferLayerwiseGPUConnector
            from lmcache.v1.metadata import LMCacheMetadata

            config = LMCacheEngineConfig.from_defaults(
                # what is stored fills whole pages of it
                max_local_cpu_size=sum(page.nbytes for page in self.pages) / 2**30 + 1 / 16,
                enable_blending=True,
                use_layerwise=True,
                blend_special_str=separator,
                blend_check_layers=list(check_layers),
                blend_recompute_ratios=[1.0],  # `prefill` sets it
            )
        shape = (len(model.layers), 2, config.chunk_size, heads, size)
        metadata = LMCacheMetadata(model.tokenizer.name_or_path, 1, 1, 0, 0, model.dtype, shape)
        with _cpu_for_cuda():
            connector = VLLMBufferLayerwiseGPUConnector.from_metadata(metadata, use_gpu=True, device=model.device)
            self.engine = start_engine(config, metadata, connector)
            connector.fused_rotary_emb = Rotary(model).moved
            self._loop = _LayerLoop(model)
            self._blender = _blender(self.engine, connector, config, self._loop)

    @property
    def separator(self) -> tuple[int, ...]:
        """The token ids that LMCache looks for between segments."""
        return tuple(self.engine.token_database.sep_tokens.tolist())

    def store(self, chunk: ChunkKV) -> None:
        """Hand a chunk that was prefilled alone to LMCache, layer by layer, through vLLM's pages."""
        n = len(chunk.ids)
        for page, keys, values in zip(self.pages, chunk.keys, chunk.values, strict=True):
            page[0].flatten(0, 1)[:n] = keys.transpose(0, 1)
            page[1].flatten(0, 1)[:n] = values.transpose(0, 1)
        with _cpu_for_cuda():
            for _ in self.engine.store_layer(
                torch.tensor(chunk.ids), kvcaches=self.pages, slot_mapping=torch.arange(n)
            ):
                pass

    def found(self, ids: tuple[int, ...]) -> int:
        """How many of the prompt's first tokens LMCache's look-up says it has."""
        return self.engine.lookup(torch.tensor(ids))

    @torch.inference_mode()
    def prefill(self, ids: tuple[int, ...], ratios: Sequence[float] = (0.15,), mask: str = "position") -> Prefill:
        """What vLLM does with LMCache: blend what is found, then prefill the rest over it.

        ratios: of all tokens found, separators included, as LMCache takes them: it uses the first alone. mask: which
        keys a recomputed row sees: those up to its own `position`, or by FlashAttention's causal mask, which LMCache
        calls and which aligns the last row with the last key (`end`). The report's `selected` are LMCache's indices,
        separators included.
        """
        found, cache, report = self.found(ids), DynamicCache(), Report()
        self._blender.common_metadata.recomp_ratios, self._loop.mask = ratios, mask
        if found:
            tokens, slots = torch.tensor(ids[:found]), torch.arange(found)
            with _cpu_for_cuda():
                self._blender.blend(
                    tokens, torch.ones(found, dtype=torch.bool), kvcaches=self.pages, slot_mapping=slots
                )
            for index, page in enumerate(self.pages):
                keys, values = (half.flatten(0, 1)[:found].transpose(0, 1)[None].clone() for half in page)
                cache.update(keys, values, index)
            report.reused, report.selected = found, self._loop.selected
        output = self.model.lm(input_ids=self.model.tensor(ids[found:]), cache=cache, use_cache=True, logits_to_keep=1)
        return Prefill(cache, output.logits[0, -1], report)

    def clear(self) -> None:
        """Forget all stored chunks."""
        self.engine.clear()

    def close(self) -> None:
        """End the engine's threads and free its memory."""
        self.engine.close()


class _LayerLoop:
    """The loop that LMCache runs over vLLM's layers, over those of transformers; steps once a layer."""

    def __init__(self, model: Model):
        rotary = SimpleNamespace(self_attn=SimpleNamespace(rotary_emb=Rotary(model)))
        # all that the blender asks of vLLM's model
        self.vllm_model = SimpleNamespace(model=SimpleNamespace(layers=[rotary] * len(model.layers)))
        self.model, self.mask, self.blender = model, "position", None
        self.selected: list[int] = []

    @torch.inference_mode()
    def compute_layer(self, ids: torch.Tensor) -> Iterator[None]:
        from lmcache.v1.compute.attention.metadata import LMCFlashAttnMetadata

        n = len(ids)
        ends = torch.tensor([0, n])
        metadata = LMCFlashAttnMetadata(ends, torch.tensor([n]), ends, n, n)
        hidden, output = self.model.lm.get_input_embeddings()(ids), None
        for index, layer in enumerate(self.model.layers):
            normed = layer.input_layernorm(hidden)
            attention = layer.self_attn
            qkv = attention.q_proj(normed), attention.k_proj(normed), attention.v_proj(normed)
            *qkv, residual, output, metadata = self.blender.process_qkv(*qkv, hidden, index, output, metadata)
            hidden = residual + attention.o_proj(self._attend(attention, *qkv))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            picked = self.blender.metadata.imp_indices
            self.selected = [] if picked is None else picked.tolist()
            yield

    def _attend(self, attention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention of the rows [n, heads * head dim] over all keys."""
        rows, keys = len(query), len(key)
        last = self.blender.metadata.positions if self.mask == "position" else torch.arange(keys - rows, keys)
        seen = torch.arange(keys) <= last[:, None]
        q, k, v = (t.unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)[None] for t in (query, key, value))
        attended = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=attention.scaling, enable_gqa=True)
        return attended[0].transpose(0, 1).flatten(1)


class Rotary:
    """The model's rotary embedding as vLLM's modules offer it: flat rows [n, heads * head dim], positions [n]."""

    def __init__(self, model: Model):
        self.size = model.layers[0].self_attn.head_dim
        positions = torch.arange(model.context_length)[None]
        cos, sin = model.lm.base_model.rotary_emb(torch.empty(0, dtype=torch.float32), positions)
        half = self.size // 2
        self.table = torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1)

    def __call__(self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor):
        cos, sin = self.table[positions][:, None].chunk(2, dim=-1)
        return self._rotated(query, cos, sin), self._rotated(key, cos, sin)

    def _rotated(self, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = rows.unflatten(-1, (-1, self.size)).chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(1)

    def moved(self, old: torch.Tensor, new: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Keys [n, heads * head dim] moved from `old` to `new` positions by LMCache's own kernel."""
        from lmcache import device_ops

        heads = keys.view(len(keys), -1, self.size)
        device_ops.rotary_embedding_k_fused(old, new, heads, self.size, self.table, True)
        return heads.flatten(1)


def require_supported(model: Model) -> None:
    """ReplicationError unless LMCache is installed and its blender knows this model."""
    require_lmcache()
    kind, rotary = type(model.lm).__name__, model.config.rope_parameters.get("rope_type", "several")
    dtype, device = str(model.dtype).removeprefix("torch."), model.device.type
    if kind not in MODELS or (rotary, dtype, device) != ("default", "float32", "cpu"):
        raise ReplicationError(
            f"LMCache's blender is compared on {' and '.join(MODELS)} with plain rotary embeddings, in float32 on the "
            f"CPU, not on {kind} ({rotary} rotary, {dtype}, {device}): choose another --model, dtype or --device"
        )


def _blender(engine, connector, config, loop: _LayerLoop):
    """A real LMCBlender that runs our loop where it would build one over vLLM's modules, which needs vLLM."""
    from lmcache.v1.compute.blend import blender as module

    original = module.infer_model_from_vllm
    module.infer_model_from_vllm = lambda vllm_model, blender, sparse: loop
    try:
        loop.blender = module.LMCBlender(engine, connector, loop.vllm_model, config)
    finally:
        module.infer_model_from_vllm = original
    return loop.blender


@contextmanager
def _cpu_for_cuda() -> Iterator[None]:
    """Within the context, LMCache's connector finds its own CPU device where it asks torch for CUDA."""
    from lmcache import torch_dev
    from lmcache.v1.gpu_connector import gpu_connectors as module

    class Torch(types.ModuleType):
        cuda = torch_dev

        def __getattr__(self, name):
            return getattr(torch, name)

    module.torch = Torch("torch")
    try:
        yield
    finally:
        module.torch = torch
