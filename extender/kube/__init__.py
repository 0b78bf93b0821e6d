"""The only door to the API server: objects come in through watches, bindings and Events go out."""
