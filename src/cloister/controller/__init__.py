"""The trusted parent: starts all other processes, carries messages between them, watches, cleans up (process.py). It
has no tokenizer and opens no sealed prompt. In its memory: prompts for vaults, undecoded, until the vault has them; at
`open` and `shared` a prompt's token ids while the request lasts, at `shared` its text on the way to the detector;
public tokens; and answers' token ids where the service decodes, until ten seconds after (views.py). At `isolated` and
`mpc` it counts an answer's tokens and keeps none."""
