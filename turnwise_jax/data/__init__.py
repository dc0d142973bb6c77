"""Dialogues from files: sources, decoding, chat template and the grain pipeline."""

from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft, qa, qa_messages
from turnwise_jax.data.sources.benchmarks import BENCHMARKS, ONLINE

DATASETS = {
    "mmduet2_rl": mmduet2_rl,
    "mmduet2_sft": mmduet2_sft,
    "qa": qa,
    "avatar": qa_messages,
    **BENCHMARKS,
    **ONLINE,
}
