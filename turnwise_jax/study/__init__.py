"""Studies in the embedded world: trainings, their evaluation, a table and pictures.

``config``     the fields of a study; how its runs are tied to its world and to each other
``runner``     the whole, resumable part by part
``tiny``       the untrained policy
``report``     tables and curves from reports and logs
``plots``      curves and results as pictures
``dialogues``  dialogues as pictures and as text
``credit``     one dialogue's shared and turn-level advantages as a picture
``style``      what all pictures share
"""
