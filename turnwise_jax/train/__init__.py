"""Training: from a config to a trained checkpoint, resumable at any moment.

``run``        ``train(config)``: builds everything, fits, exports
``loop``       collect a batch, update, log, checkpoint
``data``       a run's records and the shapes they need
``collect``    batches: given replies, or rollouts judged and credited (``credit``, ``report``)
``step``       one update as a pure function (``state``, ``forward``, ``optim``)
``compiled``   the step jitted on a mesh, all shapes compiled ahead (``mesh``)
``checkpoint`` Orbax checkpoints; ``convert`` makes Hugging Face directories of them
``metrics``    JSON lines, TensorBoard, compile counts (``reporter``)
``config``     every field, declared once; ``validate`` refuses what cannot work;
               ``recipes`` what several files under ``configs/`` share
``directory``  whose run a directory holds; ``signals`` ends on SIGTERM
"""
