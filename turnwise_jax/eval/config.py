"""Every field of an evaluation, declared once."""

from __future__ import annotations

from ml_collections import ConfigDict

from turnwise_jax.rewards.judges import judge_fields

SOURCES = {  # benchmark -> its plain data format
    "streaming": "mmduet2_rl",
    "qa": "qa",
    "proactive_videoqa": "proactive_videoqa",
    "ovo_timing": "ovo_timing",
    "ovo_bench": "ovo_bench",
    "streamingbench": "streamingbench",
    "streamingbench_proactive": "streamingbench_proactive",
    "streamingbench_polling": "streamingbench_polling",
}


def eval_config(benchmark: str = "streaming") -> ConfigDict:
    """Defaults of ``turnwise eval``: the papers' greedy decoding, one dialogue after another.

    Args:
      benchmark: a key of ``BENCHMARKS``.
    """
    return ConfigDict(
        {
            "benchmark": benchmark,
            "dir": "runs/eval",  # predictions.jsonl and report.json are written here
            "policy": {
                "checkpoint": "",
                "dtype": "bfloat16",  # compute
                "param_dtype": "same",  # as kept: "same" as `dtype`, "float32" or "bfloat16"
                "replies": "plain",  # how it writes silence and replies, see data.reply_styles
            },
            "data": {
                "source": SOURCES.get(benchmark, ""),
                "path": "",  # a file, or a folder: all its files of the source's form
                "user_turns": "",
                "root": "",
                "frames": 32,  # of a question-answering record's clip, spread evenly over it
                "interval": 2.0,  # seconds between the frames of a whole video that streams
                "turn_frames": 2,  # of them before each decision
                "context": 60.0,  # seconds of video before a question that looks back; 0: all
                "sound": True,  # the audio track of a clip or a whole video, if it has one
                "max_pixels": 0,  # of a frame as the policy sees it; 0: what the checkpoint says
                "on_bad_record": "raise",
                "cache_dir": "",  # prepared frames on disk, the same as in training; "": none
                "cache_gb": 50.0,  # most 10^9 bytes there; what was used longest ago goes first
                "reopen": False,  # let the policy decide the given turns as well
            },
            "decoding": {
                "temperature": 0.0,  # 0: greedy
                "top_k": 0,
                "top_p": 1.0,
                "max_new_tokens": 512,
                "batch_size": 8,
                "buckets": 1,  # shapes; more suit sets of long and short dialogues
                "seed": 0,
            },
            # Devices: dialogues are split over data and fsdp, parameters over fsdp and tensor.
            "mesh": {"data": 1, "fsdp": 1, "tensor": 1},
            # "swapped": another video's frames and sound; "forced": may not stay silent; "muted":
            # every sound silent; "blanked": every frame grey
            "control": "none",
            "resamples": 2000,  # bootstrap over videos
            "judge": judge_fields(),
        }
    )
