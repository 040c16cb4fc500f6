"""The trusted parent (process.py): no tokenizer, opens no sealed prompt. It holds prompts for vaults as bytes until the
vault has them; at `open` and `shared` token ids while the request lasts, at `shared` the text on its way to the
detector; public tokens; and, where the service decodes, answers' ids until ten seconds after (views.py). At `isolated`
and `mpc` it counts an answer's tokens and keeps none."""
