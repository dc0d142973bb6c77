"""Data sets looked through record by record: what is in them, and all that is wrong with them.

``problems``    what can be wrong, and which of it makes a record unusable
``dialogues``   what one dialogue tells about itself: decisions, windows, replies, texts
``media``       pictures, videos and sounds that are missing, broken or too short
``tally``       counts and distributions of a whole set
``checking``    the whole set: every record, every problem
``summary``     tables as Markdown, problems as JSON lines
``picture``     the one-page picture
"""
