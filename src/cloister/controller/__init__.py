"""The trusted parent: starts all other processes, carries messages between them, watches, cleans up (process.py).

It computes nothing, has no tokenizer and opens no sealed prompt. Users' content in its memory, and for how long:

* a prompt for a vault: bytes that it does not decode, until the vault has them (vault_queue.py, sealed_requests.py);
* at `open` and `shared` the prompt's token ids, while the request lasts (requests.py). At `shared` also the prompt's
  text while it passes to the detector (prompt_labels.py), and the token ids of a prompt with uncertain blocks until the
  model has judged them, 30 s at most (judge.py);
* at `partitioned` and `obfuscated` the token ids that the user marked public, as long as the answer's;
* the answer's token ids where the service decodes, while the request lasts and ten seconds after (views.py). At
  `isolated` and `mpc` it counts the answer's tokens and keeps none.
"""
