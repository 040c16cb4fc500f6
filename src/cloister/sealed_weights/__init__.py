"""A provider's weights at rest: the encrypted file, its signed header, and the key a node gets once it is attested."""
