"""The options of `hermes compress`, declared once (`config/option.py`)."""

from __future__ import annotations

from pathlib import Path

from hermes.config.option import Options, option
from hermes.data.compress.folding.plan import Strategy
from hermes.errors import UsageError


class CompressOptions(Options):
    argument: str | None = option(
        None,
        "JSONL file, folder, batch run, or a query such as 'run=my_run reward>=0.5'.",
        metavar="[FILE|DIR|RUN|QUERY]",
        argument=True,
    )
    input: str | None = option(
        None,
        "The same as the argument: JSONL file, folder, batch run, or stored trajectories"
        " such as 'run=my_run reward>=0.5'.",
        metavar="FILE|DIR|RUN|QUERY",
        hidden=True,
    )
    output: Path | None = option(None, "JSONL file to write.")
    target_max_tokens: int = option(8000, "Token budget of a row.", ge=1)
    tokenizer: str = option(
        "hermes/smollm2",
        "Tokenizer of the model to train: folder, hub name or tiktoken name.",
        metavar="NAME|DIR",
    )
    trust_remote_code: bool = option(False, "Allow a hub tokenizer to run its own code.")
    strategy: Strategy = option(
        Strategy.FOLD, "How old parts become short: by rule, by a model's summary, or what fits."
    )
    summary_target_tokens: int = option(
        750, "Maximum length of the summary of one output or one span of exchanges.", ge=32
    )
    protect_last_turns: int = option(
        4, "Final turns that are kept, except tool outputs that must be folded for the row to fit.", ge=0
    )
    strict_protect: bool = option(
        False,
        "Fold no tool output of protected turns; rows that then do not fit are written to a separate file.",
    )
    model: str | None = option(
        None,
        "Model that writes the summaries for summarise and auto.",
        "-m",
        "--model",
        metavar="PROVIDER/NAME",
    )
    base_url: str | None = option(None, "Any OpenAI-compatible endpoint.", metavar="URL")
    concurrency: int = option(50, "Concurrent requests to the model.", ge=1)
    sample_percent: float = option(100.0, "Only this share of the rows.", gt=0, le=100)
    seed: int = option(42, "Seed of that sample.")
    dry_run: bool = option(False, "Count and report only; nothing is written.")
    resume: bool = option(False, "Continue an interrupted run.")

    @property
    def source(self) -> str:
        """The argument, else --input. UsageError if none is named, or both are."""
        if self.argument and self.input:
            raise UsageError(
                f"the input is named twice: '{self.argument}' and --input {self.input}", "name it once"
            )
        if not self.argument and not self.input:
            raise UsageError(
                "there is nothing to compress: no input is named",
                "hermes compress FILE, or a folder, a batch run, or a query such as 'run=my_run reward>=0.5'",
            )
        return str(self.argument or self.input)
