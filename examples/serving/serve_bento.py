"""Serve model.trtp with BentoML: ``bentoml serve serve_bento:Model``; on a GPU, with resources={"gpu": 1}."""

import bentoml
import numpy as np
import torch

import pipeline


@bentoml.service
class Model:
    def __init__(self):
        self.run = pipeline.load("model.trtp").module()

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000)
    def predict(self, rows: np.ndarray) -> np.ndarray:
        return self.run(torch.from_numpy(rows).float()).numpy()
