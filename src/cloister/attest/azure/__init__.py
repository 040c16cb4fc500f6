"""Azure's confidential VMs: the hardware's report covers a paravisor (HCL) and its runtime data, which names the key of
a vTPM. A quote by this key covers the client's nonce and the guest's PCRs."""
