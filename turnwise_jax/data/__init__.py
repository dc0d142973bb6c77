"""Dialogues from files: sources, decoding, chat template and the grain pipeline."""

from turnwise_jax.data.sources import mmduet2_rl, mmduet2_sft, qa

DATASETS = {
    "mmduet2_rl": mmduet2_rl,
    "mmduet2_sft": mmduet2_sft,
    "qa": qa,
}
