"""Procedural video tasks written to real video files in the formats of real data.

``streamworld``  the embedded default: coloured shapes that appear, change colour, move and leave
``settings``     the vocabulary and the handles on difficulty; the named worlds
``script``       what happens in a video, what is asked about it, and the right replies with windows
``render``       a script drawn as an .mp4 file
``draw``         a contact sheet of a dialogue: frames, windows, reference answers, replies

``soundworld``   questions about short clips of shapes that also sound, each with its own voice
``soundsettings``, ``soundscript``, ``soundrender``, ``sounddraw``: the same parts of it

``files``, ``command``: a set's folder, made whole or not at all, and the command line
"""
