"""What an answer must look like: a request's form, its bounds, and the mask of tokens that it allows next."""
