"""Streaming sets of one's own: from videos with questions and timed answers to training files.

``entries``   what one video is asked and when which answer is right; clock times
``plain``     entries from a JSON list or JSON lines
``captions``  entries from SRT or WebVTT files beside videos
``cutting``   entries to dialogues: target segments with their past, and dialogues for SFT
``making``    the whole set, written in the MMDuet2 formats or not at all
"""
