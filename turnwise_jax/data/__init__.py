"""Dialogues from files: sources, decoding, chat template and the grain pipeline."""
