//! Prompts: from the body of a request to text, tokens and content hashes.
