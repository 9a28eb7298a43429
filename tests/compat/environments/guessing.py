"""A stranger's environment of the other kind: one answer at a time, two turns, exact tokens, older names."""

import random
from typing import Any

from atroposlib.envs.base import BaseEnvConfig, BaseLanguageEnv, OpenaiConfig, ScoredDataItem


class GuessingEnv(BaseLanguageEnv):
    @classmethod
    def config_init(cls):
        config = BaseEnvConfig(
            tokenizer_name="hermes/smollm2", group_size=2, total_steps=3, max_token_length=16
        )
        server = OpenaiConfig(
            model_name="policy",
            tokenizer_name="hermes/smollm2",
            base_url="http://127.0.0.1:9/v1",
            server_type="sglang",
        )
        return config, server

    async def setup(self):
        self.turn = 0

    async def get_next_item(self):
        self.turn += 1
        return self.turn

    async def collect_trajectory(self, item) -> tuple[ScoredDataItem | None, list]:
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            messages: list[Any] = [{"role": "user", "content": f"Guess {item}"}]
            for reply in ("higher", None):
                answer = await managed.chat_completion(messages=messages, n=1, max_tokens=8)
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                if reply:
                    messages.append({"role": "user", "content": reply})
            node = managed.get_state()["nodes"][0]
        return {
            "tokens": node.tokens,
            "masks": node.masked_tokens,
            "scores": random.random(),
            "inference_logprobs": node.logprobs,
            "messages": messages,
        }, []

    async def evaluate(self, *args, **kwargs):
        pass


if __name__ == "__main__":
    GuessingEnv.cli()
