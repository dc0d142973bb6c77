"""Studies in the embedded worlds: trainings, their evaluation, a table and pictures.

``config``     the fields of a study; how its runs are tied to its world and to each other
``runner``     the whole, resumable part by part
``ablation``   variants of a method with several seeds each; ``ablation_config`` its fields,
               ``ablation_results`` its numbers, ``ablation_tables``, ``ablation_plots``
``exact``      credit and reductions against the true gradient of a problem that is enumerated;
               ``exact_config`` its fields, ``exact_problem``, ``exact_policy``,
               ``exact_estimators``, ``exact_learning``, ``exact_measure`` its numbers,
               ``exact_tables``, ``exact_plots``
``worlds``     what an ablation must know of each kind of world and of its benchmark
``tiny``       the untrained policy
``small``      what the configs of tiny policies' trainings share
``report``     tables and curves from reports and logs
``plots``      curves and results as pictures
``dialogues``  dialogues as pictures and as text
``credit``     one dialogue's shared and turn-level advantages as a picture
``style``      what all pictures share
"""
