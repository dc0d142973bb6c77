"""Evaluation: run a policy over dialogues, score what it said, report it with intervals.

``predictions``  the JSON-lines form of finished dialogues; by way of ``lines``
``generate``     a policy run over dialogues, resumable item by item
``controls``     silence, speaking always, another video's media, nothing to hear, nothing to see
``scoring``      eq. 1, prefix scores and credit of finished dialogues
``streaming``    the report on dialogues with annotated reply windows
``qa``           the report on questions with one answer each
``bootstrap``    averages over dialogues with intervals over videos
``subsets``      the parts that a benchmark averages within
``report``       what every benchmark takes and returns
``compare``      several reports of one benchmark beside one another
``throughput``   videos per minute, decisions per second
``run``          a whole evaluation from its ``config``

Public benchmarks, each with its rule line by line: ``proactive_videoqa``, ``ovo_timing``,
``ovo_bench``, ``streamingbench``, ``streamingbench_proactive``, ``streamingbench_polling``.

A benchmark is a module with ``RULE`` and ``report(predictions, judges, *, resamples, seed, ...)``,
and one line here.
"""

from __future__ import annotations

from turnwise_jax.eval import (
    ovo_bench,
    ovo_timing,
    proactive_videoqa,
    qa,
    streaming,
    streamingbench,
    streamingbench_polling,
    streamingbench_proactive,
)

BENCHMARKS = {
    "streaming": streaming,
    "qa": qa,
    "proactive_videoqa": proactive_videoqa,
    "ovo_timing": ovo_timing,
    "ovo_bench": ovo_bench,
    "streamingbench": streamingbench,
    "streamingbench_proactive": streamingbench_proactive,
    "streamingbench_polling": streamingbench_polling,
}
JUDGED = ("streaming", "proactive_videoqa")  # those of them that ask the judge
