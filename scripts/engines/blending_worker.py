"""A vLLM worker whose model LMCache's blender can find: it asks a tracker, which neither of the two fills.

For `--worker-cls blending_worker.BlendingWorker`; it needs a GPU, vLLM and LMCache.
"""

from lmcache.integration.vllm.utils import ENGINE_NAME
from lmcache.v1.compute.models.utils import VLLMModelTracker
from vllm.v1.worker.gpu_worker import Worker


class BlendingWorker(Worker):
    def load_model(self, *args, **kwargs) -> None:
        super().load_model(*args, **kwargs)
        VLLMModelTracker.register_model(ENGINE_NAME, self.model_runner.model)
