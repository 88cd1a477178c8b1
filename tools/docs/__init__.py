"""Parts of the documentation that are made from the code: one module a part, put together by `hook`."""
