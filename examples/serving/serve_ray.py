"""Serve model.trtp with Ray Serve: ``serve run serve_ray:app``; on a GPU, with ray_actor_options={"num_gpus": 1}."""

import torch
from ray import serve

import pipeline


@serve.deployment(max_ongoing_requests=64)
class Model:
    def __init__(self):
        self.run = pipeline.load("model.trtp").module()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def answers(self, rows):
        return self.run(torch.tensor(rows, dtype=torch.float32)).tolist()

    async def __call__(self, request):
        return await self.answers(await request.json())


app = Model.bind()
