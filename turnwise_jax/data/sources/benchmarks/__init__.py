"""Readers of the annotation files of public audio and video question-answering benchmarks.

One module per benchmark, each a source module (``data.sources``) whose records become one open turn
with a ``Question``. A module's docstring says where its format was read, which folders it expects
below ``data.root``, and what is taken as the category. Nothing is downloaded. A benchmark's files
are read one by one; where it has several, ``sources.qa.write`` makes one of them.
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
