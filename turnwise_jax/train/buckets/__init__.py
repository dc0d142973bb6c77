"""Which shapes a run's data ask for: what ``turnwise shapes`` finds out.

``options``  choices of buckets with their padding
``data``     lengths of the records, and the buckets for them
``logs``     rows as long as a run's rollouts were, and the buckets for them
``report``   all of it as text and JSON
"""
