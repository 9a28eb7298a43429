"""The Tinker API without its SDK."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from tinker.proto import tinker_public_pb2 as pb

from tests.engine.http.engine_process import Answer, Server, tokens

API = "/api/v1"


class Raw:
    """A session with one model, spoken to without the SDK."""

    def __init__(self, server: Server, base: str) -> None:
        self.server = server
        self.session = server.post("create_session", {"sdk_version": "0.1.0", "type": "create_session"})[
            "session_id"
        ]
        self.model = f"{self.session}:train:0"
        self.created = self.create(base)
        self.result(self.created)

    def create(self, base: str) -> Any:
        lora = {"rank": 2, "seed": 1, "a_field_of_tomorrow": [1]}
        return self.server.post(
            "create_model",
            {
                "session_id": self.session,
                "model_seq_id": 0,
                "base_model": base,
                "lora_config": lora,
                "from_the_future": {"x": 1},
            },
        )

    def forward_backward(self, number: int, seed: int = 0, **headers: str) -> Answer:
        message = pb.ForwardBackwardRequest(model_id=self.model, seq_id=number, loss_fn="cross_entropy")
        body = filled(message, seed).SerializeToString()
        if "Content_Encoding" in headers:
            body = zstandard.ZstdCompressor().compress(body)
        return self.server.ask("POST", f"{API}/forward_backward", raw=body, **headers)

    def step(self, number: int, rate: float = 1e-2) -> Any:
        params = {"learning_rate": rate, "momentum_of_tomorrow": 0.5}
        return self.server.post(
            "optim_step", {"model_id": self.model, "seq_id": number, "adam_params": params}
        )

    def poll(self, accepted: Any, **more: Any) -> Answer:
        return self.server.ask(
            "POST", f"{API}/retrieve_future", {"request_id": accepted["request_id"], **more}
        )

    def result(self, accepted: Any) -> Any:
        answer = self.poll(accepted)
        assert answer.status == 200, answer
        return answer.json()

    def trained(self, answer: Answer) -> pb.ForwardBackwardOutput:
        assert answer.status == 200, answer
        output = pb.ForwardBackwardOutput()
        output.ParseFromString(self.poll(answer.json()).body)
        return output


def filled(message: pb.ForwardBackwardRequest, seed: int) -> pb.ForwardBackwardRequest:
    sequence = tokens(8, seed)
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(sequence[:-1], "<i4").tobytes()
    targets = datum.loss_fn_inputs["target_tokens"]
    targets.dense, targets.dtype = np.array(sequence[1:], "<i8").tobytes(), pb.DTYPE_INT64
    weights = datum.loss_fn_inputs["weights"]
    weights.dense, weights.dtype = np.ones(7, "<f4").tobytes(), pb.DTYPE_FLOAT32
    return message
