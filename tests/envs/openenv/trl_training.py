"""TRL's trainer on the environment of words.py, by openenv-core's client.

    python trl_training.py URL FOLDER

FOLDER has openenv-core and what it imports. The policy is a tiny model with random weights that is made here
and says what a script says, so that nothing is fetched and every reward is known.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

sys.path.append(sys.argv[2])

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.mcp_client import MCPToolClient

REPLIES = (
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|im_end|>',
    '<tool_call>\n{"name": "submit_answer", "arguments": {"answer": "word1"}}\n</tool_call><|im_end|>',
    "Done.<|im_end|>",
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
SPECIAL += ["<tool_response>", "</tool_response>", "<think>", "</think>"]


class Environment:
    """The tools of an episode; TRL offers the public methods to the model."""

    def __init__(self) -> None:
        self._client = MCPToolClient(base_url=sys.argv[1]).sync()
        self.reward = 0.0
        self.events: list[str] = []

    def reset(self, seed: int, **row: object) -> str:
        self.reward = 0.0
        self.events.append("reset")
        return str(self._client.reset(seed=seed).observation.metadata["prompt"])

    def look(self) -> str:
        """Shows the word."""
        self.events.append("look")
        return str(self._client.call_tool("look"))

    def submit_answer(self, answer: str) -> str:
        """Gives the final answer.

        Args:
            answer: The word.
        """
        self.events.append("submit_answer")
        action = CallToolAction(tool_name="submit_answer", arguments={"answer": answer})
        self.reward = self._client.step(action).reward or 0.0
        return "The episode is over."


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and those of the template."""
    vocabulary = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bytes_only, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None
    )
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return fast


class ScriptedModel(Qwen3ForCausalLM):
    """Says a fixed reply to each turn; everything else, the loss too, is the model's."""

    tokenizer: PreTrainedTokenizerFast

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        texts = self.tokenizer.batch_decode(input_ids)
        replies = [REPLIES[text.count("<tool_response>")] for text in texts]
        encoded = self.tokenizer(replies, padding=True, padding_side="right", return_tensors="pt")
        return torch.cat([input_ids, encoded["input_ids"]], dim=1)


def scripted_model(fast: PreTrainedTokenizerFast) -> ScriptedModel:
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=4096,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    model = ScriptedModel(config)
    model.tokenizer = fast
    return model


def reward(environments: Sequence[Environment], **_: Any) -> list[float]:
    return [environment.reward for environment in environments]


def main() -> None:
    fast = tokenizer()
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": 0}]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=scripted_model(fast),
            processing_class=fast,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=1,
                num_generations=2,
                per_device_train_batch_size=2,
                max_completion_length=400,
                max_tool_calling_iterations=3,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_steps=1,
                chat_template_kwargs={"enable_thinking": False},
            ),
            train_dataset=Dataset.from_list(rows),
            environment_factory=Environment,
            reward_funcs=reward,
        )
        trainer.train()
        (log,) = [entry for entry in trainer.state.log_history if "reward" in entry]
        for environment in trainer._environment_pool[None]:
            print(*environment.events)
        print(trainer.state.global_step, log["reward"])


main()
