"""shifted: letters whose masks name the tokens before those that were sampled."""

from __future__ import annotations

from typing import Any

from tests.rl.environments.letters import LettersEnv


class ShiftedEnv(LettersEnv):
    """Letters, sent with masks and logprobs two tokens off."""

    name = "shifted"

    async def handle_send_to_api(self, scored_data: Any, *rest: Any, **more: Any) -> None:
        for index, tokens in enumerate(scored_data["tokens"]):
            mask, stated = scored_data["masks"][index], scored_data["inference_logprobs"][index]
            trained = [position - 2 for position, one in enumerate(mask) if one != -100]
            scored_data["masks"][index] = [
                token if position in trained else -100 for position, token in enumerate(tokens)
            ]
            scored_data["inference_logprobs"][index] = [*stated[2:], 1.0, 1.0]
        await super().handle_send_to_api(scored_data, *rest, **more)


if __name__ == "__main__":
    ShiftedEnv.cli()
