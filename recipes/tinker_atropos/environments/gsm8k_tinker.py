"""GSM8K under the reference's name: `python gsm8k_tinker.py serve --config ../../configs/qwen3_8b.yaml`.

A template for an environment of your own too; `hermes env new` writes one with every method.
"""

from hermes.envs.builtin.gsm8k import Gsm8kEnv


class Gsm8kTinkerEnv(Gsm8kEnv):
    """Grade school word problems; 1 if the answer has the right value."""

    name = "gsm8k_tinker"


if __name__ == "__main__":
    Gsm8kTinkerEnv.cli()
