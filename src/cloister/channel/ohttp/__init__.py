"""Oblivious HTTP (RFC 9458) and its chunked form (draft-ietf-ohai-chunked-ohttp-08): bytes to bytes, without I/O."""

KEYS_TYPE = "application/ohttp-keys"
REQUEST_TYPE, RESPONSE_TYPE = "message/ohttp-req", "message/ohttp-res"
CHUNKED_REQUEST_TYPE, CHUNKED_RESPONSE_TYPE = "message/ohttp-chunked-req", "message/ohttp-chunked-res"
PROBLEM_TYPE = "application/problem+json"
KEY_PROBLEM = "https://iana.org/assignments/http-problem-types#ohttp-key"  # RFC 9458 §5.3
GATEWAY_PATH = "/.well-known/ohttp-gateway"  # RFC 9540 §4
INCREMENTAL = ("Incremental", "?1")
