"""What a notebook's recorded results say, in sentences: one module a notebook.

`sentences(results)` gives the answer to the notebook's question, `replies(results)` one reply to each question of its
"Predict first", and `questions(results)` five questions to test oneself with, each with its answer. All read nothing
but what the notebook saved in `results/<profile>/<stem>.json`, so that the words hold for every run profile: for any
models, any number of blocks, and an encoder, of which no swap has a cost.
"""
