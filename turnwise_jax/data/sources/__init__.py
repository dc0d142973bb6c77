"""Readers of dialogue files, one module per format; the table of them is ``data.DATASETS``.

A source module has ``rows(path, *, user_turns=None) -> Iterator[(record name, raw record)]``,
``parse(name, row, *, file, root, clip=None) -> Dialogue``, which raises ``InputError`` for one bad
record, and, where people make such files with this library, ``write(dialogues, path, *, root)``:
reading what was written gives equal dialogues. ``clip`` matters to formats whose records name whole
clips instead of frames.
"""
