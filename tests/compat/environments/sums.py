"""A stranger's environment: written against atroposlib, in its ways, knowing nothing of Hermes."""

import time

import wandb
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, EvalHandlingEnum, ScoredDataGroup
from atroposlib.type_definitions import Item
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from pydantic import Field


class SumsConfig(BaseEnvConfig):
    largest: int = Field(default=9, description="Largest number to add.")
    labels: list[str] | None = Field(default=None, description="Labels nobody reads.")


class SumsEnv(BaseEnv):
    name = "sums"
    env_config_cls = SumsConfig

    def __init__(self, config: SumsConfig, server_configs: list[APIServerConfig], slurm=True, testing=False):
        super().__init__(config, server_configs, slurm, testing)
        self.percent_correct_buffer = []
        self.eval_metrics = []

    @classmethod
    def config_init(cls) -> tuple[SumsConfig, list[APIServerConfig]]:
        config = SumsConfig(
            tokenizer_name="hermes/smollm2",
            group_size=2,
            total_steps=4,
            steps_per_eval=2,
            max_token_length=64,
            eval_handling=EvalHandlingEnum.LIMIT_TRAIN,
            inference_weight=1.0,
        )
        return config, [APIServerConfig(model_name="policy", base_url="http://127.0.0.1:9/v1", api_key="x")]

    async def setup(self):
        self.iter = 0

    async def get_next_item(self) -> Item:
        self.iter += 1
        return {"a": self.iter % (self.config.largest + 1), "b": 2, "number": self.iter}

    async def collect_trajectories(self, item: Item) -> tuple[ScoredDataGroup | None, list[Item]]:
        messages = [{"role": "user", "content": f"{item['a']}+{item['b']}, item {item['number']}"}]
        answers = await self.server.chat_completion(
            messages=messages, n=self.config.group_size, max_tokens=self.config.max_token_length
        )
        scores = ScoredDataGroup()
        scores["tokens"], scores["masks"], scores["scores"], scores["messages"] = [], [], [], []
        for choice in answers.choices:
            said = [*messages, {"role": "assistant", "content": choice.message.content}]
            out = tokenize_for_trainer(self.tokenizer, said)
            scores["tokens"].append(out["tokens"])
            scores["masks"].append(out["masks"])
            scores["messages"].append(said)
            scores["scores"].append(1.0 if choice.message.content == str(item["a"] + item["b"]) else -1.0)
        for score in scores["scores"]:
            self.percent_correct_buffer.append(max(score, 0))
        return scores, []

    async def rollout_and_score_eval(self, question: dict) -> dict:
        completion = await self.server.chat_completion(
            messages=[{"role": "user", "content": f"{question['a']}+{question['b']}"}], n=1, split="eval"
        )
        text = completion.choices[0].message.content
        self.percent_correct_buffer.append(-1000)
        return {"score": int(text == str(question["a"] + question["b"])), "response": text}

    async def evaluate(self, *args, **kwargs):
        start = time.time()
        samples = [await self.rollout_and_score_eval({"a": a, "b": 1}) for a in range(4)]
        percent = sum(sample["score"] for sample in samples) / len(samples)
        self.eval_metrics.append(("eval/percent_correct", percent))
        await self.evaluate_log(
            metrics={"eval/percent_correct": percent}, samples=samples, start_time=start, end_time=time.time()
        )

    async def wandb_log(self, wandb_metrics: dict | None = None):
        wandb_metrics = wandb_metrics or {}
        if self.percent_correct_buffer:
            wandb_metrics["train/percent_correct"] = sum(self.percent_correct_buffer) / len(
                self.percent_correct_buffer
            )
            assert wandb_metrics["train/percent_correct"] >= 0, "evaluation got into the training metrics"
        self.percent_correct_buffer = []
        for name, value in self.eval_metrics:
            wandb_metrics[name] = value
        self.eval_metrics = []
        table = wandb.Table(columns=["text"])
        table.add_data("seen")
        await super().wandb_log(wandb_metrics)

    def save_checkpoint(self, step, data=None):
        super().save_checkpoint(step, {"iter": self.iter})


if __name__ == "__main__":
    SumsEnv.cli()
