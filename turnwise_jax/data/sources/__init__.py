"""Readers of dialogue files, one module per format; the table of them is ``data.DATASETS``.

A source module has ``rows(path, *, user_turns=None) -> Iterator[(record name, raw record)]``,
``parse(name, row, *, file, root) -> Dialogue``, which raises ``InputError`` for one bad record, and
``write(dialogues, path, *, root)``. Reading what was written gives equal dialogues.
"""
