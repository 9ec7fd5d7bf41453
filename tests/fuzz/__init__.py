"""Random input for every face of a node, and for what reads text from strangers.

inputs     what is sent: valid requests, nearly valid ones, and noise; the same for one seed, face and number
faces      how it is sent to a node, and what must come back
functions  what is called with it in this process: schemas, cron lines, filters, imports
__main__   `python -m tests.fuzz`: runs them beside an innocent client, prints counts and the seed
"""
