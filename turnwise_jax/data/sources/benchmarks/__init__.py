"""Readers of the annotation files of public audio and video question-answering benchmarks.

One module per benchmark, each a source module (``data.sources``). Records of ``BENCHMARKS`` become
one open turn with a ``Question``; those of ``ONLINE`` are about a video that goes on: open turns as
it streams, or one question about what has been seen, with a ``Target`` for the benchmark's rule. A
module's docstring says where its format was read, which folders it expects below ``data.root``, and
what is taken as the category. Nothing is downloaded. A benchmark with several files is read at once
where its folder is given as ``data.path``: all files named by the module's ``PATTERN``.
"""

from turnwise_jax.data.sources.benchmarks import (
    av_odyssey,
    cg_av_counting,
    daily_omni,
    intentbench,
    lvbench,
    mmvu,
    mvbench,
    omnibench,
    ovo_bench,
    ovo_timing,
    proactive_videoqa,
    streamingbench,
    streamingbench_polling,
    streamingbench_proactive,
    streamingbench_sqa,
    tomato,
    video_holmes,
    video_mme,
    worldsense,
)

BENCHMARKS = {
    "omnibench": omnibench,
    "daily_omni": daily_omni,
    "worldsense": worldsense,
    "av_odyssey": av_odyssey,
    "video_mme": video_mme,
    "mvbench": mvbench,
    "lvbench": lvbench,
    "video_holmes": video_holmes,
    "mmvu": mmvu,
    "tomato": tomato,
    "intentbench": intentbench,
    "cg_av_counting": cg_av_counting,
}

ONLINE = {
    "proactive_videoqa": proactive_videoqa,
    "ovo_timing": ovo_timing,
    "ovo_bench": ovo_bench,
    "streamingbench": streamingbench,
    "streamingbench_sqa": streamingbench_sqa,
    "streamingbench_proactive": streamingbench_proactive,
    "streamingbench_polling": streamingbench_polling,
}
