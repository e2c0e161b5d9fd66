"""Serve model.trtp with FastAPI, each batch what came during the last call: ``uvicorn serve_http:app``."""

import asyncio
from contextlib import asynccontextmanager
from typing import Annotated

import torch
from fastapi import FastAPI
from pydantic import Field

import pipeline

MOST = 32
Row = Annotated[list[float], Field(min_length=8, max_length=8)]  # another request is an error of the client
run = pipeline.load("model.trtp").module()
waiting = asyncio.Queue()


def answers(rows):
    return run(torch.tensor(rows, dtype=torch.float32)).tolist()


async def batches():
    while True:
        requests = [await waiting.get()]
        while len(requests) < MOST and not waiting.empty():
            requests.append(waiting.get_nowait())
        rows, futures = zip(*requests, strict=True)
        try:
            found = await asyncio.to_thread(answers, rows)
        except Exception as error:
            found = [error] * len(rows)
        for future, answer in zip(futures, found, strict=True):
            if not future.done():  # the client may be gone
                failed = isinstance(answer, Exception)
                (future.set_exception if failed else future.set_result)(answer)


@asynccontextmanager
async def lifespan(app):
    answers([[0.0] * 8] * MOST)  # kernels are compiled before traffic comes
    task = asyncio.create_task(batches())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(row: Row):
    future = asyncio.get_running_loop().create_future()
    waiting.put_nowait((row, future))
    return await future
