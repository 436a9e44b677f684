"""A training by TRL that publishes its weights after every step, and a follower that gets them bit for bit.

GRPO trains a small model of random weights on the CPU. In a job the follower stands beside an engine, elsewhere:

    python examples/trl_publish.py

It needs trl and tokenizers, and fetches nothing. The exit code is 1 if a bit differs.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tensorwire.sync import Follower, Publisher

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Publishing(TrainerCallback):  # type: ignore[misc] # the checker does not see transformers
    """Publishes after each step, from the rank that saves. It works with every Trainer of Transformers and TRL."""

    def __init__(self, store: Path) -> None:
        self.publisher = Publisher(store)

    def on_step_end(self, args: Any, state: Any, control: Any, model: torch.nn.Module, **options: Any) -> None:
        if state.is_world_process_zero:
            published = self.publisher.publish((name, tensor.cpu()) for name, tensor in model.state_dict().items())
            print(f"step {state.global_step}: {published}", flush=True)


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each letter."""
    words = {text: number for number, text in enumerate(["<pad>", "<end>", *LETTERS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")


def late_letters(completions: list[str], **columns: Any) -> list[float]:
    """What is rewarded."""
    return [float(sum(map(ord, text))) for text in completions]


def main(folder: Path) -> bool:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2 + len(LETTERS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).bfloat16()
    arguments = GRPOConfig(
        output_dir=str(folder / "trained"),
        max_steps=3,
        learning_rate=1e-4,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    store = folder / "store"
    trainer = GRPOTrainer(
        model,
        late_letters,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": letter} for letter in LETTERS]),
        processing_class=tokenizer(),
        callbacks=[Publishing(store)],
    )
    trainer.train()

    served: dict[str, torch.Tensor] = {}
    follower = Follower(store, served, framework="pt")
    follower.stage()
    follower.commit()
    wanted = model.state_dict()
    return served.keys() == wanted.keys() and all(torch.equal(served[name], wanted[name]) for name in wanted)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        is_same = main(Path(place))
    print(f"bit-identical: {'yes' if is_same else 'no'}")
    sys.exit(not is_same)
